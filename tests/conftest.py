from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from blink_persistent.testing.frontend_site import Started


def pytest_configure(config: pytest.Config) -> None:
    """Time no examples: that would tell what else the machine does. Have Ctrl-C interrupt, also
    where a shell has started the tests in the background and has them ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.pluginmanager.hasplugin("hypothesispytest"):  # not in the guest, which is slow
        from hypothesis import HealthCheck, settings

        too_slow = [HealthCheck.too_slow]
        settings.register_profile(
            "untimed", settings(), deadline=None, suppress_health_check=too_slow
        )
        settings.load_profile("untimed")


@pytest.fixture(scope="session")
def rdma_programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """A host and two frontends, which start; in the guest."""
    yield from _programs(tmp_path_factory.mktemp("rdma"), "rdma")


@pytest.fixture(scope="session")
def file_programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """The same without RDMA."""
    yield from _programs(tmp_path_factory.mktemp("file"), "file")


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose path leaves room for Unix sockets' names, unlike `tmp_path`."""
    path = Path(tempfile.mkdtemp(prefix="blink-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def _programs(directory: Path, transport: str) -> Iterator[Started]:
    from blink_persistent.testing.frontend_site import start

    started = start(directory, transport)
    yield started
    started.kill()
