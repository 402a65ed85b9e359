"""A process with a ring and a scheduler on the GPU that offers one range to an agent.

`agent_runner.py SOCKET`: prints "offered", and serves until its standard input ends.
"""

from __future__ import annotations

import sys
from pathlib import Path

from blink_persistent.agent.offer import RingOffer
from blink_persistent.testing.agent_thread import lease_limits
from blink_persistent.testing.device_harness import DeviceHarness
from blink_persistent.testing.scripted_shape import ScriptedShape

SHAPE = ScriptedShape(
    ranges=2, max_rows=64, max_sequences=8, max_prefill_tokens=512, context_length=640,
    block_size=16, block_count=64 * 40 + 1,
)  # fmt: skip


def main() -> None:
    with DeviceHarness(SHAPE, step_ns=1_000_000) as harness:
        harness.scheduler.launch()
        offer = RingOffer(
            Path(sys.argv[1]),
            {
                "transport": "cuda",
                "address": {"handle": harness.gpu.share(harness.ring.address).hex(), "device": 0},
                "first_range": 1,
                "ranges": 1,
                "epoch": SHAPE.epoch,
                "limits": lease_limits(SHAPE),
            },
        )
        offer.start()
        print("offered", flush=True)
        sys.stdin.read()
        offer.close()
        harness.ring.pull(harness.ring.mirror.header)
        print(harness.ring.mirror.field("steps"), flush=True)


if __name__ == "__main__":
    main()
