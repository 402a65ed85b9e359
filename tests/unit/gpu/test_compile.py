"""Device code compiles and links without a GPU, wherever NVRTC is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from blink_persistent.gpu import compile as device_code

try:
    device_code.find_device_runtime()
    device_code._libraries()
except device_code.DeviceCodeError as missing:
    pytest.skip(f"no device compiler: {missing}", allow_module_level=True)

ELF = b"\x7fELF"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def kept(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.cubin"))


def test_scheduler_compiles_and_is_kept_outside_the_package(own_cache: Path) -> None:
    first = device_code.compile_program("scheduler_gpu.cu", arch="sm_90")
    assert first.startswith(ELF)
    assert b"blink_scheduler" in first
    (file,) = kept(own_cache)
    file.write_bytes(b"what was kept")
    assert device_code.compile_program("scheduler_gpu.cu", arch="sm_90") == b"what was kept"


def test_another_option_is_another_program(own_cache: Path) -> None:
    device_code.compile_program("scheduler_gpu.cu", arch="sm_90")
    device_code.compile_program("scheduler_gpu.cu", arch="sm_90", definitions=["SOME_OPTION=1"])
    assert len(kept(own_cache)) == 2


def test_an_error_carries_the_compilers_log_and_leaves_nothing(own_cache: Path) -> None:
    with pytest.raises(device_code.DeviceCodeError, match="an impossible wish"):
        device_code.compile_program(
            "scheduler_gpu.cu",
            arch="sm_90",
            epilogue='static_assert(false, "an impossible wish");\n',
        )
    assert kept(own_cache) == []


def test_a_cache_that_others_may_write_is_refused(own_cache: Path) -> None:
    device_code.cache_directory().chmod(0o777)
    with pytest.raises(device_code.DeviceCodeError, match="writable by nobody else"):
        device_code.compile_program("scheduler_gpu.cu", arch="sm_90")
