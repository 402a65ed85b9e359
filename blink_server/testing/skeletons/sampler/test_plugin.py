from __future__ import annotations

import pytest

from blink_persistent.engines import Sampler
from blink_server.testing import SamplerContract
from blink_server.testing.skeletons.sampler import plugin
from blink_server.testing.with_plugin import plugins_with


class TestMySampler(SamplerContract):
    @pytest.fixture
    def sampler(self) -> Sampler:
        sampler: Sampler = plugins_with(plugin).samplers["my_plugin"]({"least": 0.05})
        return sampler
