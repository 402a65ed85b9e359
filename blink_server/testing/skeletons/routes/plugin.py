"""The routes of `my_plugin`: how many models there are. Replace them by yours."""

from __future__ import annotations

from collections.abc import Mapping

import falcon.asgi

from blink_server.hookspecs import hookimpl
from blink_server.http.models import ModelDirectory


class CountResource:
    def __init__(self, models: ModelDirectory) -> None:
        self._models = models

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        resp.media = {"models": len(self._models.entries)}


@hookimpl
def blink_routes(models: ModelDirectory) -> Mapping[str, object]:
    return {"/my_plugin/count": CountResource(models)}
