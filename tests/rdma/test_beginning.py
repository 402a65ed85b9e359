"""Servers and the client take long to start in the guest: during the tests that come after this."""

from __future__ import annotations

import importlib
import threading

import pytest

from blink_persistent.testing.frontend_site import Started

pytestmark = pytest.mark.rdma


def test_servers_begin(rdma_programs: Started) -> None:
    client = ("openai.resources.completions",)
    threading.Thread(target=importlib.import_module, args=client, daemon=True).start()
    assert all(program.lives for program in rdma_programs.programs)
