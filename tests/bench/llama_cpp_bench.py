"""Our server over HTTP against llama.cpp's bare batch API, on one file: `make bench-llama`.

Both serve SmolLM2-135M-Instruct Q4_1 from the same GGUF file, with 2 threads on the same 2 cores.
Ours answers over HTTP with streaming, its client on the same cores; llama.cpp is called through the
low-level functions of llama-cpp-python, without a server, text or sampler but an argmax. It is
built for this machine in an environment of its own (.run/llama-cpp), the first time only: minutes.

Medians of rounds whose measurements take turns, the other side idle meanwhile; the prompts are the
same token ids:

- one stream: tokens a second after the first, of one greedy answer of 200 tokens;
- eight streams: tokens of eight such answers together over the seconds from the first token of any
  to the last of all. Ours reads the other seven prompts within that time; llama.cpp has read all of
  them, in one batch, before its time begins;
- prefill: seconds from a prompt of 200 tokens to its first token.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from blink_server.errors import BlinkError
from blink_server.importers.pull import pull

sys.path.insert(0, str(Path(__file__).parent))
import serve_bench
from machine import describe_machine
from measures import Measure, keep, report
from served import served
from stopping import stop_on_sigterm

PACKAGE = "llama-cpp-python==0.3.36"
THREADS = 2
ENVIRONMENT = serve_bench.PROJECT / ".run" / "llama-cpp"
PEER = Path(__file__).with_name("llama_cpp_peer.py")


def peer_python() -> Path:
    """The interpreter of the environment that has llama-cpp-python, built where it is missing.

    Raises BlinkError.
    """
    python, done = ENVIRONMENT / "bin" / "python", ENVIRONMENT / f"{PACKAGE}.installed"
    if not done.exists():
        click.echo(f"building {PACKAGE} in {ENVIRONMENT}: this takes minutes", err=True)
        venv.create(ENVIRONMENT, with_pip=True)
        command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", PACKAGE]
        options = {"CMAKE_ARGS": "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF"}
        built = subprocess.run(
            [*command, "--no-binary", "llama-cpp-python"], env=os.environ | options
        )
        if built.returncode != 0:
            raise BlinkError(f"pip could not build {PACKAGE}; its messages above say why")
        done.touch()
    return python


class LlamaCpp:
    """llama.cpp in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log
        self.about = self._answer()

    def ask(self, **what: Any) -> dict[str, Any]:
        """One measurement. Raises BlinkError."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise self._ended()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _ended(self) -> BlinkError:
        last = self._log.read_text(errors="replace").strip().rpartition("\n")[2]
        return BlinkError(f"llama.cpp ended: {last or 'without a word'}")


@contextmanager
def llama_cpp(gguf: Path) -> Iterator[LlamaCpp]:
    """A peer with the model loaded; ended afterwards. Raises BlinkError."""
    python = peer_python()
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory, "log")
        command = [str(python), str(PEER), str(gguf), str(THREADS)]
        with (
            log.open("w") as errors,
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            ) as process,
        ):
            try:
                yield LlamaCpp(process, log)
            finally:
                process.kill()


def token_ids(url: str, **asked: Any) -> list[int]:
    """What our server makes of a prompt or of messages: the peer is given the same."""
    body = json.dumps({"model": serve_bench.MODEL, **asked}).encode()
    request = urllib.request.Request(f"{url}/tokenize", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        ids: list[int] = json.load(response)["tokens"]
    return ids


def decode_rate(peer: LlamaCpp, prompts: Sequence[list[int]]) -> float:
    """Tokens a second of all prompts' answers together."""
    tokens = serve_bench.ANSWER_TOKENS
    found = peer.ask(do="decode", prompts=prompts, tokens=tokens)
    return len(prompts) * (tokens - 1) / float(found["seconds"])


async def measure(repository: Path, peer: LlamaCpp, rounds: int) -> list[Measure]:
    """All figures: ours, llama.cpp's, and the ratios. Raises BlinkError."""
    version = max((repository / serve_bench.MODEL).iterdir(), key=lambda entry: entry.name)
    ours: dict[str, list[float]] = {"one": [], "eight": [], "prefill": []}
    theirs: dict[str, list[float]] = {"one": [], "eight": [], "prefill": []}
    async with served(repository) as (_server, url, _seconds):
        chats = [
            token_ids(url, messages=serve_bench.conversation(topic)) for topic in serve_bench.TOPICS
        ]
        await serve_bench.one_stream(url)
        decode_rate(peer, chats[:1])
        decode_rate(peer, chats)
        for number in range(rounds):
            prompt = serve_bench.prompt_text(version, number)
            ids = token_ids(url, prompt=prompt)
            ours["one"].append(await serve_bench.one_stream(url))
            theirs["one"].append(decode_rate(peer, chats[:1]))
            ours["prefill"].append(await serve_bench.first_token(url, prompt))
            theirs["prefill"].append(peer.ask(do="prefill", prompt=ids)["seconds"])
            ours["eight"].append(await serve_bench.eight_streams(url))
            theirs["eight"].append(decode_rate(peer, chats))
            click.echo(f"round {number + 1} of {rounds} measured")
    return figures(ours, theirs)


def figures(ours: dict[str, list[float]], theirs: dict[str, list[float]]) -> list[Measure]:
    """Raw values of both sides, and for each the ratios of the rounds: above 1, ours is faster."""
    measures = []
    for name, shown, unit, least in (
        ("one", "one stream", "tokens/s", 0.9),
        ("eight", "eight streams", "tokens/s", 1.6),
        ("prefill", "prefill of 200 tokens", "s", 2.0),
    ):
        pairs = list(zip(ours[name], theirs[name], strict=True))
        ratios = [their / our if unit == "s" else our / their for our, their in pairs]
        measures += [
            Measure(f"{shown}, ours over HTTP", unit, tuple(ours[name])),
            Measure(f"{shown}, llama.cpp", unit, tuple(theirs[name])),
            Measure(f"{shown}, ours over llama.cpp's", "times", tuple(ratios), at_least=least),
        ]
    return measures


@click.command()
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
def main(rounds: int) -> None:
    """Measure, print and keep; exit code 1 where a target is missed."""
    stop_on_sigterm()
    cores = sorted(os.sched_getaffinity(0))[:THREADS]
    os.sched_setaffinity(0, cores)  # of the servers too
    machine = describe_machine()
    try:
        gguf = pull(serve_bench.MODEL)
        with tempfile.TemporaryDirectory(prefix="blink-bench-") as directory:
            repository = Path(directory)
            command = ["import", f"--gguf={gguf}", f"--name={serve_bench.MODEL}"]
            subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "blink_server",
                    *command,
                    f"--model-repository={repository}",
                ],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            with llama_cpp(gguf) as peer:
                about = peer.about
                measures = asyncio.run(measure(repository, peer, rounds))
    except (BlinkError, subprocess.CalledProcessError) as error:
        raise click.ClickException(str(error)) from error
    console = Console()
    console.print(report(measures))
    path = keep("llama-cpp", __doc__, machine, measures, llama_cpp=about, threads=THREADS)
    console.print(f"raw numbers: {path}")
    sys.exit(0 if all(one.met for one in measures) else 1)


if __name__ == "__main__":
    main()
