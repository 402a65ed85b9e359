"""Server-sent events out of bytes, as they come: little work for each event."""

from __future__ import annotations


class EventParser:
    """Takes a stream's bytes in pieces of any size and gives the data of each whole event."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The `data` of every event that `data` completes; several data lines are joined by LF.

        Comments, other fields and events without data are left out.
        """
        whole = self._rest + data
        if b"\r" in whole:
            whole = whole.replace(b"\r\n", b"\n")
        *events, self._rest = whole.split(b"\n\n")
        return [found for event in events if (found := _data(event)) is not None]


def _data(event: bytes) -> bytes | None:
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    lines = [line[5:] for line in event.split(b"\n") if line.startswith(b"data:")]
    if not lines:
        return None
    return b"\n".join(line[1:] if line.startswith(b" ") else line for line in lines)
