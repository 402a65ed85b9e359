"""An RDMA device, and the reliable connections that are made on it."""

from __future__ import annotations

import contextlib
import mmap
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from blink_persistent.agent.port import Bytes
from blink_server.errors import Unavailable
from rdma_frontend.verbs import verbs

PORT = 1
_GIDS = 64
_TIMEOUT = 16  # 4.096 us x 2^16: a lost packet is sent again after 0.27 s
_RETRIES = 6  # finite: 7 is for ever on some devices
_NOT_READY_TIMER, _NOT_READY_RETRIES = 12, 7  # the receiver has no buffer: 0.64 ms, until it has
_READS_AT_ONCE = 16


@contextlib.contextmanager
def refusals_named(what: str) -> Iterator[None]:
    """Turn an error of verbs inside into Unavailable that begins with `what`."""
    try:
        yield
    except verbs().PyverbsError as error:
        raise Unavailable(f"{what}: {error}") from error


class Device:
    """A device's first port, which must speak RoCE v2. `close` ends all that was made on it."""

    def __init__(self, name: str) -> None:
        """Raises Unavailable naming the device and what is wrong with it."""
        v = verbs()
        self.name = name
        with refusals_named(f"RDMA device {name!r}"):
            self.context = v.Context(name=name)
            port = self.context.query_port(PORT)
            self.reads_at_once = min(_READS_AT_ONCE, self.context.query_device().max_qp_rd_atom)
            self.gid_index, self.gid = _roce_v2_gid(name, self.context)
            self.protection = v.PD(self.context)
        if port.state != v.e.IBV_PORT_ACTIVE:
            raise Unavailable(f"RDMA device {name!r}: its port is not active")
        self.mtu = int(port.active_mtu)

    def register(self, address: int, length: int, access: int) -> Any:
        """A memory region over this process's memory. Raises Unavailable.

        Never with relaxed ordering: the ring rests on the order of writes.
        """
        what = f"RDMA device {self.name!r} cannot register {length} bytes (see ulimit -l)"
        with refusals_named(what):
            return verbs().MR(self.protection, length, access, address=address)

    def close(self) -> None:
        """Queue pairs, regions and queues first, then the device."""
        self.context.close()


class Buffer:
    """Registered memory of this process's own."""

    def __init__(self, device: Device, length: int) -> None:
        self.bytes: Bytes = np.frombuffer(mmap.mmap(-1, length), np.uint8)
        self.address = int(self.bytes.ctypes.data)
        self._region = device.register(self.address, length, verbs().e.IBV_ACCESS_LOCAL_WRITE)
        self.key = int(self._region.lkey)


class Connection:
    """One end of a reliable connection: a queue pair of `device`."""

    def __init__(
        self, device: Device, queue: Any, *, sends: int, receives: int, access: int
    ) -> None:
        """`queue` takes completions of both directions; `access` is what the peer may do.

        Raises Unavailable.
        """
        v = verbs()
        self._device, self._access = device, access
        self._psn = secrets.randbits(24)  # a packet of an earlier connection fits none of it
        capacity = v.QPCap(max_send_wr=sends, max_recv_wr=receives, max_send_sge=1, max_recv_sge=1)
        attributes = v.QPInitAttr(
            qp_type=v.e.IBV_QPT_RC, scq=queue, rcq=queue, cap=capacity, sq_sig_all=0
        )
        with refusals_named(f"RDMA device {device.name!r}: no queue pair"):
            self.pair = v.QP(device.protection, attributes)
            self.pair.to_init(self._attributes())

    def name(self) -> dict[str, Any]:
        """What the peer must know, as JSON."""
        device = self._device
        return {
            "number": self.pair.qp_num,
            "gid": device.gid,
            "psn": self._psn,
            "mtu": device.mtu,
            "reads_at_once": device.reads_at_once,
        }

    def connect(self, peer: Mapping[str, Any]) -> None:
        """Reach the peer of this `name`. Raises Unavailable, ValueError for a name that is none."""
        v, attributes = verbs(), self._attributes()
        try:
            attributes.path_mtu = min(self._device.mtu, int(peer["mtu"]))
            attributes.dest_qp_num = int(peer["number"])
            attributes.rq_psn, attributes.sq_psn = int(peer["psn"]), self._psn
            reads = max(1, min(self._device.reads_at_once, int(peer["reads_at_once"])))
            attributes.max_rd_atomic = attributes.max_dest_rd_atomic = reads
            attributes.min_rnr_timer, attributes.rnr_retry = _NOT_READY_TIMER, _NOT_READY_RETRIES
            attributes.timeout, attributes.retry_cnt = _TIMEOUT, _RETRIES
            route = v.GlobalRoute(
                dgid=v.GID(str(peer["gid"])), sgid_index=self._device.gid_index, hop_limit=64
            )
            attributes.ah_attr = v.AHAttr(port_num=PORT, is_global=1, gr=route)
        except (KeyError, TypeError, ValueError, OverflowError, v.PyverbsError) as error:
            raise ValueError(f"no name of a queue pair: {peer!r} ({error!r})") from None
        with refusals_named(f"the queue pair {peer!r} cannot be reached"):
            self.pair.to_rts(attributes)

    def destroy(self) -> None:
        """Let nothing of the peer's land any more; what is in the queue ends with an error."""
        v = verbs()
        with contextlib.suppress(v.PyverbsError):  # in ERR already
            self.pair.modify(v.QPAttr(qp_state=v.e.IBV_QPS_ERR), v.e.IBV_QP_STATE)
        self.pair.close()

    def _attributes(self) -> Any:
        attributes = verbs().QPAttr(port_num=PORT)
        attributes.qp_access_flags = self._access
        return attributes


def _roce_v2_gid(name: str, context: Any) -> tuple[int, str]:
    """(index, GID) of the port's first RoCE v2 address, IPv4 before IPv6. Raises Unavailable."""
    types = Path(f"/sys/class/infiniband/{name}/ports/{PORT}/gid_attrs/types")
    found = []
    for index in range(_GIDS):
        try:
            kind = (types / str(index)).read_text().strip()
        except OSError:  # an index without an address
            continue
        if kind == "RoCE v2":
            gid = str(context.query_gid(PORT, index).gid)
            found.append((not gid.startswith("0000:0000:0000:0000:0000:ffff:"), index, gid))
    if not found:
        raise Unavailable(f"RDMA device {name!r}: its port has no RoCE v2 address")
    _, index, gid = min(found)
    return index, gid
