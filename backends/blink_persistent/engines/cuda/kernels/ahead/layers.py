"""All layers of a decode step in one launch (layers_step.h), whose blocks meet between products.

Weights are on their way all the time, those of the next product before a product has ended, as a
chain of kernels cannot have them.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from blink_persistent.engines.cuda.kernels.ahead.tensor_maps import MAP_WORDS, windows_map
from blink_persistent.engines.cuda.kernels.cuts.attention_call import MOST_GROUP, AttentionCall
from blink_persistent.engines.cuda.kernels.cuts.layers_cut import (
    BLOCKS,
    HEAD_DIM,
    PAGE,
    THREADS,
    LayerFeatures,
    LayersCall,
    LayersCut,
    layers_code,
)
from blink_persistent.engines.cuda.kernels.cuts.wide_cut import ALIGNMENT, WINDOW
from blink_persistent.engines.cuda.kernels.protocol import Rotary
from blink_persistent.engines.cuda.step_tensors import KvCache, StepInputs, Workspace
from blink_persistent.engines.cuda.weights import LayerWeights, Weights
from blink_persistent.gpu.chained_launch import ChainedKernel
from blink_persistent.gpu.driver import Gpu
from blink_server.importers.checkpoint import Architecture

Map = ctypes.Array[ctypes.c_uint64]


class AllLayers:
    """Fulfils `StepLayers` for one model in memory; the `gpu` owns the code.

    A launch waits until there is room for all of its blocks at once. Two at a time must not share
    a workspace, nor one of these.
    """

    def __init__(
        self,
        gpu: Gpu,
        architecture: Architecture,
        weights: Weights,
        rotary: Rotary,
        cache: KvCache,
        work: Workspace,
        cuts: Mapping[int, LayersCut],
        *,
        watchdog_cycles: int | None = None,
    ) -> None:
        """`cuts`: by the most rows that each is for, as in `StepChoices`; `watchdog_cycles`: see
        `layers_code`.

        The model and its KV have to be such that `layers_fit` says so. Raises DeviceCodeError or
        CudaError.
        """
        shape, features = architecture, LayerFeatures.of(architecture)
        assert all(cut.fits(most, features) for most, cut in cuts.items())
        assert cache.block_size % PAGE == 0
        self._gpu, self._shape, self._cuts = gpu, architecture, cuts
        self._rotary, self._work = rotary, work
        self._kernels = load_layers(gpu, cuts, features, watchdog_cycles)
        device, most, layers = cache.pages.device, max(cuts), weights.layers

        def zeros(*size: int, kind: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(size, dtype=kind, device=device)

        self._qkv = zeros(most, (shape.heads + 2 * shape.kv_heads) * HEAD_DIM)
        self._squares = zeros(shape.hidden_size // 16, most)
        self._partial = zeros(BLOCKS, 2, MOST_GROUP, HEAD_DIM)
        self._log_sums = zeros(BLOCKS, 2, MOST_GROUP)
        self._groups_arrived = zeros(most * shape.kv_heads, kind=torch.int32)
        self._arrived = zeros(2, kind=torch.int64)
        self._error = zeros(1, kind=torch.int32)
        norms = [norm for layer in layers for norm in (layer.input_norm, layer.inner_norm)]
        self._gains = torch.stack(norms).float()
        heads = [norm for each in layers for norm in (each.q_norm, each.k_norm) if norm is not None]
        self._head_gains = torch.stack(heads) if heads else None
        pages = [each for number in range(len(layers)) for each in cache.layer(number)]
        self._pages = torch.tensor([each.data_ptr() for each in pages]).to(device)
        self._page_maps = _on_device(
            (windows_map(gpu, each.view(-1, HEAD_DIM), PAGE, HEAD_DIM // WINDOW) for each in pages),
            device,
        )
        self._weight_maps = {
            windows: _on_device(_weight_maps(gpu, layers, features, windows), device)
            for windows in {cut.windows for cut in cuts.values()}
        }
        self._layers, self._block_size = len(layers), cache.block_size

    def takes(self, rows: int) -> bool:
        """Is one of its cuts for so many?"""
        return self._most(rows) is not None

    def __call__(self, inputs: StepInputs, rows: int) -> None:
        """As `StepLayers`, on PyTorch's current stream. Raises CudaError."""
        most = self._most(rows)
        assert most is not None
        cut = self._cuts[most]
        addresses = self._weight_maps[cut.windows].data_ptr(), self._page_maps.data_ptr()
        self._kernels[most].launch(
            BLOCKS,
            torch.cuda.current_stream().cuda_stream,
            self._input_maps(rows, most, cut),
            *map(ctypes.c_uint64, addresses),
            self._call(inputs, rows, cut),
            chained=False,
            cooperative=True,
        )

    def error(self) -> int:
        """What a kernel with a watchdog has waited for too long, not 0: in its lowest byte 1 for a
        barrier, 2 for other blocks; above that the warp, and from bit 16 on the block."""
        return int(self._error.item())

    def _most(self, rows: int) -> int | None:
        return min((most for most in self._cuts if rows <= most), default=None)

    def _input_maps(self, rows: int, most: int, cut: LayersCut) -> Map:
        """Of what each product multiplies. Rows beyond the step's are read as zeros."""
        work = self._work
        inputs = work.normed, work.mixed, work.normed, work.inner
        maps = [
            windows_map(self._gpu, x[:rows], most, windows)
            for x, windows in zip(inputs, cut.windows, strict=True)
        ]
        return (ctypes.c_uint64 * (len(maps) * MAP_WORDS))(*itertools.chain(*maps))

    def _call(self, inputs: StepInputs, rows: int, cut: LayersCut) -> LayersCall:
        shape, work = self._shape, self._work
        of_attention = {
            **{"qkv": self._qkv, "cos": self._rotary.cos, "sin": self._rotary.sin},
            **{"lengths": inputs.lengths, "tables": inputs.block_tables},
            **{"partial": self._partial, "log_sums": self._log_sums},
            **{"arrived": self._groups_arrived, "out": work.mixed},
        }
        attention = AttentionCall(
            **{name: tensor.data_ptr() for name, tensor in of_attention.items()},
            scale=HEAD_DIM**-0.5 * math.log2(math.e),
            epsilon=shape.rms_norm_eps,
            parts=1,
            part_rows=rows,
            rows=rows,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            max_blocks=inputs.block_tables.shape[1],
            block_size=self._block_size,
            splits=1,
        )
        arrays = {
            **{"gains": self._gains, "residual": work.residual, "normed": work.normed},
            **{"inner": work.inner, "squares": self._squares, "arrived": self._arrived},
            **{"head_gains": self._head_gains, "pages": self._pages, "error": self._error},
        }
        return LayersCall(
            **{name: tensor.data_ptr() for name, tensor in arrays.items() if tensor is not None},
            attention=attention,
            layers=self._layers,
            blocks=BLOCKS,
            early=cut.early,
            flight=cut.flight,
            paged=cut.paged,
        )


