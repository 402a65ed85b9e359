"""An agent on a thread of its own, for tests."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from blink_persistent.agent.agent import Agent
from blink_persistent.agent.port import PortLost, RingPort
from blink_persistent.testing.scripted_shape import ScriptedShape

_WAIT_SECONDS = 20.0


def lease_limits(shape: ScriptedShape) -> Mapping[str, Any]:
    """What a runner of this shape tells owners of ranges."""
    return {
        "context_length": shape.context_length,
        "vocabulary_size": shape.vocabulary_size,
        "eos_token_ids": [shape.eos_token_id],
        "max_queue": 4096,
        "max_rows": shape.max_rows,
        "kv_blocks": shape.block_count,
        "kv_block_tokens": shape.block_size,
        "graphs": [[key.phase, key.sequences, key.tokens] for key in shape.grid.keys],
    }


class AgentThread:
    """Runs an `Agent` until `close`, or until its port is lost, which is `lost` then."""

    def __init__(
        self, make_port: Callable[[], RingPort], socket_path: Path, limits: Mapping[str, Any]
    ) -> None:
        """`make_port` is called on the agent's thread, which a port belongs to."""
        self.lost: PortLost | None = None
        self._make_port = make_port
        self._socket_path = socket_path
        self._limits = limits
        self._serving = threading.Event()
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="agent")
        self._thread.start()

    def wait_until_serving(self) -> None:
        """Return when workers may connect. Raises TimeoutError."""
        if not self._serving.wait(_WAIT_SECONDS):
            raise TimeoutError("the ring's slots have not become empty")

    def close(self) -> None:
        """End it in order."""
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        os.close(self._stop)

    def _run(self) -> None:
        agent = Agent(
            self._make_port(), self._socket_path, self._limits, on_serving=self._serving.set
        )
        try:
            agent.run([self._stop])
        except PortLost as lost:
            self.lost = lost
        finally:
            agent.close()
