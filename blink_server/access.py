"""Who may send requests to a server that listens on a host."""

from __future__ import annotations

from pathlib import Path

from blink_server.api_keys import read_api_keys
from blink_server.errors import BlinkError
from blink_server.listener import is_loopback


def check_access(host: str, api_key_file: Path | None, *, insecure: bool) -> None:
    """Raises BlinkError: an unprotected host, or a key file that cannot be used."""
    if api_key_file is not None:
        read_api_keys(api_key_file)
    elif not insecure and not is_loopback(host):
        raise BlinkError(
            f"--host {host} lets other machines in: give --api-key-file FILE, or --insecure to "
            "do without keys"
        )
