"""A ring in GPU memory that another process owns, reached by copies on a stream of the agent's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blink_persistent.agent.port import (
    PADDING,
    Bytes,
    PortLost,
    Region,
    Span,
    header_of,
    parts,
    place,
)
from blink_persistent.gpu.driver import CudaError, Gpu
from blink_persistent.ring import HEADER

_STAGED = 1 << 20  # bytes of writes under way


class CudaPort:
    """Fulfils `RingPort`. Copies run one after the other on one stream, beside a resident
    scheduler; they launch no kernel and wait for none."""

    cheap_gap = 1 << 14  # a further copy takes microseconds, in which tens of KiB cross the bus
    longest_read = 1 << 22

    def __init__(self, gpu: Gpu, address: int, *, first_range: int, ranges: int) -> None:
        """`address` is the ring here (`Gpu.open_shared`). `gpu` is closed with the port.

        Raises Unavailable where no such ring is there.
        """
        self._gpu = gpu
        self._address = address
        self._stream = gpu.new_stream()
        self._fetched, _ = gpu.host_memory(self.longest_read + PADDING)
        self._staging, _ = gpu.host_memory(_STAGED)
        self._staged = 0
        header = header_of(self._copy_here([(0, HEADER.itemsize)])[0])
        self.epoch = int(header["epoch"][0])
        self.first_range = first_range
        self.ranges = ranges
        self.all_ranges = int(header["range_count"][0])
        self._parts = parts(header, first_range, ranges)

    @classmethod
    def open(cls, handle: bytes, device: int, *, first_range: int, ranges: int) -> CudaPort:
        """A port to the allocation of this handle (`Gpu.share`). Raises Unavailable, CudaError."""
        gpu = Gpu(device)
        try:
            return cls(gpu, gpu.open_shared(handle), first_range=first_range, ranges=ranges)
        except BaseException:
            gpu.close()
            raise

    def read(self, spans: Sequence[Span]) -> list[Bytes]:
        """Copies, side by side in pinned memory, and one wait for all of them."""
        return self._copy_here(
            [
                (place(self._parts, span.region, span.offset, span.length), span.length)
                for span in spans
            ]
        )

    def write(self, region: Region, offset: int, data: Bytes) -> None:
        """Start a copy from pinned memory; the stream keeps the order of the calls."""
        start = place(self._parts, region, offset, data.nbytes)
        for first in range(0, data.nbytes, _STAGED):
            piece = data[first : first + _STAGED]
            if self._staged + piece.nbytes > _STAGED:
                self._wait()
            staged = self._staging[self._staged : self._staged + piece.nbytes]
            staged[:] = piece
            self._call(
                "cuMemcpyHtoDAsync",
                self._address + start + first,
                staged.ctypes.data,
                piece.nbytes,
                self._stream,
            )
            self._staged += piece.nbytes

    def post(self) -> None:
        """The copies are under way already."""

    def close(self) -> None:
        """Wait for what is under way and give everything back."""
        try:
            self._wait()
        finally:
            self._gpu.close()

    def _copy_here(self, places: Sequence[tuple[int, int]]) -> list[Bytes]:
        """Buffers with (start, length) of the ring each."""
        buffers, at = [], 0
        for start, length in places:
            buffer = self._fetched[at : at + length]
            if buffer.nbytes < length:
                raise ValueError(f"spans of one read have at most {self.longest_read} bytes")
            if length:
                self._call(
                    "cuMemcpyDtoHAsync",
                    buffer.ctypes.data,
                    self._address + start,
                    length,
                    self._stream,
                )
            buffers.append(buffer)
            at += -(-length // 8) * 8
        self._wait()
        return buffers

    def _wait(self) -> None:
        self._call("cuStreamSynchronize", self._stream)
        self._staged = 0

    def _call(self, function: str, *arguments: Any) -> None:
        try:
            self._gpu.call(function, *arguments)
        except CudaError as error:
            raise PortLost(f"the GPU's ring is lost: {error}") from error
