"""cuBLAS, as PyTorch uses it, beside a resident scheduler."""

from __future__ import annotations

import ctypes

import torch


def cublas() -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    """The library that PyTorch has loaded, and this thread's handle."""
    name = f"libcublas.so.{str(torch.version.cuda).partition('.')[0]}"
    return ctypes.CDLL(name), ctypes.c_void_p(torch.cuda.current_blas_handle())


def leave_multiprocessors(count: int) -> None:
    """Have cuBLAS choose its kernels on this thread for a GPU with so many multiprocessors less.

    Else their last blocks would wait for a multiprocessor that the scheduler keeps. PyTorch has one
    handle a thread; the setting lasts as long as the handle (cublasSetSmCountTarget).
    """
    processors = torch.cuda.get_device_properties().multi_processor_count
    library, handle = cublas()
    status = library.cublasSetSmCountTarget(handle, ctypes.c_int(processors - count))
    if status != 0:
        raise RuntimeError(f"cublasSetSmCountTarget({processors - count}): status {status}")


def load_products(device: torch.device) -> None:
    """Compute one product of each kind that steps have cuBLAS compute.

    The first of a process has the library load what takes 50 to 130 ms on an H200: better before
    any version is in service than while another one is loaded beside it.
    """
    x = torch.ones(64, 64, dtype=torch.bfloat16, device=device)
    for dtype in (torch.bfloat16, torch.float32):
        torch.mm(x, x, out_dtype=dtype, out=torch.empty(64, 64, dtype=dtype, device=device))
