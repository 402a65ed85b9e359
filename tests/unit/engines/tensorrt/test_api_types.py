"""Calls of TensorRT's API are checked against the bindings of the oldest and newest versions."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[4] / "tools" / "check_tensorrt_types.py"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_tensorrt_types", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stubs(tool: ModuleType, version: str) -> Path:
    try:
        made: Path = tool.stubs_of(version)
    except tool.CannotBeHad as reason:
        pytest.skip(f"no stubs of TensorRT {version}: {reason}")
    return made


@pytest.mark.parametrize("place", [0, 1])
def test_every_call_is_one_that_the_version_has(tool: ModuleType, place: int) -> None:
    version = tool.VERSIONS[place]
    assert tool.check(stubs(tool, version), tool.engine_files(version)) == 0


@pytest.mark.parametrize(
    "call",
    [
        "network.add_gather(x, x)",
        "network.add_gather(x, x, axes=0)",
        "network.add_attention_v3(x)",
        "trt.DataType.BFLOAT",
        "builder.build_engine(network)",
    ],
)
def test_a_call_that_no_version_has_is_found(
    tool: ModuleType, call: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "wrong.py"
    types = "blink_persistent.engines.tensorrt.trt_types"
    arguments = "trt: Trt, builder: Builder, network: Network, x: Tensor"
    file.write_text(
        f"from {types} import Builder, Network, Tensor, Trt\n\n\n"
        f"def wrong({arguments}) -> None:\n    {call}\n",
        encoding="utf-8",
    )
    assert tool.check(stubs(tool, tool.VERSIONS[0]), [file]) == 1
    assert "wrong.py:5: error" in capfd.readouterr().out
