"""Samplers that plugins bring: one CUDA C++ function, compiled for the GPU and for the host.

The function is described in `csrc/include/blink/sampler_plugin.h`. On a GPU it becomes part of the
last kernel of each graph; on a host it is compiled by the system's C++ compiler when a version is
loaded, and kept in the user's cache under a hash of everything that went into it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from blink_persistent import _native
from blink_persistent.engines import DeviceSampling, HostSampling
from blink_persistent.gpu.driver import Gpu
from blink_persistent.gpu.structs import EngineTables
from blink_persistent.samplers.default_cuda import MAX_VOCABULARY, DeviceSampler
from blink_persistent.samplers.host_compile import compile_host_library
from blink_server.errors import EngineFailure

_TEMPLATE = """#include "blink/sampler_plugin.h"
namespace option {{
{options}}}
namespace blink_plugin {{
#line 1 "{file}"
{code}
struct Plugin {{
    template <class Block>
    BLINK_DEV static int32_t choose(blink::Choice<Block>& choice) {{
        return blink_plugin::choose(choice);
    }}
}};
}}
namespace blink {{
template <class Block>
using ChosenSampler = PluginSampler<Block, blink_plugin::Plugin>;
}}
#define BLINK_SAMPLER ChosenSampler
#line 1 "sampler"
"""


class SourceSampler:
    """Fulfils `Sampler` by a file with a function `choose`, and options that are its constants."""

    def __init__(self, file: Path, options: Mapping[str, Any]) -> None:
        """`options`: numbers and truth values, by C++ names. Raises ValueError for others."""
        self._file = file
        self._options = dict(options)
        self._constants = "".join(_constant(name, value) for name, value in options.items())

    @property
    def code(self) -> str:
        """The text that stands before the server's own, for both compilers. Raises OSError."""
        code = self._file.read_text(encoding="utf-8")
        name = str(self._file).replace("\\", "\\\\").replace('"', '\\"')
        return _TEMPLATE.format(options=self._constants, file=name, code=code)

    def host(self, engine: _native.HostEngine) -> HostSampling:
        """Compiled, unless it has been before. Raises EngineFailure with the compiler's words."""
        return CompiledSampling(engine, compile_host_library("sampler_plugin_host.cc", self.code))

    def device(self, gpu: Gpu, tables: EngineTables, logits: int) -> DeviceSampling:
        """The kernel of sampler_gpu.cu with this choice. Raises DeviceCodeError."""
        return DeviceSampler(gpu, tables, logits, plugin=self.code)


class CompiledSampling:
    """Fulfils `HostSampling`; releases the interpreter lock while it works.

    `cut`: so many threads sample a row, in so many blocks, and in groups of so many, as a GPU's do;
    for tests.
    """

    def __init__(
        self,
        engine: _native.HostEngine,
        library: Path,
        *,
        cut: tuple[int, int, int] = (1, 1, 1),
    ) -> None:
        self._engine = engine  # its tables are used
        self._cut = cut
        self._sample = ctypes.CDLL(str(library)).blink_sample_rows
        self._sample.restype = None
        self._sample.argtypes = [
            *(ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32),
            *(ctypes.c_void_p, ctypes.c_uint64),
            *(ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32),
        ]

    def sample(self, phase: int, count: int, logits: npt.NDArray[np.float32]) -> None:
        """See `HostSampling.sample`."""
        assert logits.dtype == np.float32
        assert logits.flags.c_contiguous
        assert len(logits) >= count
        if logits.shape[1] > MAX_VOCABULARY:
            raise EngineFailure(f"a sampler takes vocabularies up to {MAX_VOCABULARY}")
        address, stride = logits.ctypes.data, logits.shape[1]
        self._sample(self._engine.tables_address, phase, count, address, stride, *self._cut)


def _constant(name: str, value: Any) -> str:
    if not (name.isidentifier() and name.isascii()):
        raise ValueError(f"sampler_options.{name} is not a name in C++")
    if isinstance(value, bool):
        return f"constexpr bool {name} = {str(value).lower()};\n"
    if isinstance(value, int):
        return f"constexpr long long {name} = {value};\n"
    if isinstance(value, float) and np.isfinite(np.float32(value)):
        return f"constexpr float {name} = {float(np.float32(value)).hex()}f;\n"
    raise ValueError(f"sampler_options.{name} is {value!r}; a sampler takes numbers")
