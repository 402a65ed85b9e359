"""Measures the whole server over HTTP against its targets: `make bench`.

What is measured, each as the median of five rounds whose measurements take turns:

- ready: seconds from starting `blink-server serve` until its model serves, a fresh server each;
- one stream: tokens a second after the first token, one greedy chat of 200 tokens;
- eight streams: tokens of eight such chats, asked at once, over the seconds from the first token
  of any to the last token of all (so the other seven prompts are read within it);
- first token: seconds from sending a prompt of 200 tokens to its first text, nothing else running;
- memory: PSS of all processes of the server together, after the eight streams of the last round.

The client shares the server's cores, as a user's would on a small machine. It reads raw sockets
in one thread.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click
from rich.console import Console
from tokenizers import Tokenizer

from blink_server.errors import BlinkError
from blink_server.testing.stream_client import StreamedAnswer, stream_answer

sys.path.insert(0, str(Path(__file__).parent))
from machine import describe_machine
from measures import Measure, keep, report
from served import proportional_bytes, served
from stopping import stop_on_sigterm

PROJECT = Path(__file__).resolve().parents[2]
MODEL = "smollm2-135m-instruct"
STREAMS = 8
ANSWER_TOKENS = 200
PROMPT_TOKENS = 200
TOPICS = ("rivers", "clocks", "bread", "maps", "glass", "bees", "tides", "paper")
_PROSE = (
    "The harbour town had always lived by the sea, and its people kept the habits of the tide. "
    "In the morning the boats went out past the lighthouse, and by noon the market was full of "
    "fish, bread, rope and gossip. Children learned to mend nets before they learned to read, "
    "and old men argued about the weather with great precision. When the railway came, it "
    "brought visitors who admired the light and painters who stayed for the winter. "
)


def conversation(topic: str) -> list[dict[str, str]]:
    """What is asked about a topic."""
    return [{"role": "user", "content": f"Write a long story about {topic}."}]


async def chat(url: str, topic: str) -> StreamedAnswer:
    """One greedy chat of exactly `ANSWER_TOKENS` tokens. Raises BlinkError."""
    body = {
        "model": MODEL,
        "messages": conversation(topic),
        "temperature": 0,
        "max_tokens": ANSWER_TOKENS,
        "ignore_eos": True,
    }
    answer = await stream_answer(url, "/v1/chat/completions", body)
    if answer.usage["completion_tokens"] != ANSWER_TOKENS:
        raise BlinkError(f"an answer has {answer.usage}, not {ANSWER_TOKENS} tokens")
    return answer


async def one_stream(url: str) -> float:
    """Tokens a second."""
    return (await chat(url, TOPICS[0])).decode_rate


async def eight_streams(url: str) -> float:
    """Tokens a second of all together."""
    answers = await asyncio.gather(*(chat(url, topic) for topic in TOPICS))
    begun = min(answer.first_ns for answer in answers)
    ended = max(answer.last_ns for answer in answers)
    return STREAMS * (ANSWER_TOKENS - 1) / ((ended - begun) / 1e9)


async def first_token(url: str, prompt: str) -> float:
    """Seconds to the first token of a prompt of `PROMPT_TOKENS` tokens. Raises BlinkError."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 2, "temperature": 0, "ignore_eos": True}
    answer = await stream_answer(url, "/v1/completions", body)
    if answer.usage["prompt_tokens"] != PROMPT_TOKENS:
        raise BlinkError(f"the prompt has {answer.usage}, not {PROMPT_TOKENS} tokens")
    return answer.time_to_first_token


def prompt_text(version: Path, number: int) -> str:
    """Prose of `PROMPT_TOKENS` tokens, another one for each number."""
    tokenizer = Tokenizer.from_file(str(version / "tokenizer.json"))
    ids = tokenizer.encode(f"Chapter {number}. " + _PROSE * 4, add_special_tokens=False).ids
    return str(tokenizer.decode(ids[:PROMPT_TOKENS]))


async def measure(repository: Path, rounds: int) -> tuple[list[Measure], dict[str, int]]:
    """All figures, and the memory of each process. Raises BlinkError."""
    ready = []
    for number in range(rounds - 1):
        async with served(repository) as (_server, _url, seconds):
            ready.append(seconds)
            click.echo(f"start {number + 1} of {rounds}: ready in {seconds:.1f} s")
    one, eight, first = [], [], []
    version = max((repository / MODEL).iterdir(), key=lambda entry: entry.name)
    async with served(repository) as (server, url, seconds):
        ready.append(seconds)
        click.echo(f"start {rounds} of {rounds}: ready in {seconds:.1f} s")
        await one_stream(url)
        for number in range(rounds):
            one.append(await one_stream(url))
            first.append(await first_token(url, prompt_text(version, number)))
            eight.append(await eight_streams(url))
            click.echo(
                f"round {number + 1} of {rounds}: one stream {one[-1]:.0f} tokens/s, "
                f"eight {eight[-1]:.0f} tokens/s, first token {first[-1]:.2f} s"
            )
        memory = proportional_bytes(server.pid)
    ratios = [together / alone for together, alone in zip(eight, one, strict=True)]
    total = sum(memory.values()) / 1e9
    return [
        Measure("one stream", "tokens/s", tuple(one), at_least=90),
        Measure("eight streams", "tokens/s", tuple(eight)),
        Measure("eight streams over one", "times", tuple(ratios), at_least=2.5),
        Measure("first token, 200-token prompt", "s", tuple(first), at_most=0.35),
        Measure("memory of all processes (PSS)", "GB", (total,), at_most=1.5),
        Measure("serve to ready", "s", tuple(ready), at_most=15),
    ], memory


@click.command()
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option(
    "--model-repository",
    "repository",
    type=click.Path(path_type=Path),
    default=PROJECT / "model_repository",
)
def main(rounds: int, repository: Path) -> None:
    """Measure, print and keep; exit code 1 where a target is missed."""
    stop_on_sigterm()
    if not (repository / MODEL).is_dir():
        raise click.ClickException(f"{repository / MODEL} is not there: run make demo once")
    machine = describe_machine()
    try:
        measures, memory = asyncio.run(measure(repository, rounds))
    except BlinkError as error:
        raise click.ClickException(str(error)) from error
    console = Console()
    console.print(report(measures))
    path = keep("cpu", __doc__, machine, measures, memory_bytes=memory)
    console.print(f"raw numbers: {path}")
    sys.exit(0 if all(one.met for one in measures) else 1)


if __name__ == "__main__":
    main()
