"""The public test kit: fakes, small models, and a contract suite for each kind of plugin.

from blink_server.testing import TokenizerContract

class TestMine(TokenizerContract):
    @pytest.fixture
    def tokenizer(self): ...
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blink_server.testing.contracts.backend import BackendContract
    from blink_server.testing.contracts.engine import EngineContract
    from blink_server.testing.contracts.importer import ImporterContract
    from blink_server.testing.contracts.sampler import SamplerContract
    from blink_server.testing.contracts.session import SessionContract
    from blink_server.testing.contracts.tokenizer import TokenizerContract
    from blink_server.testing.contracts.tool_format import ToolFormatContract
    from blink_server.testing.contracts.transport import TransportContract

__all__ = [
    "BackendContract",
    "EngineContract",
    "ImporterContract",
    "SamplerContract",
    "SessionContract",
    "TokenizerContract",
    "ToolFormatContract",
    "TransportContract",
]

_MODULES = {
    "BackendContract": "backend",
    "EngineContract": "engine",
    "ImporterContract": "importer",
    "SamplerContract": "sampler",
    "SessionContract": "session",
    "TokenizerContract": "tokenizer",
    "ToolFormatContract": "tool_format",
    "TransportContract": "transport",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.contracts.{_MODULES[name]}"), name)
