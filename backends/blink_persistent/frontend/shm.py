"""The transport `shm`: a ring in this machine's memory, granted by its runner.

    worker -> runner  {"type": "attach", "layout_hash": "<16 hex digits>", "ranges": n,
                       "fenced": bool}
    runner -> worker  {"type": "attached", "range": i, "epoch": e, "bytes": n, "context_length": n,
                       "vocabulary_size": n, "eos_token_ids": [...], "max_queue": n,
                       "max_rows": n, "kv_blocks": n, "kv_block_tokens": n,
                       "graphs": [[phase, sequences, tokens, rows], ...]}
                      with the descriptors [ring memory, scheduler's bell, this range's bell],
                      or {"type": "refused", "reason": "..."}

"ranges" is 1 if left out; of several side by side "range" is the first.

One JSON line each, over a Unix stream socket that stays open: its end tells the worker that the
runner is gone, and the runner that the worker is, whose range it then takes back. Who is "fenced"
has a device write for it, and says {"type": "detach"} once nothing lands any more; without that
its range is taken back when its process has ended.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import json
import mmap
import os
import socket
from collections.abc import Mapping
from typing import Any

from blink_persistent import _native
from blink_persistent.frontend.grant import Grant
from blink_persistent.frontend.session import Bells, RingSession
from blink_persistent.graph_grid import GraphKey
from blink_persistent.ring import LAYOUT_HASH, Ring
from blink_server.backend import Endpoint, ModelVersion, SessionLimits
from blink_server.errors import Unavailable

_HANDSHAKE_SECONDS = 10.0
_LONGEST_LINE = 1 << 20
_DESCRIPTORS = 3


async def connect(version: ModelVersion, endpoint: Endpoint) -> RingSession:
    """Attach to the runner at the endpoint's {"socket": path}.

    Raises `Unavailable` where it cannot be reached, refuses, or has another ring layout.
    """
    name = f"the runner of {version.key}"
    with contextlib.ExitStack() as held:
        connection, answer = await lease(name, endpoint, held)
        return _attach(name, connection, answer, held)


async def lease(
    name: str, endpoint: Endpoint, held: contextlib.ExitStack, **asked: Any
) -> tuple[socket.socket, dict[str, Any]]:
    """(connection, the runner's answer with its "descriptors"); `held` closes all of them.

    `asked` are fields of the first line. The ranges are leased for as long as the connection is
    open. Raises `Unavailable`; `name` is the runner's in the messages.
    """
    with contextlib.ExitStack() as taken:
        connection = taken.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        connection.setblocking(False)
        try:
            async with asyncio.timeout(_HANDSHAKE_SECONDS):
                answer = await _shake_hands(connection, endpoint.address["socket"], taken, asked)
        except TimeoutError:
            raise Unavailable(f"{name} did not answer in {_HANDSHAKE_SECONDS:.0f} s") from None
        except OSError as error:
            raise Unavailable(f"{name}: {error.strerror or error}") from None
        except KeyError as error:
            raise Unavailable(f"{name}: its endpoint has no {error}") from None
        except ValueError as error:
            raise Unavailable(f"{name} gave an unreadable answer: {error}") from None
        if answer.get("type") == "refused":
            raise Unavailable(f"{name} refused: {answer.get('reason')}")
        held.push(taken.pop_all())
        return connection, answer


async def _shake_hands(
    connection: socket.socket, path: str, held: contextlib.ExitStack, asked: Mapping[str, Any]
) -> dict[str, Any]:
    """The runner's answer, "descriptors" among its fields; `held` closes those."""
    loop = asyncio.get_running_loop()
    await loop.sock_connect(connection, path)
    attach = {"type": "attach", "layout_hash": f"{LAYOUT_HASH:016x}", **asked}
    await loop.sock_sendall(connection, json.dumps(attach).encode() + b"\n")
    line, descriptors = b"", array.array("i")
    while not line.endswith(b"\n"):
        await _readable(connection)
        part = _receive(connection, descriptors, held)
        if not part:
            raise ValueError("the connection ended")
        line += part
        if len(line) > _LONGEST_LINE:
            raise ValueError("its line is too long")
    answer = json.loads(line)
    if not isinstance(answer, dict):
        raise ValueError("it is no JSON object")
    return {**answer, "descriptors": descriptors.tolist()}


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection)


def _receive(
    connection: socket.socket, descriptors: array.array[int], held: contextlib.ExitStack
) -> bytes:
    # Not socket.recv_fds: it drops its flags, so that a process started meanwhile would inherit.
    room = socket.CMSG_LEN(_DESCRIPTORS * descriptors.itemsize)
    part, ancillary, _, _ = connection.recvmsg(4096, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received = array.array("i")
            received.frombytes(data[: len(data) - len(data) % received.itemsize])
            for descriptor in received:
                held.callback(os.close, descriptor)
            descriptors.extend(received)
    return part


def _attach(
    name: str, connection: socket.socket, answer: dict[str, Any], held: contextlib.ExitStack
) -> RingSession:
    """The session of an answer; takes over what `held` holds. Raises `Unavailable`."""
    try:
        memory_fd, scheduler_bell, range_bell = answer["descriptors"]
        grant = Grant(
            range=answer["range"],
            limits=SessionLimits(
                context_length=answer["context_length"],
                vocabulary_size=answer["vocabulary_size"],
                eos_token_ids=tuple(answer["eos_token_ids"]),
                max_logprobs=_native.MAX_TOP_LOGPROBS,
            ),
            max_queue=answer["max_queue"],
            max_rows=answer["max_rows"],
            kv_blocks=answer["kv_blocks"],
            kv_block_tokens=answer["kv_block_tokens"],
            graphs=tuple(GraphKey(*key) for key in answer["graphs"]),
        )
        memory = mmap.mmap(memory_fd, answer["bytes"])
        held.callback(_unmap, memory)
        ring = Ring(memory)
        if ring.epoch != answer["epoch"]:
            raise ValueError(f"the ring's epoch is {ring.epoch}, not {answer['epoch']}")
        if not 0 <= grant.range < ring.range_count:
            raise ValueError(f"the ring has no range {grant.range}")
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise Unavailable(f"{name} granted no usable ring: {error!r}") from None
    os.set_blocking(range_bell, False)
    os.set_blocking(scheduler_bell, False)
    held.callback(asyncio.get_running_loop().remove_reader, connection)
    # Closed in reverse order: the connection last, since its end gives the range away.
    resources = held.pop_all()
    try:
        session = RingSession(ring, grant, Bells(scheduler_bell, range_bell), resources.close)
    except BaseException:
        resources.close()
        raise
    _watch(connection, session, f"{name} is gone")
    return session


def _watch(connection: socket.socket, session: RingSession, reason: str) -> None:
    """Tell the session when the connection ends; the runner says nothing else on it."""
    loop = asyncio.get_running_loop()

    def heard() -> None:
        try:
            if connection.recv(4096):
                return
        except BlockingIOError:
            return
        except ConnectionError:
            pass  # reset: as gone as an orderly end
        loop.remove_reader(connection)
        session.lose(reason)

    loop.add_reader(connection, heard)


def _unmap(memory: mmap.mmap) -> None:
    # A view that a traceback still holds keeps the memory mapped until it goes.
    with contextlib.suppress(BufferError):
        memory.close()