def load_layers(
    gpu: Gpu,
    cuts: Mapping[int, LayersCut],
    features: LayerFeatures,
    watchdog_cycles: int | None = None,
) -> dict[int, ChainedKernel]:
    """Their kernels, by the most rows; the `gpu` owns them. Raises DeviceCodeError or CudaError."""
    program = gpu.load(
        "layers_gpu.cu",
        (AttentionCall, LayersCall),
        prologue=layers_code(cuts.items(), features, watchdog_cycles),
        of_this_architecture=True,
    )
    return {
        most: ChainedKernel(
            gpu,
            program.function(cut.kernel_name(most)),
            threads=THREADS,
            shared_bytes=cut.shared_bytes(most, features) + ALIGNMENT,
        )
        for most, cut in cuts.items()
    }


def _weight_maps(
    gpu: Gpu,
    layers: Iterable[LayerWeights],
    features: LayerFeatures,
    windows: tuple[int, int, int, int],
) -> Iterable[Map]:
    """Four a layer; of gate and up the rows of both."""
    qkv, output, gate_up, down = windows
    for layer in layers:
        yield windows_map(gpu, layer.qkv, features.qkv, qkv)
        yield windows_map(gpu, layer.output, features.output, output)
        yield windows_map(gpu, layer.gate_up, features.gate_up, gate_up, parts=2)
        yield windows_map(gpu, layer.down, features.down, down)


def _on_device(maps: Iterable[Map], device: torch.device) -> Tensor:
    words = bytearray(b"".join(map(bytes, maps)))
    return torch.frombuffer(words, dtype=torch.uint8).to(device)
