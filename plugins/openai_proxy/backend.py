"""The backend `openai_proxy`: one HTTP client a worker and version, on the worker's event loop."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blink_server.backend import Endpoint, ModelVersion, Session, SessionLimits
from blink_server.config import CONFIG_FILE
from blink_server.errors import BlinkError, Problem, Unavailable
from blink_server.worker_backend import ProcesslessBackend

from .tokens import TextTokenizer

LONGEST_TOKEN = 16
"""Bytes of text that one of the other server's tokens may stand for, on an average."""

OPTIONS: dict[str, Any] = {
    "required": ["url"],
    "additionalProperties": False,
    "properties": {
        "url": {
            "description": "The other server's base URL, as OpenAI's clients take it (.../v1).",
            "type": "string",
            "pattern": "^https?://[^/]",
        },
        "model": {
            "description": "What it calls the model; the name here if not given.",
            "type": ["string", "null"],
            "minLength": 1,
            "default": None,
        },
        "api_key_file": {
            "description": "File with the key to show it, below the version directory or absolute.",
            "type": ["string", "null"],
            "minLength": 1,
            "default": None,
        },
        "connect_seconds": {
            "description": "How long to wait for a connection.",
            "type": "number",
            "exclusiveMinimum": 0,
            "default": 5,
        },
        "silence_seconds": {
            "description": "How long it may send nothing before a request counts as lost.",
            "type": "number",
            "exclusiveMinimum": 0,
            "default": 600,
        },
    },
}


class ProxyBackend(ProcesslessBackend):
    """Fulfils `Backend`."""

    name = "openai_proxy"

    def check(self, version: ModelVersion) -> Sequence[Problem]:
        """Another tokenizer than this plugin's, an unreadable key, a missing library."""
        file, problems = version.directory / CONFIG_FILE, []
        if (tokenizer := version.config["tokenizer"]["name"]) != self.name:
            expected = f"must be {self.name!r}: the other server's tokenizer decides"
            problems.append(Problem(file, "tokenizer.name", tokenizer, expected))
        try:
            api_key(version)
        except BlinkError as error:
            field = "backend_options.api_key_file"
            problems.append(Problem(file, field, None, str(error)))
        if importlib.util.find_spec("httpx") is None:
            expected = "needs the library httpx: pip install 'blink-server[proxy]'"
            problems.append(Problem(file, "backend", self.name, expected))
        return problems

    async def connect(self, version: ModelVersion, endpoint: Endpoint) -> Session:
        """Ask the other server for its models. Raises Unavailable where the wanted one is not."""
        from .upstream import open_upstream

        limits = SessionLimits(
            context_length=version.config["limits"]["context_length"] * LONGEST_TOKEN,
            vocabulary_size=TextTokenizer.vocabulary_size,
            eos_token_ids=(),
            max_logprobs=0,
        )
        return await open_upstream(version, limits, api_key(version))


def api_key(version: ModelVersion) -> str | None:
    """The key that the options name a file of. Raises Unavailable where it cannot be read."""
    name = version.config["backend_options"]["api_key_file"]
    if name is None:
        return None
    try:
        key = Path(version.directory, name).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Unavailable(f"the key file cannot be read: {error}") from None
    if not key or not key.isprintable():
        raise Unavailable("the key file must hold one line, the key")
    return key
