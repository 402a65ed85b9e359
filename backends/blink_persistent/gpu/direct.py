"""A ring in GPU memory for a network card to reach: GPUDirect RDMA by dma-buf.

Not run on hardware yet; see docs/dpu.md.
"""

from __future__ import annotations

from blink_persistent.gpu.driver import Gpu
from blink_server.errors import Unavailable


def export_dma_buf(gpu: Gpu, address: int, nbytes: int) -> int:
    """A descriptor of the dma-buf over `nbytes` of device memory from `address` on.

    The caller closes it; the memory may be freed only after every region made of it is gone. Both
    numbers are multiples of the host's page size. Raises Unavailable where the GPU cannot be
    reached so, or would show a card's writes to its own kernels in another order than they came.
    """
    driver = gpu.driver
    device = gpu.call("cuCtxGetDevice")
    attributes = driver.CUdevice_attribute

    def attribute(name: str) -> int:
        return int(gpu.call("cuDeviceGetAttribute", getattr(attributes, name), device))

    if not attribute("CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED"):
        raise Unavailable(
            "this GPU's driver exports no dma-buf: GPUDirect RDMA needs the open kernel modules "
            "and Linux 5.12 or later"
        )
    found = attribute("CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING")
    needed = driver.CUGPUDirectRDMAWritesOrdering.CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER
    if found < int(needed):
        raise Unavailable(
            f"this GPU gives RDMA writes no order (writes ordering {found}, {int(needed)} is "
            "needed): its scheduler could see a request's ticket before its record"
        )
    kind = driver.CUmemRangeHandleType.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
    return int(gpu.call("cuMemGetHandleForAddressRange", address, nbytes, kind, 0))
