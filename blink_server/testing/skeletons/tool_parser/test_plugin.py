from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from blink_server.testing import ToolFormatContract
from blink_server.testing.contracts.tool_format import Call
from blink_server.testing.skeletons.tool_parser import plugin
from blink_server.testing.with_plugin import plugins_with
from blink_server.text.tools.parser import ToolFormat


class TestMyToolFormat(ToolFormatContract):
    templates = ("Answer with <call>name {arguments}</call>",)

    @pytest.fixture
    def tool_format(self) -> ToolFormat:
        return plugins_with(plugin).tool_parsers["my_plugin"]()

    def write(self, calls: Sequence[Call]) -> str:
        return "".join(f"<call>{name} {json.dumps(given)}</call>" for name, given in calls)
