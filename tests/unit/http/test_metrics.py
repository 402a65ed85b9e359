"""Metrics over worker processes: real processes, since prometheus-client decides at import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

WORK = """
import os, sys
from blink_server.backend import RequestTiming
from blink_server.http.metrics import FinishedRequest, Metrics
metrics = Metrics()
metrics.submitted("m")
metrics.submitted("m")
metrics.first_token("m")
metrics.observe_finished(FinishedRequest(
    model="m", version=1, operation="chat", outcome="stop", prompt_tokens=3, generated_tokens=4,
    received_ns=0, first_token_ns=10**9, finished_ns=2 * 10**9, timing=RequestTiming(1, 2, 3, 4),
))
print(os.getpid())
"""

RENDER = """
import sys
from blink_server.http.metrics import Metrics, worker_exited
for pid in sys.argv[1:]:
    worker_exited(int(pid))
print(Metrics().render().decode())
"""


def run(directory: Path, code: str, *arguments: str) -> str:
    environment = {
        **os.environ,
        "PROMETHEUS_MULTIPROC_DIR": str(directory),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return done.stdout


def test_workers_are_summed_and_the_dead_hold_nothing(tmp_path: Path) -> None:
    pids = [run(tmp_path, WORK).strip() for _ in range(2)]
    both = run(tmp_path, RENDER)
    assert 'vllm:num_requests_waiting{model_name="m"} 2.0' in both
    assert 'vllm:generation_tokens_total{model_name="m"} 8.0' in both
    assert 'nv_inference_request_success{model="m",version="1"} 2.0' in both
    assert 'vllm:time_to_first_token_seconds_bucket{le="1.0",model_name="m"} 2.0' in both
    one_dead = run(tmp_path, RENDER, pids[0])
    assert 'vllm:num_requests_waiting{model_name="m"} 1.0' in one_dead
    assert 'vllm:generation_tokens_total{model_name="m"} 8.0' in one_dead
    assert 'nv_inference_request_success{model="m",version="1"} 2.0' in one_dead
