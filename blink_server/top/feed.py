"""Reads a server's console feed, /console/events, one connection at a time."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from typing import Any

from blink_server.errors import BlinkError

State = dict[str, Any]

_SILENCE_SECONDS = 25.0  # the server gives a sign of life every 10 s


class Refused(BlinkError):
    """The server answers, but shows nothing to whoever asks like this."""


class Lost(BlinkError):
    """There is no server, or no longer; it may come back."""


def events(url: str, key: str | None) -> Iterator[tuple[str, State]]:
    """The events of one connection, each with its name. Blocks.

    Returns when the server says good-bye. Raises `Refused`, `Lost`.
    """
    headers = {"Accept": "text/event-stream", "User-Agent": "blink-server-top"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    try:
        request = urllib.request.Request(f"{url.rstrip('/')}/console/events", headers=headers)
        with urllib.request.urlopen(request, timeout=_SILENCE_SECONDS) as response:
            yield from parse(response)
    except urllib.error.HTTPError as error:
        with error:
            raise _refusal(url, error.code, key) from None
    except urllib.error.URLError as error:
        raise Lost(f"{url} cannot be reached: {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise Lost(f"the connection to {url} broke: {error}") from None
    except ValueError as error:
        raise Refused(f"{url} cannot be followed: {error}") from None


def parse(lines: Iterable[bytes]) -> Iterator[tuple[str, State]]:
    """The events in the lines of a stream, up to one named "bye"."""
    name, data = "", b""
    for line in lines:
        field, _, value = line.rstrip(b"\r\n").partition(b": ")
        if field == b"event":
            name = value.decode()
        elif field == b"data":
            data = value
        elif line.strip() == b"" and name:
            if name == "bye":
                return
            yield name, json.loads(data)
            name, data = "", b""


def merge(state: State, change: State) -> None:
    """Make `change` part of `state`; null takes a key away."""
    for key, value in change.items():
        if value is None:
            state.pop(key, None)
        elif isinstance(value, dict) and isinstance(state.get(key), dict):
            merge(state[key], value)
        else:
            state[key] = value


def _refusal(url: str, status: int, key: str | None) -> BlinkError:
    if status == 401:
        asks = "asks for an API key: --api-key-file" if key is None else "does not take the API key"
        return Refused(f"{url} {asks}")
    if status == 404:
        return Refused(f"{url} has no console: it runs with --no-console, or is no Blink server")
    return Lost(f"{url} answers with status {status}")
