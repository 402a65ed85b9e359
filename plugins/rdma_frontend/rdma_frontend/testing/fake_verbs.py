"""Verbs without a device: what this package uses of pyverbs, over this process's own memory.

    with use_fake_verbs() as fake: ...

Work is done when the completion queue is polled, in the order in which it was posted. Keys, bounds,
access, the depth of queues and the states of queue pairs are checked as a device checks them; the
first fault breaks the connection.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import os
import threading
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

OK, FLUSHED, REMOTE_ACCESS, RETRIES_EXCEEDED = 0, 5, 10, 12
READ, WRITE, WRITE_WITH_IMMEDIATE = 4, 0, 1
LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ = 1, 2, 4
SIGNALED = 2


class FakeVerbsError(Exception):
    """Stands for pyverbs' error."""


class _Region:
    def __init__(self, fake: FakeVerbs, address: int, length: int, access: int) -> None:
        self._fake, self.address, self.length, self.access = fake, address, length, access
        self.lkey = self.rkey = next(fake.numbers)
        fake.regions[self.rkey] = self

    def close(self) -> None:
        self._fake.regions.pop(self.rkey, None)
        self._fake.events.append("deregistered")


class _Channel:
    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC)

    def get_cq_event(self, _queue: object) -> None:
        os.eventfd_read(self.fd)

    def close(self) -> None:
        os.close(self.fd)


class _Queue:
    def __init__(self, fake: FakeVerbs, channel: _Channel) -> None:
        self._fake, self._channel = fake, channel
        self.done: deque[SimpleNamespace] = deque()
        self.pairs: list[_Pair] = []

    def wake(self) -> None:
        os.eventfd_write(self._channel.fd, 1)

    def complete(self, number: int, status: int) -> None:
        self.done.append(SimpleNamespace(wr_id=number, status=status))

    def poll(self, most: int) -> tuple[int, list[SimpleNamespace]]:
        with self._fake.lock:
            for pair in list(self.pairs):
                pair.work()
            found = [self.done.popleft() for _ in range(min(most, len(self.done)))]
        return len(found), found

    def req_notify(self) -> None: ...

    def ack_events(self, _count: int) -> None: ...

    def close(self) -> None: ...


class _Pair:
    def __init__(self, fake: FakeVerbs, queue: _Queue, sends: int, receives: int) -> None:
        self._fake, self._queue = fake, queue
        self._sends, self._most_receives = sends, receives
        self.qp_num = next(fake.numbers)
        self.peer = 0
        self.access = 0
        self.broken = False
        self.receives = 0
        self.posted: deque[Any] = deque()
        self._unreported = 0  # done, but nobody was told: they take room in the queue
        queue.pairs.append(self)
        fake.pairs[self.qp_num] = self

    def to_init(self, attributes: Any) -> None:
        self.access = attributes.qp_access_flags

    def to_rts(self, attributes: Any) -> None:
        self.peer = attributes.dest_qp_num

    def modify(self, *_: object) -> None:
        self.broken = True
        self._fake.events.append("to ERR")

    def post_recv(self, _request: object) -> None:
        if self.receives >= self._most_receives:
            raise FakeVerbsError("the receive queue is full")
        self.receives += 1

    def post_send(self, request: Any) -> None:
        with self._fake.lock:
            self._fake.chains += 1
            while request is not None:
                if len(self.posted) + self._unreported >= self._sends:
                    raise FakeVerbsError("the send queue is full")
                self.posted.append(request)
                request = request.next_wr
        self._queue.wake()

    def work(self) -> None:
        while self.posted and not self._fake.stalled:
            request = self.posted.popleft()
            status = FLUSHED if self.broken else self._fake.perform(self, request)
            self.broken = self.broken or status != OK
            self._unreported += 1
            if status != OK or request.send_flags & SIGNALED:
                self._unreported = 0
                self._queue.complete(request.wr_id, status)

    def arrived(self) -> None:
        self.receives -= 1
        self._queue.complete(0, OK)
        self._queue.wake()

    def close(self) -> None:
        self._fake.pairs.pop(self.qp_num, None)
        self._fake.events.append("destroyed")
        if self in self._queue.pairs:
            self._queue.pairs.remove(self)


