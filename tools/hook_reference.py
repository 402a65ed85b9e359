"""Writes the reference of hooks in docs/plugins.md from blink_server/hookspecs.py.

python tools/hook_reference.py            write it
python tools/hook_reference.py --check    exit with 1 if it is not as it would be written
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from blink_server import hookspecs

PAGE = Path(__file__).parents[1] / "docs" / "plugins.md"
BEGIN = "<!-- hooks: written by tools/hook_reference.py -->\n"
END = "<!-- end of hooks -->\n"


def reference() -> str:
    """A section for each hook: its exact signature, its contract, its example."""
    hooks = {name: hook for name, hook in vars(hookspecs).items() if name.startswith("blink_")}
    return "\n".join(_section(name, hook) for name, hook in hooks.items())


def _section(name: str, hook: Callable[..., Any]) -> str:
    contract, _, example = inspect.cleandoc(hook.__doc__ or "").partition("\nExample:\n\n")
    signature = inspect.signature(hook)
    code = re.sub(r"^    ", "", example, flags=re.M).rstrip()
    return (
        f"### `{name}({', '.join(signature.parameters)})`\n\n"
        f"{contract.strip()}\n\n"
        f"```python\n{code}\n```\n\n"
        f"Returns `{signature.return_annotation}`"
        + "".join(f"; `{each.name}: {each.annotation}`" for each in signature.parameters.values())
        + ".\n"
    )


def with_reference(page: str) -> str:
    """The page with the reference between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{reference()}\n{END}{after}"


def main() -> int:
    """Returns the exit status."""
    page = PAGE.read_text(encoding="utf-8")
    written = with_reference(page)
    if "--check" in sys.argv:
        return int(written != page)
    PAGE.write_text(written, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
