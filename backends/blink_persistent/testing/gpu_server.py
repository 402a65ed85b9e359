"""Versions of a model repository on a GPU, and the processes of a server that serves them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from blink_persistent.engines.cuda.weight_file import WEIGHT_FILE, write_weights
from blink_persistent.graph_grid import GraphGrid, default_grid
from blink_server.testing.memory_checkpoint import MemoryCheckpoint
from blink_server.testing.server_process import ServerProcess, processes
from blink_server.testing.tiny_repository import write_json
from blink_server.testing.tiny_tokenizer import number_tokenizer

LIMITS = {
    **{"context_length": 1024, "max_rows": 64, "max_prefill_tokens": 512},
    **{"slots": 768, "max_queue": 256, "memory_fraction": 0.05},
}
MAX_SEQUENCES = 8
VOCABULARY = 1000


def write_gpu_version(
    repository: Path,
    model: str,
    version: int = 1,
    *,
    engine: Mapping[str, Any],
    vocabulary: int = VOCABULARY,
    limits: Mapping[str, Any] | None = None,
    grid: GraphGrid | None = None,
    write_more: Callable[[Path], None] = lambda directory: None,
) -> Path:
    """A version whose texts are its tokens' ids as words; returns its directory, complete.

    `engine` is config.json's, `limits` go over `LIMITS`; `grid` is powers of two unless given.
    `write_more` may add files before config.json makes it a version.
    """
    directory = repository / model / str(version)
    directory.mkdir(parents=True)
    write_more(directory)
    chosen = LIMITS | dict(limits or {})
    grid = grid or default_grid(
        chosen["max_rows"], chosen["max_prefill_tokens"], max_sequences=MAX_SEQUENCES
    )
    write_json(directory / "graph_grid.json", grid.to_json())
    (directory / "tokenizer.json").write_text(number_tokenizer(vocabulary), encoding="utf-8")
    config = {
        "backend": "blink_persistent",
        "engine": dict(engine),
        "limits": chosen,
        "eos_token_ids": [],
    }
    write_json(directory / "config.json", config)
    return directory


def write_scripted_gpu_version(
    repository: Path, model: str, version: int = 1, **options: Any
) -> Path:
    """One of the scripted engine; `options` are the engine's."""
    engine = {"vocabulary_size": VOCABULARY, "block_count": 4097, **options}
    return write_gpu_version(
        repository, model, version, engine={"name": "scripted", "device": "cuda:0", **engine}
    )


def write_cuda_version(
    repository: Path, model: str, version: int, checkpoint: MemoryCheckpoint, **options: Any
) -> Path:
    """One of the engine `cuda` with a checkpoint's weights; `options` are the engine's."""
    engine = {"name": "cuda", "block_size": 16, "block_count": 4097, **options}
    size = checkpoint.architecture.vocabulary_size

    def write_more(directory: Path) -> None:
        write_weights(checkpoint, directory / WEIGHT_FILE)

    return write_gpu_version(
        repository, model, version, engine=engine, vocabulary=size, write_more=write_more
    )


def token_ids(text: str) -> list[int]:
    """The tokens of such a version's text."""
    return [int(word) for word in text.split()]


def owners(server: ServerProcess) -> list[int]:
    """Processes of the server that own a GPU."""
    return _with_argument(server, b"--listener")


def agents(server: ServerProcess) -> list[int]:
    """Its agents."""
    return _with_argument(server, b"blink_persistent.agent")


def links(server: ServerProcess) -> list[int]:
    """Its versions' links to the owners."""
    return _with_argument(server, b"blink_persistent.gpu_runner.link")


def stop_all(pids: Sequence[int]) -> None:
    """SIGSTOP, and return when they stand still."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    while not all(is_stopped(pid) for pid in pids):
        os.sched_yield()


def continue_all(pids: Sequence[int]) -> None:
    """SIGCONT."""
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def is_stopped(pid: int) -> bool:
    """Whether the process stands still."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "T"


def _with_argument(server: ServerProcess, argument: bytes) -> list[int]:
    commands = {
        pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        for pid in processes(server.runtime)
    }
    return [pid for pid, command in commands.items() if argument in command]
