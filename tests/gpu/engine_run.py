"""A small model on the engine `cuda`, its graphs driven by a host thread: for tools that watch a
whole process; run by the test beside it. It is of SmolLM2's width, or, for what is likely the
fastest where nothing was measured, of Qwen3-0.6B's.

engine_run.py DIRECTORY DECODE_KERNELS
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from blink_persistent.engines.cuda.weight_file import write_weights
from blink_persistent.graph_grid import default_grid
from blink_persistent.testing.cuda_harness import HostDrivenCudaHarness, cuda_version, provision
from blink_persistent.testing.greedy import check_greedy
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_server.testing.memory_checkpoint import random_checkpoint, tiny_architecture

WIDTHS = {
    "measured": {
        **{"hidden_size": 576, "intermediate_size": 1536},
        **{"heads": 9, "kv_heads": 3, "head_dim": 64},
    },
    "likely": {
        **{"hidden_size": 1024, "intermediate_size": 3072},
        **{"heads": 16, "kv_heads": 8, "head_dim": 128},
    },
}
SHAPE = ScriptedShape(max_rows=8, context_length=256, vocabulary_size=1000)


def main() -> None:
    directory, decode_kernels = Path(sys.argv[1]), sys.argv[2]
    model = tiny_architecture(**WIDTHS[decode_kernels], vocabulary_size=1000, context_length=256)
    checkpoint = random_checkpoint(model, seed=9)
    for name, tensor in checkpoint.tensors.items():
        checkpoint.tensors[name] = torch.from_numpy(tensor).bfloat16().float().numpy()
    write_weights(checkpoint, directory / "model.safetensors")
    options = {"block_size": 16, "block_count": 40, "decode_kernels": decode_kernels}
    version = cuda_version(directory, engine=options, context_length=256, memory_fraction=0.2)
    requests = {
        slot: ScriptedRequest(tuple(range(3 + slot, 40 + 5 * slot)), max_tokens=20)
        for slot in range(10)
    }
    grid = default_grid(8, 64, max_sequences=2, max_mixed_tokens=32)
    engine = provision(version, grid)
    with HostDrivenCudaHarness(SHAPE, engine) as harness:
        harness.submit(requests)
        harness.scheduler.launch()
        harness.wait_for_ends(requests)
        plain = checkpoint.dequantized()
        answers = ((request.prompt, harness.output(slot)) for slot, request in requests.items())
        check_greedy(model, plain, answers)
    print("all answers are right")


if __name__ == "__main__":
    main()
