from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from blink_server.bench.energy import energy_meter
from blink_server.errors import BlinkError


class NVMLError(Exception):
    pass


class FakeNvml(SimpleNamespace):
    """Two GPUs whose counters start at 1,000 and 2,000 mJ; handles are indices."""

    NVMLError = NVMLError

    def __init__(self, *, driver: bool = True, counter: bool = True) -> None:
        super().__init__(driver=driver, counter=counter, joules=[1000, 2000], open=0)

    def _need(self, there: bool, what: str) -> None:
        if not there:
            raise NVMLError(what)

    def nvmlInit(self) -> None:  # noqa: N802
        self._need(self.driver, "Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.joules)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        self._need(index < len(self.joules), "Invalid Argument")
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return f"GPU {handle}"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:  # noqa: N802
        self._need(self.counter, "Not Supported")
        return int(self.joules[handle])


def use(monkeypatch: pytest.MonkeyPatch, **options: Any) -> FakeNvml:
    fake = FakeNvml(**options)
    monkeypatch.setitem(sys.modules, "pynvml", fake)  # type: ignore[arg-type]
    return fake


def test_counters_of_all_gpus_or_of_some(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = use(monkeypatch)
    with energy_meter([]) as both, energy_meter([1]) as second:
        assert both is not None
        assert second is not None
        assert (both.read(), second.read()) == (3000, 2000)
        fake.joules[0] += 50
        assert (both.read(), second.read()) == (3050, 2000)
        assert (both.names, second.names) == (["GPU 0", "GPU 1"], ["GPU 1"])
    assert fake.open == 0


@pytest.mark.parametrize("lacking", ["driver", "counter"])
def test_without_counters_there_is_no_figure_unless_one_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    fake = use(monkeypatch, **{lacking: False})
    with energy_meter([]) as none:
        assert none is None
    with pytest.raises(BlinkError, match="--gpu"), energy_meter([0]):
        pass
    assert fake.open == 0


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)
    with pytest.raises(BlinkError, match=r"--gpu .*Invalid Argument"), energy_meter([7]):
        pass
