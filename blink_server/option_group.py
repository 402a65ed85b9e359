"""Options of the command line, each declared once: as a field of the dataclass it ends up in.

@dataclass(frozen=True, kw_only=True)
class Limits:
    most: int = option("--most", default=16, type=click.IntRange(min=1), help="...")

@option_group(Limits, "limits")
def command(limits: Limits) -> None: ...
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import Field, field, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Group = TypeVar("Group", bound="DataclassInstance")

_DECLARATION = "option"


class AbsolutePath(click.Path):
    """A path as text that holds in every process; - stays, where it is allowed."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """See click; links are not followed, so that they may change. Empty text is refused."""
        if not value:
            self.fail("must not be empty", param, ctx)
        given = super().convert(value, param, ctx)
        return "-" if self.allow_dash and given == "-" else str(Path(os.fsdecode(given)).absolute())


def option(*names: str, default: Any = None, **attributes: Any) -> Any:
    """A field with the option that sets it: `click.option`'s arguments."""
    return field(default=default, metadata={_DECLARATION: (names, attributes)})


def option_group(
    group: type[Group], argument: str, finish: Callable[[Group], Any] = lambda options: options
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options of a dataclass's fields, and what `finish` makes of them.

    `finish` may raise BlinkError. Fields that no option sets keep their defaults.
    """
    declared = [each for each in fields(group) if _DECLARATION in each.metadata]

    def give(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_options(**given: Any) -> Any:
            values = {each.name: given.pop(each.name) for each in declared}
            options = group(**{name: v for name, v in values.items() if v is not None})
            return command(**{argument: finish(options)}, **given)

        result: Callable[..., Any] = with_options
        for each in reversed(declared):
            result = _click_option(each)(result)
        return result

    return give


def _click_option(declared: Field[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    names, attributes = declared.metadata[_DECLARATION]
    if declared.default not in (None, ""):
        shown = declared.default is not False
        attributes = {"default": declared.default, "show_default": shown, **attributes}
    return click.option(*names, declared.name, **attributes)
