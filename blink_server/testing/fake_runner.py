"""A runner without an engine: a real process on the control channel that echoes prompts.

The answer's tokens are the prompt's, over and over. A version directory's optional `fake.json`
makes it answer or behave otherwise:

    fail_while    name of a file of the version directory: the load fails while it is there
    load_gate     name of a FIFO of the version directory: the load ends when a writer closes it
    answer        token ids to answer with, over and over
    identity      token ids of "0123456789. ": answer with "<version>.<epoch> "
    exit_code     exit with this status instead of loading
    token_seconds time between two tokens
    die_after     SIGKILL itself after so many tokens

Requests come over a Unix socket, one JSON object a line: {"id", "prompt_ids", "max_tokens"} or
{"id", "cancel": true}; answered by {"id", "token_ids"}, the last one with "reason".
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blink_server.backend import Endpoint, FinishReason
from blink_server.control import RunnerChannel
from blink_server.errors import BlinkError
from blink_server.messages import Stop

OPTIONS_FILE = "fake.json"
TRANSPORT = "fake"


@dataclass(frozen=True, slots=True)
class FakeOptions:
    """What `fake.json` may say."""

    fail_while: str | None = None
    load_gate: str | None = None
    answer: list[int] | None = None
    identity: list[int] | None = None
    exit_code: int | None = None
    token_seconds: float = 0.0
    die_after: int | None = None

    @classmethod
    def read(cls, version_directory: Path) -> FakeOptions:
        """Raises TypeError or ValueError for a file that says something else."""
        path = version_directory / OPTIONS_FILE
        return cls(**json.loads(path.read_text())) if path.exists() else cls()


class FakeRunner:
    """Serves echo requests until it is told to drain or stop."""

    def __init__(self, channel: RunnerChannel) -> None:
        self._channel = channel
        self._directory = channel.environment.version_directory
        self._options = FakeOptions.read(self._directory)
        self._answer = self._options.answer or self._identity()
        self._accepting = True
        self._tokens = 0
        self._requests: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = asyncio.Event()

    def _identity(self) -> list[int]:
        environment, ids = self._channel.environment, self._options.identity
        text = f"{environment.version}.{environment.epoch} "
        return [] if ids is None else [ids["0123456789. ".index(c)] for c in text]

    def load(self) -> None:
        """Pretend to load. Raises BlinkError when told to fail."""
        options = self._options
        if options.exit_code is not None:
            print(f"exiting with {options.exit_code} as told", flush=True)
            raise SystemExit(options.exit_code)
        self._channel.progress("weights", 0.5)
        if options.load_gate is not None:
            (self._directory / options.load_gate).read_bytes()
        if options.fail_while is not None and (self._directory / options.fail_while).exists():
            raise BlinkError(f"{options.fail_while} is there")

    async def serve(self) -> None:
        """Say READY and serve; returns when everything in flight has ended after a drain."""
        path = self._channel.environment.runtime_directory / "requests.sock"
        server = await asyncio.start_unix_server(self._connected, str(path))
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._obey, args=(loop,), daemon=True).start()
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self._channel.ready(Endpoint(TRANSPORT, {"socket": str(path)}), memory)
        await self._stopping.wait()
        server.close()
        await self._idle.wait()

    def _obey(self, loop: asyncio.AbstractEventLoop) -> None:
        for command in self._channel.commands():
            if isinstance(command, Stop):
                os._exit(0)
            loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._accepting = False
        self._stopping.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = id(writer)
        try:
            while line := await reader.readline():
                request = json.loads(line)
                key = (connection, request["id"])
                if request.get("cancel"):
                    if (task := self._requests.get(key)) is not None:
                        task.cancel()
                else:
                    self._begin(key, request, writer)
        except ConnectionError:
            pass
        finally:
            for key in [key for key in self._requests if key[0] == connection]:
                self._requests[key].cancel()
            writer.close()

    def _begin(
        self, key: tuple[int, int], request: Mapping[str, Any], writer: asyncio.StreamWriter
    ) -> None:
        if not self._accepting:
            _answer(writer, key[1], [], FinishReason.CLOSED)
            return
        self._idle.clear()
        task = asyncio.create_task(self._generate(key[1], request, writer))
        self._requests[key] = task
        task.add_done_callback(lambda task: self._ended(key, task, writer))

    def _ended(
        self, key: tuple[int, int], task: asyncio.Task[None], writer: asyncio.StreamWriter
    ) -> None:
        del self._requests[key]
        if task.cancelled():  # perhaps before it had begun
            _answer(writer, key[1], [], FinishReason.CANCELLED)
        if not self._requests:
            self._idle.set()

    async def _generate(
        self, number: int, request: Mapping[str, Any], writer: asyncio.StreamWriter
    ) -> None:
        prompt = self._answer or request["prompt_ids"]
        count = request["max_tokens"]
        for position in range(count):
            await asyncio.sleep(self._options.token_seconds)
            self._tokens += 1
            last = position == count - 1
            reason = FinishReason.LENGTH if last else None
            if last:  # a runner writes logs too, also when nobody reads them any more
                print(f"request {number}: {count} tokens", flush=True)
            _answer(writer, number, [prompt[position % len(prompt)]], reason)
            if self._tokens == self._options.die_after:
                await writer.drain()
                os.kill(os.getpid(), signal.SIGKILL)


def _answer(
    writer: asyncio.StreamWriter, number: int, token_ids: list[int], reason: FinishReason | None
) -> None:
    answer = {"id": number, "token_ids": token_ids, "reason": reason}
    writer.write(json.dumps(answer).encode() + b"\n")


def main() -> int:
    """The process: `python -m blink_server.testing.fake_runner`, started by `serve`."""
    channel = RunnerChannel.from_environment()
    channel.start()

    async def run() -> None:
        runner = FakeRunner(channel)
        runner.load()
        await runner.serve()

    try:
        asyncio.run(run())
    except BlinkError as error:
        channel.failed(str(error))
        print(f"cannot load: {error}", file=sys.stderr)
        return 1
    finally:
        with contextlib.suppress(RuntimeError):
            channel.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
