"""What the supervisors of one server share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from blink_server.backend import ModelVersion
from blink_server.hookspecs import TokenizerLoader
from blink_server.messages import EndpointKey
from blink_server.model_events import ModelStateChange
from blink_server.repository.admission import Admission
from blink_server.runtime_dir import RuntimeDirectory


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds: how long a load may take, the restart back-off, how long an end may take.

    A runner that has served for `healthy` starts the back-off afresh. `drain`: how long requests
    in flight of a version that is unloaded may go on. `parallel_loads` load at a time.
    """

    load: float = 600.0
    first_retry: float = 1.0
    longest_retry: float = 60.0
    healthy: float = 60.0
    kill_grace: float = 5.0
    drain: float = 300.0
    parallel_loads: int = 4


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the supervisors of one server share.

    `loading` is held during a load; `tokenizers` are the plugins'. `publish` tells the workers what
    has changed, `observe` the plugins; `released` waits until no worker holds that
    endpoint; `threads` tells the CPU threads that a version may have, if it is loaded now;
    `reselect` states anew what is wanted, now that a generation is broken or no longer is.
    """

    runtime: RuntimeDirectory
    admission: Admission
    limits: Limits
    loading: asyncio.Semaphore
    tokenizers: Mapping[str, TokenizerLoader]
    publish: Callable[[], Awaitable[None]]
    observe: Callable[[ModelStateChange], None]
    released: Callable[[EndpointKey], Awaitable[None]]
    threads: Callable[[ModelVersion], int]
    reselect: Callable[[], Awaitable[None]]
