"""docs/architecture.md against the code: its files exist, its table of packages is how they are."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[2]
PAGE = (PROJECT / "docs" / "architecture.md").read_text(encoding="utf-8")
ROOTS = {"blink_server": PROJECT, "blink_persistent": PROJECT / "backends"}
PACKAGE_ROW = re.compile(r"^\| `(blink_[\w/]+)` \| [^|]* \| ([^|]*) \|$", re.M)
TEST_KIT = "testing"


def documented() -> dict[str, set[str]]:
    """Packages, and the packages that each may import."""
    short = {row[0].rpartition("/")[2]: row[0] for row in PACKAGE_ROW.findall(PAGE)}
    return {
        package: {short[name] for name in re.findall(r"`(\w+)`", imports)}
        for package, imports in PACKAGE_ROW.findall(PAGE)
    }


def package_of(module: str) -> str:
    """`blink_server/http` for all that is in it; modules of no subpackage are the root's."""
    parts = module.split(".")
    inner = ROOTS[parts[0]].joinpath(*parts[:2])
    return "/".join(parts[:2]) if len(parts) > 1 and inner.is_dir() else parts[0]


def imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            # `from package import module` may name a subpackage.
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def actual() -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for name, root in ROOTS.items():
        for file in (root / name).rglob("*.py"):
            package = package_of(".".join(file.relative_to(root).with_suffix("").parts))
            modules = (module for module in imported(file) if module.split(".")[0] in ROOTS)
            found[package].update(package_of(module) for module in modules)
    return {package: others - {package} for package, others in found.items()}


def is_test_kit(package: str) -> bool:
    return package.endswith(f"/{TEST_KIT}")


def test_every_file_that_is_named_exists() -> None:
    named = re.findall(r"`((?:blink_server|backends|schemas|tests|tools)/[\w./-]+\.\w+)`", PAGE)
    assert len(set(named)) > 40
    assert [name for name in named if not (PROJECT / name).is_file()] == []


def test_the_table_has_every_package() -> None:
    assert set(documented()) == {package for package in actual() if not is_test_kit(package)}


def test_packages_import_what_the_table_says_and_nothing_else() -> None:
    allowed = documented()
    surplus = {
        package: others - allowed[package]
        for package, others in actual().items()
        if not is_test_kit(package) and others - allowed[package]
    }
    assert surplus == {}
    assert not [name for name in allowed["blink_server"] if name.startswith("blink_persistent")]


def test_what_the_table_allows_is_made_use_of() -> None:
    found = actual()
    unused = {
        package: others - found[package]
        for package, others in documented().items()
        if others - found[package]
    }
    assert unused == {}


def test_names_in_the_text_are_in_the_code() -> None:
    scheduler = (
        ROOTS["blink_persistent"] / "blink_persistent/csrc/include/blink/scheduler.h"
    ).read_text(encoding="utf-8")
    assert "`Scheduler::pass`" in PAGE
    assert re.search(r"\bpass\(\)", scheduler)
    for name in ("watcher", "reader", "policy", "manager", "supervisor", "catalog", "leases"):
        assert re.search(rf"\b{name}\b", PAGE)
        places = [
            *PROJECT.glob(f"blink_server/**/{name}.py"),
            *PROJECT.glob(f"backends/*/{name}.py"),
        ]
        assert places, name
