"""What is asked of CUDA for GPUDirect RDMA, without a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blink_persistent.gpu.direct import open_to_cards
from blink_persistent.testing.memory_gpu import DMA_BUF, ORDERING, MemoryGpu
from blink_persistent.testing.scripted_harness import ScriptedHarness
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_server.errors import Unavailable


@pytest.fixture
def gpu() -> Iterator[Any]:
    with ScriptedHarness(ScriptedShape()) as harness:
        yield MemoryGpu(harness.ring_fd)


@pytest.mark.parametrize("ordering", [100, 200])
def test_memory_is_exported_where_writes_keep_their_order(
    gpu: Any, ordering: int, tmp_path: Path
) -> None:
    gpu.attributes[ORDERING] = ordering
    address = gpu.allocate(4096)
    memory = open_to_cards(gpu, address, 4096, modules=tmp_path)
    assert memory.address == address
    assert memory.dma_buf is not None
    assert os.fstat(memory.dma_buf).st_size > 0
    memory.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(memory.dma_buf)


@pytest.mark.parametrize("module", ["nvidia_peermem", "nv_peer_mem"])
def test_without_dma_buf_a_loaded_module_will_do(gpu: Any, tmp_path: Path, module: str) -> None:
    gpu.attributes[DMA_BUF] = 0
    (tmp_path / module).mkdir()
    memory = open_to_cards(gpu, gpu.allocate(4096), 4096, modules=tmp_path)
    assert memory.dma_buf is None


@pytest.mark.parametrize(
    ("attributes", "complaint"),
    [
        ({DMA_BUF: 0}, "no dma-buf .*nvidia-peermem is not loaded .*modprobe nvidia-peermem"),
        ({ORDERING: 0}, "no order .writes ordering 0, 100 is needed"),
    ],
)
def test_what_would_not_work_is_refused(
    gpu: Any, tmp_path: Path, attributes: dict[str, int], complaint: str
) -> None:
    gpu.attributes.update(attributes)
    with pytest.raises(Unavailable, match=complaint):
        open_to_cards(gpu, gpu.allocate(4096), 4096, modules=tmp_path)
