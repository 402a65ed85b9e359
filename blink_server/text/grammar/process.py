"""The process that compiles constraints: an expression of a line can take any time and memory.

Frames on standard input and output: a length of 4 bytes, then JSON. In: a constraint's spec. Out:
{"ready": true} once, {"at": path} before a part that may be slow, then one of

    {"refused": {"path": ..., "reason": ...}}
    {"states": n, "classes": n, "digest": "..."}, followed by the arrays of the automaton

It is given its time in seconds and its memory in bytes as arguments. Where Python can notice that
the time is over, it says what took it; else the one who waits for the answer ends the process. If
he is no longer there, the system does.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from types import FrameType
from typing import Any, BinaryIO

from blink_server.text.grammar.frames import LENGTH, pack, pack_automaton
from blink_server.text.grammar.nfa import Nfa
from blink_server.text.grammar.refusal import GrammarRefused
from blink_server.text.grammar.specs import compile_spec

_OVERTIME_SECONDS = 0.5  # longer than whoever waits gives it


class _TimeIsOver(Exception):
    pass


class _ReportingNfa(Nfa):
    """Tells where it is when that changes to a part which may be slow."""

    def __init__(self, output: BinaryIO) -> None:
        self._output = output
        super().__init__()

    def begin_slow(self, path: str) -> None:
        self._output.write(pack({"at": path}))
        self._output.flush()


def _answer(spec: Any, output: BinaryIO, seconds: float) -> bytes:
    nfa = _ReportingNfa(output)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_PROF, seconds + _OVERTIME_SECONDS)  # ends the process
    try:
        automaton = compile_spec(spec, nfa)
    except GrammarRefused as refused:
        return pack({"refused": {"path": refused.path, "reason": refused.reason}})
    except _TimeIsOver:
        reason = f"takes more than {seconds * 1000:.0f} ms to compile"
        return pack({"refused": {"path": nfa.where, "reason": reason}})
    except ValueError as error:  # a text that is not Unicode, a number that is not JSON
        return pack({"refused": {"path": nfa.where, "reason": str(error)}})
    except (MemoryError, RecursionError):
        return pack({"refused": {"path": nfa.where, "reason": "is too large to compile"}})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
    return pack_automaton(automaton)


def serve(source: BinaryIO, output: BinaryIO, seconds: float) -> None:
    """Answer until the input ends."""
    while head := source.read(LENGTH.size):
        spec = json.loads(source.read(*LENGTH.unpack(head)))
        output.write(_answer(spec, output, seconds))
        output.flush()


def main() -> None:
    """The process."""

    def leave(_number: int, _frame: FrameType | None) -> None:
        raise _TimeIsOver

    seconds, memory = float(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server to handle
    sys.stdout.buffer.write(pack({"ready": True}))
    sys.stdout.buffer.flush()
    serve(sys.stdin.buffer, sys.stdout.buffer, seconds)


if __name__ == "__main__":
    main()
