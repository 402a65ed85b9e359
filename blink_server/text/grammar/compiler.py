"""Compiles constraints beside the event loop: a cache, and one process behind it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import sys
import weakref
from collections import OrderedDict
from collections.abc import Collection
from typing import Any

import numpy as np

from blink_server.backend import Grammar, TokenBytes
from blink_server.errors import InvalidRequest, Overloaded
from blink_server.text.grammar.automaton import Automaton
from blink_server.text.grammar.constraint import Constraint
from blink_server.text.grammar.frames import LENGTH, pack, payload_bytes, unpack_automaton
from blink_server.text.grammar.refusal import GrammarRefused
from blink_server.text.tokenizers import Tokenizer

_GRACE_SECONDS = 0.25  # for the process to say itself that its time is over
_START_SECONDS = 30.0
_MOST_WAITING = 64
_LONGEST = 1 << 20  # characters of a spec
_CACHE_BYTES = 64 << 20
_MEMORY_BYTES = 1 << 30

_Outcome = Automaton | GrammarRefused


class GrammarCompiler:
    """All calls on one event loop. Its process is started when it is first needed."""

    def __init__(self, *, seconds: float = 5.0) -> None:
        """`seconds`: what one constraint may take."""
        self._seconds = seconds
        self._known: OrderedDict[str, _Outcome] = OrderedDict()
        self._known_bytes = 0
        self._running: dict[str, asyncio.Task[_Outcome]] = {}
        self._turn = asyncio.Lock()
        self._tokens: weakref.WeakKeyDictionary[Tokenizer, dict[frozenset[str], TokenBytes]]
        self._tokens = weakref.WeakKeyDictionary()
        self._process: asyncio.subprocess.Process | None = None

    async def grammar(
        self, constraint: Constraint, tokenizer: Tokenizer, shown: Collection[str] = ()
    ) -> Grammar:
        """The constraint for a model with this tokenizer. Raises as `compile` does.

        Special tokens are no part of a text, but for those named in `shown`.
        """
        automaton = await self.compile(constraint)
        known = self._tokens.setdefault(tokenizer, {})
        key = frozenset(shown)
        tokens = known.get(key)
        if tokens is None:
            tokens = await asyncio.to_thread(_token_bytes, tokenizer, key)
            tokens = known.setdefault(key, tokens)
        return Grammar(
            automaton.class_of,
            automaton.next,
            automaton.accepting,
            f"{automaton.digest}-{tokens.digest}",
            tokens,
            constraint.param,
        )

    async def compile(self, constraint: Constraint) -> Automaton:
        """The constraint's automaton. Equal ones are compiled once, also at the same time.

        Raises `InvalidRequest` naming what cannot be compiled, `Overloaded` where too many wait.
        """
        key = constraint.key
        if len(key) > _LONGEST:
            raise InvalidRequest(
                f"{constraint.param} is longer than {_LONGEST >> 20} MiB", param=constraint.param
            )
        outcome = self._known.get(key)
        if outcome is None:
            task = self._running.get(key)
            if task is None:
                if len(self._running) >= _MOST_WAITING:
                    raise Overloaded(f"{_MOST_WAITING} schemas or expressions wait to be compiled")
                task = asyncio.create_task(self._compile(constraint))
                self._running[key] = task
                task.add_done_callback(lambda _: self._running.pop(key))
            # The one who asked first may go away while others wait.
            outcome = await asyncio.shield(task)
        else:
            self._known.move_to_end(key)
        if isinstance(outcome, GrammarRefused):
            raise InvalidRequest(str(outcome), param=constraint.param)
        return outcome

    async def close(self) -> None:
        """End the process; a later `compile` starts another."""
        for task in list(self._running.values()):
            task.cancel()
        await self._end_process()

    async def _compile(self, constraint: Constraint) -> _Outcome:
        async with self._turn:
            outcome = await self._ask(constraint)
        size = outcome.next.nbytes if isinstance(outcome, Automaton) else 0
        self._known[constraint.key] = outcome
        self._known_bytes += size + len(constraint.key)
        while self._known_bytes > _CACHE_BYTES and len(self._known) > 1:
            key, oldest = self._known.popitem(last=False)
            size = oldest.next.nbytes if isinstance(oldest, Automaton) else 0
            self._known_bytes -= size + len(key)
        return outcome

    async def _ask(self, constraint: Constraint) -> _Outcome:
        process = self._process or await self._start_process()
        assert process.stdin is not None
        assert process.stdout is not None
        where = constraint.spec.get("path", "")
        try:
            async with asyncio.timeout(self._seconds + _GRACE_SECONDS):
                process.stdin.write(pack(constraint.spec))
                await process.stdin.drain()
                while True:
                    answer = await _read_header(process.stdout)
                    if "at" not in answer:
                        return await _outcome(answer, process.stdout)
                    where = answer["at"]
        except TimeoutError:
            await self._end_process()
            return GrammarRefused(
                where, f"takes more than {self._seconds * 1000:.0f} ms to compile"
            )
        except (asyncio.IncompleteReadError, ConnectionError):
            self._process = None
            await process.wait()
            return GrammarRefused(where, f"needs more than {_MEMORY_BYTES >> 20} MiB to compile")
        except BaseException:
            await self._end_process()  # its answer would be taken for the next one's
            raise

    async def _start_process(self) -> asyncio.subprocess.Process:
        module = "blink_server.text.grammar.process"
        arguments = [str(self._seconds), str(_MEMORY_BYTES)]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # Each thread of the library for matrices would take memory of its own.
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )
        self._process = process
        assert process.stdout is not None
        try:
            async with asyncio.timeout(_START_SECONDS):
                await _read_header(process.stdout)  # it is there
        except BaseException:
            await self._end_process()
            raise
        return process

    async def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _read_header(stream: asyncio.StreamReader) -> dict[str, Any]:
    [length] = LENGTH.unpack(await stream.readexactly(LENGTH.size))
    header: dict[str, Any] = json.loads(await stream.readexactly(length))
    return header


async def _outcome(answer: dict[str, Any], stream: asyncio.StreamReader) -> _Outcome:
    if "refused" in answer:
        return GrammarRefused(**answer["refused"])
    return unpack_automaton(answer, await stream.readexactly(payload_bytes(answer)))


def _token_bytes(tokenizer: Tokenizer, shown: frozenset[str]) -> TokenBytes:
    size, special = tokenizer.vocabulary_size, tokenizer.special_ids
    hidden = {token for token in special if tokenizer.token_text(token) not in shown}
    pieces = [b"" if i in hidden else tokenizer.token_bytes(i) for i in range(size)]
    offsets = np.zeros(size + 1, np.uint64)
    np.cumsum([len(piece) for piece in pieces], out=offsets[1:])
    data = b"".join(pieces)
    digest = hashlib.sha256(offsets.tobytes() + data).hexdigest()
    return TokenBytes(np.frombuffer(data, np.uint8), offsets, digest)
