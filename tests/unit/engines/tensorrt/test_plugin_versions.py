"""The plugin in Python fits the classes of the oldest and newest TensorRT, in their own bindings.

The libraries that these link are stand-ins, so that nothing is built or registered.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[4] / "tools" / "check_tensorrt_types.py"
USE = """
import io
import tensorrt_bindings as trt
from blink_persistent.engines.tensorrt import plan_builder
from blink_persistent.engines.tensorrt.attention_launches import AttentionShape
from blink_persistent.engines.tensorrt.build_progress import build_progress
from blink_persistent.engines.tensorrt.flavour import message_log
from blink_persistent.engines.tensorrt.kernel_archive import CompiledKernel, Role
from blink_persistent.engines.tensorrt.paged_plugin import PluginState, creator_class

kernels = (CompiledKernel(Role.APPEND_ROWS, 0, 1, 0, "append", b"code"),)
shape = AttentionShape(heads=8, kv_heads=2, head_dim=64, block_size=64, programs=5, scale=0.25)
state = PluginState(shape, kernels, True)
fields = state.fields(trt)
made = creator_class(trt)().create_plugin("x", fields.collection, trt.TensorRTPhase.RUNTIME).clone()
assert PluginState.from_fields(made.get_fields_to_serialize()) == state
assert [made.get_aliased_input(output) for output in range(3)] == [-1, 3, 4]
assert made.get_capability_interface(trt.PluginCapabilityType.BUILD) is made
tensor, inner = trt.DynamicPluginTensorDesc(), trt.PluginTensorDesc()
inner.type, inner.format = trt.DataType.BF16, trt.TensorFormat.LINEAR
tensor.desc = inner
assert made.supports_format_combination(0, [tensor], 9)
assert made.get_output_data_types([trt.DataType.BF16] * 9) == [trt.DataType.BF16] * 3

log = message_log(trt)
with log.explaining():
    log.log(trt.ILogger.ERROR, "refused")
    assert log.explanation() == "refused"
told = []
progress = build_progress(trt, told.append)
progress.phase_start("build", None, 2)
assert progress.step_complete("build", 0) and told == [0.5]
assert plan_builder._writer_class(trt)(io.BytesIO()).write(b"plan") == 4
assert trt.PreviewFeature.ALIASED_PLUGIN_IO_10_03
print(trt.__version__)
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_tensorrt_types", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("place", [0, 1])
def test_it_fits_the_versions_own_classes(tool: ModuleType, place: int, tmp_path: Path) -> None:
    version = tool.VERSIONS[place]
    try:
        bindings = tool.fetch_bindings(version, tmp_path)
    except tool.CannotBeHad as reason:
        pytest.skip(f"no bindings of TensorRT {version}: {reason}")
    paths = {"PYTHONPATH": str(bindings.parent), "LD_LIBRARY_PATH": str(bindings)}
    done = subprocess.run(
        [sys.executable, "-c", USE],
        env={**os.environ, **paths},
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == version
