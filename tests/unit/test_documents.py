"""The documents name files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
DOCUMENTS = [
    *PROJECT.glob("*.md"),
    *PROJECT.glob("docs/**/*.md"),
    PROJECT / "model_repository" / "README.md",
]
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")
FILE = re.compile(r"`([\w.-]+(?:/[\w.-]+)+\.(?:py|h|cc|cu|json|md))`")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(PROJECT)))
def test_links_lead_somewhere(document: Path) -> None:
    links = LINK.findall(document.read_text(encoding="utf-8"))
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_the_readme_names_files_that_exist() -> None:
    named = FILE.findall((PROJECT / "README.md").read_text(encoding="utf-8"))
    assert len(named) > 10
    assert [name for name in named if not (PROJECT / name).exists()] == []
