"""The compiler's process: shared work, its limits, and its life."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from blink_server.errors import InvalidRequest, Overloaded
from blink_server.testing.tiny_tokenizer import byte_level_tokenizer
from blink_server.text.grammar import compiler as compiler_module
from blink_server.text.grammar.compiler import GrammarCompiler
from blink_server.text.grammar.constraint import Constraint
from blink_server.text.grammar.frames import pack
from blink_server.text.tokenizers import HuggingFaceTokenizer

ENDLESS = "(a|b)*a(a|b){40}"


def expression(source: str) -> Constraint:
    return Constraint({"type": "regex", "source": source, "path": "f.regex"}, "f")


@pytest.fixture
async def compiler() -> AsyncIterator[GrammarCompiler]:
    made = GrammarCompiler(seconds=20)
    yield made
    await made.close()


async def test_equal_constraints_are_compiled_once(compiler: GrammarCompiler) -> None:
    one, other = await asyncio.gather(
        compiler.compile(expression("a+")), compiler.compile(expression("a+"))
    )
    assert one is other
    assert await compiler.compile(expression("a+")) is one
    assert one.accepts(b"aaa")
    assert not one.accepts(b"")


async def test_who_goes_away_leaves_the_work_to_the_others(compiler: GrammarCompiler) -> None:
    first = asyncio.create_task(compiler.compile(expression("a{3}")))
    second = asyncio.create_task(compiler.compile(expression("a{3}")))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).accepts(b"aaa")


async def test_too_long_is_refused_by_name_and_the_next_is_served() -> None:
    compiler = GrammarCompiler(seconds=0.2)
    with pytest.raises(InvalidRequest, match=r"f\.regex: takes more than 200 ms") as refused:
        await compiler.compile(expression(ENDLESS))
    assert refused.value.param == "f"
    compiler._seconds = 20  # a loaded machine may need longer for the start alone
    assert (await compiler.compile(expression("b"))).accepts(b"b")
    await compiler.close()


async def test_too_much_memory_is_refused_by_name(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler_module, "_MEMORY_BYTES", 128 << 20)
    for _ in range(2):  # the second time it is known
        with pytest.raises(InvalidRequest, match=r"f\.regex: needs more than 128 MiB"):
            await compiler.compile(expression("((a{1000}){1000}){1000}"))
    assert (await compiler.compile(expression("b"))).accepts(b"b")


async def test_a_lost_process_is_replaced(compiler: GrammarCompiler) -> None:
    await compiler.compile(expression("a"))
    assert compiler._process is not None
    compiler._process.kill()
    await compiler._process.wait()
    with pytest.raises(InvalidRequest):
        await compiler.compile(expression("b"))
    assert (await compiler.compile(expression("c"))).accepts(b"c")


async def test_no_more_than_so_many_wait(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler_module, "_MOST_WAITING", 1)
    first = asyncio.create_task(compiler.compile(expression("a")))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await compiler.compile(expression("b"))
    assert (await first).accepts(b"a")


async def test_long_specs_are_refused_at_once(compiler: GrammarCompiler) -> None:
    schema = {"type": "json_schema", "schema": {"enum": ["x" * (1 << 20)]}}
    with pytest.raises(InvalidRequest, match="longer than 1 MiB"):
        await compiler.compile(Constraint(schema, "guided_json"))
    assert compiler._process is None


async def test_special_tokens_are_no_text_unless_they_are_shown(compiler: GrammarCompiler) -> None:
    tokenizer = HuggingFaceTokenizer(byte_level_tokenizer())
    constraint = expression(".*")
    hidden = await compiler.grammar(constraint, tokenizer)
    shown = await compiler.grammar(constraint, tokenizer, ["<|im_end|>"])
    again = await compiler.grammar(constraint, tokenizer)
    assert again.tokens is hidden.tokens
    assert hidden.digest != shown.digest
    special = next(i for i in tokenizer.special_ids if tokenizer.token_text(i) == "<|im_end|>")
    for grammar, expected in ((hidden, b""), (shown, b"<|im_end|>")):
        start, end = grammar.tokens.offsets[special : special + 2].tolist()
        assert grammar.tokens.data[start:end].tobytes() == expected


def test_a_compiler_whose_worker_is_gone_ends_by_itself() -> None:
    slow = {"type": "regex", "source": ENDLESS, "path": "guided_regex"}
    module = "blink_server.text.grammar.process"
    command = [sys.executable, "-m", module, "0.1", str(4 << 30)]
    # It inherits that Python never hears of the end of its time, wherever it is then.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    try:
        ended = subprocess.run(
            command, input=pack(slow), capture_output=True, check=False, timeout=60
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert ended.returncode == -signal.SIGPROF
