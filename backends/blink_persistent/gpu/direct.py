"""A GPU's memory for network cards to reach: GPUDirect RDMA, by dma-buf or by nvidia-peermem.

Not run on hardware yet; see docs/dpu.md.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from blink_persistent.gpu.driver import Gpu
from blink_server.errors import Unavailable

_MODULES = Path("/sys/module")
_PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")  # today's name, and that of MLNX_OFED's own


@dataclass(frozen=True, slots=True)
class DirectMemory:
    """Device memory that a card may be let into.

    `address` is this process's. `dma_buf` is a descriptor, which `close` closes, and None where
    nvidia-peermem alone is left. The memory may be freed only when no region is made of it any
    more.
    """

    address: int
    dma_buf: int | None

    def close(self) -> None:
        """Close the descriptor; once."""
        if self.dma_buf is not None:
            os.close(self.dma_buf)


def open_to_cards(
    gpu: Gpu, address: int, nbytes: int, *, modules: Path | None = None
) -> DirectMemory:
    """`nbytes` of device memory from `address` on, both multiples of the host's page size.

    Raises Unavailable where no card can reach it, and where the GPU would show a card's writes to
    its own kernels in another order than they came.
    """
    driver = gpu.driver
    device = gpu.call("cuCtxGetDevice")
    attributes = driver.CUdevice_attribute

    def attribute(name: str) -> int:
        return int(gpu.call("cuDeviceGetAttribute", getattr(attributes, name), device))

    found = attribute("CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING")
    needed = driver.CUGPUDirectRDMAWritesOrdering.CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER
    if found < int(needed):
        raise Unavailable(
            f"this GPU gives RDMA writes no order (writes ordering {found}, {int(needed)} is "
            "needed): its scheduler could see a request's ticket before its record"
        )
    if attribute("CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED"):
        kind = driver.CUmemRangeHandleType.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
        handle = gpu.call("cuMemGetHandleForAddressRange", address, nbytes, kind, 0)
        return DirectMemory(address, int(handle))
    modules = modules or _MODULES
    if any((modules / name).exists() for name in _PEER_MODULES):
        return DirectMemory(address, None)
    raise Unavailable(
        "no network card can reach this GPU's memory: its driver exports no dma-buf (that needs "
        "NVIDIA's open kernel modules and Linux 5.12 or later), and nvidia-peermem is not loaded "
        "(it comes with NVIDIA's driver: modprobe nvidia-peermem)"
    )