class FakeVerbs:
    """The namespace that `verbs()` returns. Counts what went over the wire; `events` are the ends
    of queue pairs and regions, in order. While `stalled` no work is done."""

    PyverbsError = FakeVerbsError

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.numbers = itertools.count(1)
        self.regions: dict[int, _Region] = {}
        self.pairs: dict[int, _Pair] = {}
        self.events: list[str] = []
        self.stalled = False
        self.chains = self.reads = self.writes = self.signalled = 0
        self.e = SimpleNamespace(
            IBV_PORT_ACTIVE=4, IBV_QPT_RC=2, IBV_QPS_ERR=6, IBV_QP_STATE=1,
            IBV_ACCESS_LOCAL_WRITE=LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE=REMOTE_WRITE,
            IBV_ACCESS_REMOTE_READ=REMOTE_READ, IBV_SEND_SIGNALED=SIGNALED,
            IBV_WR_RDMA_READ=READ, IBV_WR_RDMA_WRITE=WRITE,
            IBV_WR_RDMA_WRITE_WITH_IMM=WRITE_WITH_IMMEDIATE,
            IBV_WC_REM_ACCESS_ERR=REMOTE_ACCESS, IBV_WC_RETRY_EXC_ERR=RETRIES_EXCEEDED,
            IBV_WC_RNR_RETRY_EXC_ERR=13, IBV_WC_WR_FLUSH_ERR=FLUSHED,
        )  # fmt: skip

    def Context(self, name: str) -> Any:  # noqa: N802 (pyverbs' name)
        """Any device is there but "none"."""
        if name == "none":
            raise FakeVerbsError("no such device")
        port = SimpleNamespace(state=4, active_mtu=5)
        return SimpleNamespace(
            query_port=lambda _port: port,
            query_device=lambda: SimpleNamespace(max_qp_rd_atom=16),
            close=lambda: None,
        )

    def PD(self, _context: object) -> object:  # noqa: N802
        return object()

    def MR(self, _domain: object, length: int, access: int, address: int) -> _Region:  # noqa: N802
        return _Region(self, address, length, access)

    def DmaBufMR(  # noqa: N802
        self, _domain: object, length: int, access: int, file: int, offset: int
    ) -> _Region:
        """Over a file of memory."""
        memory = np.frombuffer(mmap.mmap(file, 0), np.uint8)
        region = _Region(self, memory.ctypes.data + offset, length, access)
        region.memory, region.offset = memory, offset  # type: ignore[attr-defined]
        return region

    def CompChannel(self, _context: object) -> _Channel:  # noqa: N802
        return _Channel()

    def CQ(self, *given: Any) -> _Queue:  # noqa: N802
        _context, _entries, _user, channel, _vector = given
        return _Queue(self, channel)

    def QPCap(self, **given: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(**given)

    def QPInitAttr(self, **given: Any) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(**given)

    def QPAttr(self, **given: Any) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(**given)

    def QP(self, _domain: object, given: Any) -> _Pair:  # noqa: N802
        return _Pair(self, given.scq, given.cap.max_send_wr, given.cap.max_recv_wr)

    def GID(self, text: str) -> str:  # noqa: N802
        return text

    def GlobalRoute(self, **given: Any) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(**given)

    def AHAttr(self, **given: Any) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(**given)

    def SGE(self, address: int, length: int, key: int) -> tuple[int, int, int]:  # noqa: N802
        return address, length, key

    def RecvWR(self, **_given: Any) -> object:  # noqa: N802
        return object()

    def SendWR(self, **given: Any) -> SimpleNamespace:  # noqa: N802
        request = SimpleNamespace(wr_id=0, next_wr=None, **given)
        request.set_wr_rdma = lambda key, address: setattr(request, "there", (key, address))
        return request

    def perform(self, pair: _Pair, request: Any) -> int:
        """Do one piece of work; its completion's status."""
        peer = self.pairs.get(pair.peer)
        if peer is None or peer.broken:
            return RETRIES_EXCEEDED
        (here, length, _), (key, there) = request.sg[0], request.there
        region, reading = self.regions.get(key), request.opcode == READ
        wanted = REMOTE_READ if reading else REMOTE_WRITE
        if region is None or not wanted & region.access & peer.access:
            return REMOTE_ACCESS
        there += region.address - getattr(region, "offset", region.address)
        if not region.address <= there <= there + length <= region.address + region.length:
            return REMOTE_ACCESS
        if reading:
            self.reads += 1
            ctypes.memmove(here, there, length)
        else:
            self.writes += 1
            ctypes.memmove(there, here, length)
        self.signalled += bool(request.send_flags & SIGNALED)
        if request.opcode == WRITE_WITH_IMMEDIATE:
            peer.arrived()
        return OK


@contextlib.contextmanager
def use_fake_verbs() -> Iterator[FakeVerbs]:
    """Have this package's modules use fake verbs; every device has a RoCE v2 address."""
    fake = FakeVerbs()
    found = 0, "0000:0000:0000:0000:0000:ffff:c000:0201"
    with contextlib.ExitStack() as patched:
        for module in ("completions", "device", "gpu_end", "host", "port"):
            module_verbs = mock.patch(f"rdma_frontend.{module}.verbs", return_value=fake)
            patched.enter_context(module_verbs)
        patched.enter_context(mock.patch("rdma_frontend.device._roce_v2_gid", return_value=found))
        yield fake
