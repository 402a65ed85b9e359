"""Device code, compiled when it is first needed: NVRTC, then nvJitLink with the device runtime.

Neither needs a GPU, nvcc or a CUDA toolkit: the libraries come from the packages of the `cuda`
extra. What was compiled is kept in the user's cache directory under a hash of everything that
went into it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

SOURCE_DIRECTORY = Path(__file__).resolve().parent.parent / "csrc"


class DeviceCodeError(RuntimeError):
    """Device code could not be compiled or linked, or a library for it is missing."""


def compile_program(
    source: str,
    *,
    arch: str,
    definitions: Sequence[str] = (),
    prologue: str = "",
    epilogue: str = "",
) -> bytes:
    """The cubin of `csrc/<source>`, fully linked, from the cache where it has been compiled before.

    `arch` is a real architecture such as "sm_90"; `definitions` are macros ("NAME" or
    "NAME=VALUE"); `prologue` and `epilogue` are put before and after the source's text. Raises
    DeviceCodeError with the compiler's log, or naming the package to install.
    """
    text = prologue + (SOURCE_DIRECTORY / source).read_text() + epilogue
    options = [
        f"--gpu-architecture={arch}",
        "--std=c++17",
        "--relocatable-device-code=true",
        *(f"--define-macro={definition}" for definition in definitions),
    ]
    kept = cache_directory() / f"{_content_key(source, text, options)}.cubin"
    if kept.exists():
        return kept.read_bytes()
    cubin = _link(_compile(source, text, options), arch, source)
    write_whole(kept, cubin)
    return cubin


def cache_directory(kind: str = "device-code") -> Path:
    """Where compiled code is kept: `blink-server/<kind>` in the user's cache directory.

    Raises DeviceCodeError where others could have put code there.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = root / "blink-server" / kind
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = directory.stat()
    if state.st_uid != os.getuid() or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise DeviceCodeError(
            f"{directory}: must be owned by this user and writable by nobody else, "
            "since compiled code is loaded from it"
        )
    return directory


def find_device_runtime() -> Path:
    """`libcudadevrt.a`, of the nvidia-cuda-runtime package or else of an installed toolkit.

    Raises DeviceCodeError naming the package.
    """
    for candidate in _device_runtimes():
        if candidate.is_file():
            return candidate
    raise DeviceCodeError(
        "libcudadevrt.a was not found: install the package nvidia-cuda-runtime "
        "(the 'cuda' extra), or set CUDA_HOME to a CUDA toolkit"
    )


def _device_runtimes() -> Iterator[Path]:
    try:
        for file in importlib.metadata.files("nvidia-cuda-runtime") or []:
            if file.name == "libcudadevrt.a":
                yield Path(str(file.locate()))
    except importlib.metadata.PackageNotFoundError:
        pass
    for root in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if root:
            yield Path(root) / "lib64" / "libcudadevrt.a"


def _libraries() -> tuple[Any, Any]:
    try:
        from cuda.bindings import nvjitlink, nvrtc

        nvjitlink.version()
        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise DeviceCodeError(
            f"NVRTC and nvJitLink are needed: install the 'cuda' extra ({error})"
        ) from error
    return nvrtc, nvjitlink


def _content_key(source: str, text: str, options: Sequence[str]) -> str:
    nvrtc, nvjitlink = _libraries()
    digest = hashlib.sha256()
    for part in (source, text, *options, nvrtc.nvrtcVersion()[1:], nvjitlink.version()):
        digest.update(f"{part}\0".encode())
    for header in sorted((SOURCE_DIRECTORY / "include" / "blink").iterdir()):
        digest.update(f"{header.name}\0".encode() + header.read_bytes())
    digest.update(_file_digest(find_device_runtime()))
    return digest.hexdigest()[:40]


@cache
def _file_digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


def _compile(source: str, text: str, options: Sequence[str]) -> bytes:
    """A relocatable cubin."""
    nvrtc, _ = _libraries()

    def checked(result: tuple[Any, ...]) -> Any:
        if result[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise DeviceCodeError(f"{source}: {nvrtc.nvrtcGetErrorString(result[0])[1].decode()}")
        return result[1] if len(result) > 1 else None

    program = checked(nvrtc.nvrtcCreateProgram(text.encode(), source.encode(), 0, None, None))
    try:
        every = [*options, f"--include-path={SOURCE_DIRECTORY / 'include'}"]
        encoded = [option.encode() for option in every]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = bytearray(checked(nvrtc.nvrtcGetProgramLogSize(program)))
            checked(nvrtc.nvrtcGetProgramLog(program, log))
            message = log.rstrip(b"\0").decode(errors="replace")
            raise DeviceCodeError(f"{source} does not compile:\n{message}")
        cubin = bytearray(checked(nvrtc.nvrtcGetCUBINSize(program)))
        checked(nvrtc.nvrtcGetCUBIN(program, cubin))
        return bytes(cubin)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _link(relocatable: bytes, arch: str, source: str) -> bytes:
    """A cubin that can be loaded, with cudaGraphLaunch and its like resolved."""
    _, nvjitlink = _libraries()
    handle = nvjitlink.create(1, [f"-arch={arch}"])
    try:
        kind = nvjitlink.InputType
        nvjitlink.add_data(handle, kind.CUBIN, relocatable, len(relocatable), source)
        nvjitlink.add_file(handle, kind.LIBRARY, str(find_device_runtime()))
        nvjitlink.complete(handle)
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
        return bytes(cubin)
    except nvjitlink.nvJitLinkError as error:
        log = bytearray(nvjitlink.get_error_log_size(handle))
        nvjitlink.get_error_log(handle, log)
        message = log.rstrip(b"\0").decode(errors="replace")
        raise DeviceCodeError(f"{source} does not link: {error}\n{message}") from error
    finally:
        nvjitlink.destroy(handle)


def write_whole(path: Path, data: bytes) -> None:
    """Written under another name first, so that no reader sees a part of it."""
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
