"""Routes by Falcon's own router, with HEAD wherever there is GET."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from falcon.inspect import RouteInfo, inspect_compiled_router, register_router
from falcon.routing import CompiledRouter

_LONGEST = 200  # characters; no route of ours is as long


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
        """The path most like `path` that a route has; None where none is near."""
        parts = path[:_LONGEST].split("/")
        filled = [_filled(template, parts) for template in self._templates]
        near = difflib.get_close_matches(path[:_LONGEST], filled, n=1)
        return near[0] if near and near[0] != path else None

    def map_http_methods(self, resource: object, **kwargs: Any) -> Any:
        """Falcon's responders of a resource by method, and GET's for HEAD where it has none."""
        responders: Any = super().map_http_methods(resource, **kwargs)
        if "GET" in responders:
            responders.setdefault("HEAD", responders["GET"])
        return responders


def _filled(template: str, parts: Sequence[str]) -> str:
    """A template's path with what `parts` have where it has fields."""
    names = template.split("/")
    given = (*parts, *names[len(parts) :])
    fields = (name.startswith("{") and name.endswith("}") for name in names)
    return "/".join(
        part if field and part else name
        for name, part, field in zip(names, given, fields, strict=False)
    )


@register_router(Router)
def _inspect(router: Router) -> list[RouteInfo]:
    return inspect_compiled_router(router)
