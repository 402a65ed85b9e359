"""The mirrors of C++ structs are checked where the structs are compiled."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from blink_persistent.gpu import compile as device_code
from blink_persistent.gpu import structs

try:
    device_code.find_device_runtime()
    device_code._libraries()
except device_code.DeviceCodeError as missing:
    pytest.skip(f"no device compiler: {missing}", allow_module_level=True)

PROGRAMS = [
    ("scheduler_gpu.cu", structs.SCHEDULER_STRUCTS),
    ("scripted_gpu.cu", structs.SCRIPTED_STRUCTS),
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize(("source", "mirrors"), PROGRAMS)
def test_the_mirrors_are_the_compilers_layout(
    source: str, mirrors: tuple[type[ctypes.Structure], ...]
) -> None:
    epilogue = structs.layout_assertions(mirrors)
    assert epilogue.count("static_assert") > 20
    assert device_code.compile_program(source, arch="sm_90", epilogue=epilogue)


def test_a_mirror_out_of_step_does_not_compile() -> None:
    swapped = type(
        "ControlWords",
        (ctypes.Structure,),
        {"_fields_": list(reversed(structs.ControlWords._fields_))},
    )
    with pytest.raises(device_code.DeviceCodeError, match=r"ControlWords\.close"):
        device_code.compile_program(
            "scheduler_gpu.cu", arch="sm_90", epilogue=structs.layout_assertions([swapped])
        )
