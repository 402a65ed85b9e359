"""Tables that commands print: every cell is data, shown as it is and whole at any width."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection

from rich.console import Console, RenderableType
from rich.table import Column, Table
from rich.text import Text

_UNFOLDED = 100_000  # columns; no terminal folds what goes into a file or a pipe
_ESCAPES = {
    code: f"\\x{code:02x}"
    for code in range(0x100)  # Unicode has no others
    if unicodedata.category(chr(code)) == "Cc" and chr(code) != "\n"
}


def table(*columns: str, whole: Collection[str] = ()) -> Table:
    """A table without rows. Cells fold where there is no room, but for those of `whole`."""
    return Table(
        *(
            Column(Text(name), no_wrap=name in whole, overflow="fold", header_style="bold")
            for name in columns
        ),
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )


def cell(value: object, style: str = "") -> Text:
    """A value as it is: brackets in it are no markup of rich's."""
    return Text(printable(value), style=style, overflow="fold")


def show(*parts: RenderableType) -> None:
    """Print on standard output: folded to a terminal's width, one line a row elsewhere."""
    console = Console()
    if not console.is_terminal:
        console.width = _UNFOLDED
    for part in parts:
        console.print(part)


def printable(value: object) -> str:
    """Its text, without what controls a terminal or what its encoding lacks: names may be such."""
    text = str(value).encode("utf-8", "backslashreplace").decode("utf-8")
    return text.translate(_ESCAPES)
