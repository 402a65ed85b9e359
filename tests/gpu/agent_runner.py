"""A process with a ring and a scheduler on the GPU, offered to agents; run by tests.

`agent_runner.py '{"shape": {...}, "step_ns": n}' SOCKET`: the shape is a `ScriptedShape`'s fields.
The offer is of all ranges but the first. Prints the ring's handle, and serves until its standard
input ends.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from blink_persistent.agent.offer import RingOffer
from blink_persistent.gpu.device_ring import DeviceRing
from blink_persistent.testing.agent_thread import lease_limits
from blink_persistent.testing.device_harness import DeviceHarness
from blink_persistent.testing.scripted_shape import ScriptedShape


def main() -> None:
    asked = json.loads(sys.argv[1])
    shape = ScriptedShape(**asked["shape"])
    with DeviceHarness(shape, step_ns=asked["step_ns"]) as harness:
        assert isinstance(harness.ring, DeviceRing)
        handle = harness.gpu.share(harness.ring.address).hex()
        harness.scheduler.launch()
        offer = RingOffer(
            Path(sys.argv[2]),
            {
                "transport": "cuda",
                "address": {"handle": handle, "device": 0},
                "first_range": 1,
                "ranges": shape.ranges - 1,
                "epoch": shape.epoch,
                "limits": lease_limits(shape),
            },
        )
        offer.start()
        print(handle, flush=True)
        sys.stdin.read()
        offer.close()


if __name__ == "__main__":
    main()
