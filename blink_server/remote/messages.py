"""What a frontend and the door of a host say to each other, beside the catalog's own messages.

One JSON line each, over TLS. A connection begins with `Hello`, answered by `Welcome` or `Refused`,
and then has one purpose:

- *follow*: as a worker follows its provisioner: `RegisterWorker`, then `CatalogUpdate` and so on;
- *fetch*: `Fetch` any number of times, each answered by a `Part`;
- *attach*: `Attach`, answered by `Attached`, then `Say` both ways between an agent and its gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal


@dataclass(frozen=True, slots=True)
class Hello:
    """A connection's first line."""

    TYPE: ClassVar[str] = "hello"
    token: str
    frontend: str  # its name, the same in all its connections
    purpose: Literal["follow", "fetch", "attach"]


@dataclass(frozen=True, slots=True)
class Welcome:
    """The token is right."""

    TYPE: ClassVar[str] = "welcome"


@dataclass(frozen=True, slots=True)
class Refused:
    """No, and why; the connection ends."""

    TYPE: ClassVar[str] = "refused"
    reason: str


@dataclass(frozen=True, slots=True)
class Fetch:
    """Bytes of a file that the catalog names, from `offset` on."""

    TYPE: ClassVar[str] = "fetch"
    sha256: str
    offset: int


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of a file in base64; `size` is the whole file's."""

    TYPE: ClassVar[str] = "part"
    data: str
    size: int


@dataclass(frozen=True, slots=True)
class Attach:
    """So many ranges of an endpoint's ring; or, with the `session` of an earlier `Attached`, those
    that it still has."""

    TYPE: ClassVar[str] = "attach"
    transport: str
    model: str
    version: int
    epoch: int
    ranges: int
    layout_hash: str
    session: str = ""


@dataclass(frozen=True, slots=True)
class Attached:
    """The ranges are this session's."""

    TYPE: ClassVar[str] = "attached"
    session: str


@dataclass(frozen=True, slots=True)
class Say:
    """A line of an agent's to its gate, or the other way round."""

    TYPE: ClassVar[str] = "say"
    body: Mapping[str, Any]
