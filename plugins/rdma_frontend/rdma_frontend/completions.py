"""Completion queues: one that is asked when it is readable, and one with a thread of its own."""

from __future__ import annotations

import os
import select
import threading
import time
from pathlib import Path
from typing import Any

from blink_persistent.agent.port import PortLost
from rdma_frontend.device import Device, refusals_named
from rdma_frontend.verbs import verbs

_EVENTS = "anon_inode:[infinibandevent]"
_AT_ONCE = 64
_making = threading.Lock()


class CompletionQueue:
    """Completions of a device, with a descriptor that is readable when there are some.

    No call waits, since pyverbs' own waiting call would stop every thread of the process.
    """

    def __init__(self, device: Device, entries: int) -> None:
        """Raises Unavailable."""
        with refusals_named(f"RDMA device {device.name!r}: no completion queue"):
            self._make(device, entries)

    def _make(self, device: Device, entries: int) -> None:
        v = verbs()
        with _making:
            before = _event_descriptors()
            self._channel = v.CompChannel(device.context)
            # pyverbs tells the channel's descriptor in its later versions only.
            found: int | None = getattr(self._channel, "fd", None)
            self.fd = found if found is not None else (_event_descriptors() - before).pop()
        self.queue = v.CQ(device.context, entries, None, self._channel, 0)
        self.queue.req_notify()

    def take(self) -> list[Any]:
        """Completions since the last call; `fd` must be readable."""
        self._channel.get_cq_event(self.queue)
        self.queue.ack_events(1)
        self.queue.req_notify()  # before the look, so that what comes after it is told
        return self.poll()

    def poll(self) -> list[Any]:
        """Completions that are there now."""
        found: list[Any] = []
        while batch := self.queue.poll(_AT_ONCE)[1]:
            found += batch
        return found

    def close(self) -> None:
        """Its queue pairs are destroyed already."""
        self.queue.close()
        self._channel.close()


class Progress:
    """How far a connection's work is: a thread drains its completions, others wait for numbers.

    Work carries ascending numbers; a connection completes it in order.
    """

    def __init__(self, device: Device, entries: int) -> None:
        self._completions = CompletionQueue(device, entries)
        self.queue = self._completions.queue
        self.done = 0
        """The last number known to be complete."""
        self._fault = ""
        self._changed = threading.Condition()
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._drain, name="completions", daemon=True)
        self._thread.start()

    def wait(self, number: int, seconds: float) -> None:
        """Return when work of this number is complete. Raises PortLost, from then on always:
        work has failed, or is late."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self.done < number:
                if self._fault:
                    raise PortLost(self._fault)
                if not self._changed.wait(deadline - time.monotonic()):
                    self._fault = f"the other side has not answered for {seconds:g} s"

    def check(self) -> None:
        """Raises PortLost where work has failed."""
        if self._fault:
            raise PortLost(self._fault)

    def close(self) -> None:
        """End the thread; the queue's connections are destroyed already."""
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        os.close(self._stop)
        self._completions.close()

    def _drain(self) -> None:
        while self._stop not in select.select([self._completions.fd, self._stop], [], [])[0]:
            completions = self._completions.take()
            with self._changed:
                for completion in completions:
                    if completion.status == 0:
                        self.done = max(self.done, completion.wr_id)
                    elif not self._fault:  # the first names the cause, the rest were flushed
                        self._fault = f"RDMA failed: {_status(completion.status)}"
                self._changed.notify_all()


def _status(code: int) -> str:
    """What a completion's status means."""
    e = verbs().e
    known = {
        e.IBV_WC_REM_ACCESS_ERR: "the region was revoked, or its key is wrong",
        e.IBV_WC_RETRY_EXC_ERR: "the other side does not answer",
        e.IBV_WC_RNR_RETRY_EXC_ERR: "the other side takes nothing",
        e.IBV_WC_WR_FLUSH_ERR: "the connection was ended",
    }
    return f"{known.get(code, 'an error of the device')} (completion status {code})"


def _event_descriptors() -> set[int]:
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if str(entry.readlink()) == _EVENTS:
                found.add(int(entry.name))
        except OSError:  # the descriptor of this very listing
            continue
    return found
