"""A short run with preemption, for tools that watch a whole process; run by the test beside it.

crowded_run.py device|host
"""

from __future__ import annotations

import sys

from blink_persistent.testing.device_harness import DeviceHarness
from blink_persistent.testing.host_driven_harness import HostDrivenHarness
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape

HARNESSES = {"device": DeviceHarness, "host": HostDrivenHarness}
SHAPE = ScriptedShape(max_rows=8, block_count=30)


def main() -> None:
    requests = {slot: ScriptedRequest((5, 6, 7 + slot), max_tokens=30) for slot in range(12)}
    with HARNESSES[sys.argv[1]](SHAPE) as harness:
        harness.submit(requests)
        harness.scheduler.launch()
        harness.wait_for_ends(requests)
        assert harness.ring.field("preemptions") > 0
        for slot, request in requests.items():
            assert harness.output(slot) == request.answer(SHAPE).tokens
    print("all answers are right")


if __name__ == "__main__":
    main()
