"""POST /v2/repository/index, and load and unload of models in explicit mode."""

from __future__ import annotations

from typing import Any, Literal

import falcon.asgi

from blink_server.control_client import ask
from blink_server.errors import BlinkError, InvalidRequest, Unavailable
from blink_server.http.auth import AdminKeys
from blink_server.http.body import read_object
from blink_server.http.errors import NotFound
from blink_server.http.json_values import parse
from blink_server.http.kserve_models import reply
from blink_server.http.models import ModelDirectory
from blink_server.http.settings import ServerSettings
from blink_server.messages import Answer
from blink_server.model_rows import from_columns

_STATES = {"DRAINING": "UNLOADING"}  # Triton has one word for both


class RepositoryIndexResource:
    """POST /v2/repository/index."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """`{"ready": bool}` -> every version on disk or in service, or only those that serve."""
        body = await read_object(req, self._settings, empty=True)
        ready = body.get("ready", False)
        if not isinstance(ready, bool):
            raise InvalidRequest(f"ready is {ready!r}; it must be true or false", param="ready")
        rows = from_columns((await _ask(self._settings, "index")).rows)
        reply(
            resp,
            [
                {
                    "name": row.model,
                    **({"version": str(row.version)} if row.version else {}),
                    "state": _STATES.get(row.state, row.state),
                    "reason": row.reason,
                }
                for row in rows
                if not ready or row.state == "READY"
            ],
        )


class RepositoryModelResource:
    """POST /v2/repository/models/{model}/load and .../unload."""

    def __init__(self, directory: ModelDirectory, settings: ServerSettings) -> None:
        self._directory = directory
        self._settings = settings
        self._keys = AdminKeys(settings)

    async def on_post_load(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, model: str
    ) -> None:
        """Load a model, or what has changed of it; answers when that has ended.

        Parameters: `config`, JSON text or an object that goes over config.json; `force`: load
        although nothing has changed.
        """
        self._keys.check(req)
        parameters = await self._parameters(req, ("config", "force"))
        config, force = parameters.get("config"), parameters.get("force", False)
        if isinstance(config, str):
            try:
                config = parse(config)
            except ValueError as error:
                raise InvalidRequest(f"config is not JSON: {error}", param="config") from None
        if config is not None and not isinstance(config, dict):
            raise InvalidRequest("config must be a JSON object", param="config")
        if not isinstance(force, bool):
            raise InvalidRequest(f"force is {force!r}; it must be true or false", param="force")
        await _ask(self._settings, "load", model=model, config=config, force=force)
        reply(resp, {})

    async def on_post_unload(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, model: str
    ) -> None:
        """Give the model no more requests; those in flight go on."""
        self._keys.check(req)
        await self._parameters(req, ("unload_dependents",))  # there are none: all models are alone
        await _ask(self._settings, "unload", model=model)
        await self._directory.until_unready(model, timeout=5.0)
        reply(resp, {})

    async def _parameters(self, req: falcon.asgi.Request, known: tuple[str, ...]) -> dict[str, Any]:
        body = await read_object(req, self._settings, empty=True)
        parameters = body.get("parameters", {})
        if not isinstance(parameters, dict):
            raise InvalidRequest("parameters must be an object", param="parameters")
        for name in parameters:
            if name not in known:
                raise InvalidRequest(
                    f"parameters: {name} is not known here; there is {', '.join(known)}",
                    param="parameters",
                )
        return parameters


async def _ask(
    settings: ServerSettings, action: Literal["index", "load", "unload"], **fields: Any
) -> Answer:
    """The provisioner's answer. Raises what its outcome means."""
    if settings.control_socket is None:
        raise Unavailable("this worker has no provisioner to ask")
    answer = await ask(settings.control_socket, action, **fields)
    outcomes: dict[str, type[BlinkError]] = {
        "refused": Unavailable,
        "unknown": NotFound,
        "failed": InvalidRequest,
    }
    if answer.outcome in outcomes:
        raise outcomes[answer.outcome](answer.error)
    return answer
