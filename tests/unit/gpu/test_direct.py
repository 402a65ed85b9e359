"""What is asked of CUDA for GPUDirect RDMA, without a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from blink_persistent.gpu.direct import export_dma_buf
from blink_server.errors import Unavailable

SUPPORTED, ORDERING = "supported", "ordering"


class FakeGpu:
    """Answers with these attributes; descriptor 9 is the dma-buf."""

    driver = SimpleNamespace(
        CUdevice_attribute=SimpleNamespace(
            CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED=SUPPORTED,
            CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING=ORDERING,
        ),
        CUGPUDirectRDMAWritesOrdering=SimpleNamespace(CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER=100),
        CUmemRangeHandleType=SimpleNamespace(CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD=1),
    )

    def __init__(self, **attributes: int) -> None:
        self.attributes = attributes
        self.exported: list[tuple[Any, ...]] = []

    def call(self, function: str, *arguments: Any) -> Any:
        if function == "cuDeviceGetAttribute":
            assert arguments[1] == "device"
            return self.attributes[arguments[0]]
        if function == "cuMemGetHandleForAddressRange":
            self.exported.append(arguments)
            return 9
        assert function == "cuCtxGetDevice"
        return "device"


@pytest.mark.parametrize("ordering", [100, 200])
def test_memory_is_exported_where_writes_keep_their_order(ordering: int) -> None:
    gpu: Any = FakeGpu(supported=1, ordering=ordering)
    assert export_dma_buf(gpu, 1 << 21, 4096) == 9
    assert gpu.exported == [(1 << 21, 4096, 1, 0)]


@pytest.mark.parametrize(
    ("attributes", "complaint"),
    [
        ({"supported": 0, "ordering": 100}, "exports no dma-buf"),
        ({"supported": 1, "ordering": 0}, "no order .writes ordering 0, 100 is needed"),
    ],
)
def test_what_would_not_work_is_refused(attributes: dict[str, int], complaint: str) -> None:
    gpu: Any = FakeGpu(**attributes)
    with pytest.raises(Unavailable, match=complaint):
        export_dma_buf(gpu, 0, 4096)
    assert gpu.exported == []
