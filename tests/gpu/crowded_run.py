"""A short run with preemption, for tools that watch a whole process; run by the test beside it."""

from __future__ import annotations

from blink_persistent.testing.device_harness import DeviceHarness
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape

SHAPE = ScriptedShape(max_rows=8, block_count=30)


def main() -> None:
    requests = {slot: ScriptedRequest((5, 6, 7 + slot), max_tokens=30) for slot in range(12)}
    with DeviceHarness(SHAPE) as harness:
        harness.submit(requests)
        harness.scheduler.launch()
        harness.wait_for_ends(requests)
        assert harness.ring.field("preemptions") > 0
        for slot, request in requests.items():
            assert harness.output(slot) == request.answer(SHAPE).tokens
    print("all answers are right")


if __name__ == "__main__":
    main()
