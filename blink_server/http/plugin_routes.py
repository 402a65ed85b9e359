"""Routes that plugins bring (hook `blink_routes`), beside the server's own."""

from __future__ import annotations

import re
from collections.abc import Mapping

import falcon
from falcon.inspect import inspect_routes

from blink_server.http.app import App, create_app
from blink_server.http.models import ModelDirectory
from blink_server.plugin_errors import PluginError
from blink_server.plugins import Plugins

_FIELD = re.compile(r"\{[^}]*\}")


def add_plugin_routes(app: App, plugins: Plugins, models: ModelDirectory) -> None:
    """Add what the plugins bring to a worker's application.

    Raises PluginError: a hook fails or returns no routes, a route's path is taken.
    """
    owners = {_shape(route.path): "the server" for route in inspect_routes(app)}
    for plugin, make in plugins.routes:
        try:
            routes = make(models)
        except Exception as error:
            raise _refused(plugin, f"failed in blink_routes: {error!r}") from error
        if not isinstance(routes, Mapping):
            raise _refused(plugin, f"returned {routes!r} from blink_routes, not a dict by path")
        for path, resource in routes.items():
            if not any(hasattr(resource, f"on_{m.lower()}") for m in falcon.HTTP_METHODS):
                raise _refused(plugin, f"has a route {path} to {resource!r}, which has no on_get")
            owner = owners.setdefault(_shape(str(path)), f"plugin {plugin!r}")
            if owner != f"plugin {plugin!r}":
                raise _refused(plugin, f"has a route {path}, which {owner} has already")
            try:
                app.add_route(path, resource)
            except (TypeError, ValueError) as error:
                raise _refused(plugin, f"has a route {path!r} that cannot be: {error}") from error


def check_plugin_routes(plugins: Plugins) -> None:
    """Raise PluginError where a worker could not add them: to be known before one is started."""
    if plugins.routes:
        models = ModelDirectory()
        add_plugin_routes(create_app(models), plugins, models)


def _shape(path: str) -> str:
    return _FIELD.sub("{}", path)


def _refused(plugin: str, what: str) -> PluginError:
    return PluginError(f"plugin {plugin!r} {what}")
