"""What `serve` passes on to runners."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner

from blink_server import serve
from blink_server.control import HOST_RANGES_VARIABLE


@pytest.mark.parametrize(
    ("more", "ranges"),
    [([], "4"), (["--no-frontends-gpudirect"], None)],
)
def test_ranges_of_a_gpus_ring_stay_for_this_hosts_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str], ranges: str | None
) -> None:
    found: list[str | None] = []

    async def run(_options: object) -> None:
        found.append(os.environ.get(HOST_RANGES_VARIABLE))

    monkeypatch.setattr(serve, "_run", run)
    door = ["--frontends-listen=127.0.0.1:0", "--frontends-device=mlx5_0"]
    keys = f"--frontends-key-dir={tmp_path / 'keys'}"
    with mock.patch.dict(os.environ):
        os.environ.pop(HOST_RANGES_VARIABLE, None)
        result = CliRunner().invoke(serve.serve_command, ["--workers=3", *door, keys, *more])
    assert result.exit_code == 0, result.output
    assert found == [ranges]
