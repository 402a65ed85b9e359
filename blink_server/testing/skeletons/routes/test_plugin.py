from __future__ import annotations

import falcon.testing

from blink_server.http.app import create_app
from blink_server.http.models import ModelDirectory
from blink_server.http.plugin_routes import add_plugin_routes
from blink_server.testing.skeletons.routes import plugin
from blink_server.testing.with_plugin import plugins_with


def test_models_are_counted() -> None:
    models = ModelDirectory()
    app = create_app(models)
    add_plugin_routes(app, plugins_with(plugin), models)
    reply = falcon.testing.TestClient(app).simulate_get("/my_plugin/count")
    assert reply.status_code == 200
    assert reply.json == {"models": 0}
