"""A process that starts 64 streams and then needs not do anything; run by the test beside it.

Prints the ring's shared-memory handle once the streams generate, and waits for a line on its
standard input before it looks at them again; prints how many got the rule's answer.
"""

from __future__ import annotations

import sys

from blink_persistent.gpu.device_ring import DeviceRing
from blink_persistent.testing.device_harness import DeviceHarness
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape

STREAMS = 64
SHAPE = ScriptedShape(
    max_rows=STREAMS, max_sequences=8, max_prefill_tokens=512, context_length=640,
    block_size=16, block_count=STREAMS * 40 + 1,
)  # fmt: skip


def main() -> None:
    requests = {
        slot: ScriptedRequest((3 + slot, 5, 7), max_tokens=600, ignore_eos=True)
        for slot in range(STREAMS)
    }
    with DeviceHarness(SHAPE, step_ns=2_000_000) as harness:
        harness.submit(requests)
        harness.scheduler.launch()
        harness.wait_until(lambda: harness.ring.field("steps") > 20, "the streams generate")
        assert isinstance(harness.ring, DeviceRing)
        print(harness.gpu.share(harness.ring.address).hex(), flush=True)
        sys.stdin.readline()
        harness.wait_for_ends(requests)
        right = sum(
            harness.output(slot) == request.answer(SHAPE).tokens
            for slot, request in requests.items()
        )
        print(right, flush=True)


if __name__ == "__main__":
    main()
