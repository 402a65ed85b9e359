"""Routes by Falcon's own router, with HEAD wherever there is GET."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from falcon.inspect import RouteInfo, inspect_compiled_router, register_router
from falcon.routing import CompiledRouter

_LONGEST = 200  # characters; no route of ours is as long
_LONGEST_COMPARED = 64  # without fields; comparing blocks all streams, by the square of the length
_LEAST_LIKENESS = 0.6


class Router(CompiledRouter):
    """Falcon sends no body in answer to HEAD, so GET's responder answers it too (RFC 9110, 9.3.2).

    What GET would stream is never begun.
    """

    def __init__(self) -> None:
        super().__init__()
        self._templates: list[str] = []

    def add_route(self, uri_template: str, resource: object, **kwargs: Any) -> None:
        """See falcon; raises ValueError for a template that cannot be."""
        super().add_route(uri_template, resource, **kwargs)
        self._templates.append(uri_template)

    def nearest(self, path: str) -> str | None:
        """The path most like `path` that a route has; None where none is near, or it is too long.

        What stands for a field is not compared: it is the client's, and may be anything.
        """
        if len(path) > _LONGEST:
            return None
        best, likeness = None, _LEAST_LIKENESS
        matcher = difflib.SequenceMatcher(autojunk=False)
        for template in self._templates:
            fixed, given, filled = _compared(template.split("/"), path.split("/"))
            if len(given) > _LONGEST_COMPARED:
                continue
            matcher.set_seqs(fixed, given)
            if matcher.real_quick_ratio() > likeness and matcher.quick_ratio() > likeness:
                ratio = matcher.ratio()
                if ratio > likeness:
                    best, likeness = filled, ratio
        return best if best != path else None

    def map_http_methods(self, resource: object, **kwargs: Any) -> Any:
        """Falcon's responders of a resource by method, and GET's for HEAD where it has none."""
        responders: Any = super().map_http_methods(resource, **kwargs)
        if "GET" in responders:
            responders.setdefault("HEAD", responders["GET"])
        return responders


def _compared(names: Sequence[str], parts: Sequence[str]) -> tuple[str, str, str]:
    """The template and the path without what fills its fields, and the template filled with it."""
    fixed, given, filled = list(names), list(parts), list(names)
    for place, (name, part) in enumerate(zip(names, parts, strict=False)):
        if part and name.startswith("{") and name.endswith("}"):
            fixed[place] = given[place] = "{}"
            filled[place] = part
    return "/".join(fixed), "/".join(given), "/".join(filled)


@register_router(Router)
def _inspect(router: Router) -> list[RouteInfo]:
    return inspect_compiled_router(router)
