"""Routes by Falcon's own router, with HEAD wherever there is GET."""

from __future__ import annotations

from typing import Any

from falcon.inspect import RouteInfo, inspect_compiled_router, register_router
from falcon.routing import CompiledRouter


class Router(CompiledRouter):
    """Falcon sends no body in answer to HEAD, so GET's responder answers it too (RFC 9110, 9.3.2).

    What GET would stream is never begun.
    """

    def map_http_methods(self, resource: object, **kwargs: Any) -> Any:
        """Falcon's responders of a resource by method, and GET's for HEAD where it has none."""
        responders: Any = super().map_http_methods(resource, **kwargs)
        if "GET" in responders:
            responders.setdefault("HEAD", responders["GET"])
        return responders


@register_router(Router)
def _inspect(router: Router) -> list[RouteInfo]:
    return inspect_compiled_router(router)
