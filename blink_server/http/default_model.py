"""The model of a request that names none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blink_server.errors import InvalidRequest
from blink_server.http.models import ModelDirectory
from blink_server.http.settings import ServerSettings
from blink_server.suggestion import enumeration


def with_model(
    body: Mapping[str, Any], directory: ModelDirectory, settings: ServerSettings
) -> Mapping[str, Any]:
    """A body that names a model: its own, the server's default, or the only one there is.

    Raises InvalidRequest where there is none of them.
    """
    if body.get("model") is not None:
        return body
    models = directory.models
    name = settings.http.default_model or (models[0] if len(models) == 1 else None)
    if name is None:
        serving = enumeration(directory.serving, "serve")
        message = f"model is missing, and the server has no default; {serving}"
        raise InvalidRequest(message, param="model", code="missing_parameter")
    return {**body, "model": name}
