from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from blink_server.errors import BlinkError
from blink_server.gunicorn_settings import API_KEY_FILE_VARIABLE
from blink_server.http.settings import ServerSettings
from blink_server.http_options import HttpOptions, http_options, settings_from


def parse(*arguments: str) -> HttpOptions:
    """What a command with these options, and one of its own, is given."""
    given: dict[str, Any] = {}

    @click.command()
    @click.option("--port", type=int)
    @http_options
    def command(port: int, http: HttpOptions) -> None:
        given.update(port=port, http=http)

    result = CliRunner().invoke(command, ["--port", "5", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    assert given["port"] == 5
    options: HttpOptions = given["http"]
    return options


def test_nothing_given_is_the_default() -> None:
    assert parse() == HttpOptions()
    assert settings_from({}) == ServerSettings()
    assert HttpOptions().gunicorn_arguments() == ["--worker-connections=1000"]


def test_what_is_given_reaches_the_worker(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    options = parse(
        *("--max-requests-per-key", "3", "--request-timeout-secs", "1.5", "--max-body-mib", "2"),
        *("--cors-origin", "https://a", "--cors-origin", "https://b", "--access-log", str(log)),
        *("--max-connections", "7", "--head-timeout-secs", "2.5"),
        *("--grammar-timeout-ms", "250"),
        *("--default-model", "chat:3", "--strict-readiness", "--no-console"),
    )
    assert options.gunicorn_arguments() == ["--worker-connections=7"]
    environment = {**options.environment(), API_KEY_FILE_VARIABLE: str(tmp_path / "keys")}
    assert settings_from(environment) == ServerSettings(
        api_key_file=tmp_path / "keys",
        head_seconds=2.5,
        grammar_seconds=0.25,
        max_body_bytes=2 * 1024 * 1024,
        max_requests_per_key=3,
        request_seconds=1.5,
        cors_origins=("https://a", "https://b"),
        access_log=str(log),
        strict_readiness=True,
        default_model="chat:3",
        console=False,
    )


def test_the_record_of_a_front_can_be_compared_with_its_options(tmp_path: Path) -> None:
    options = parse("--cors-origin", "*", "--access-log", "-")
    assert json.loads(json.dumps(asdict(options))) == asdict(options)


def test_tls_is_gunicorns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("chain.pem", "key.pem"):
        Path(name).touch()
    options = parse("--tls-certificate", "chain.pem", "--tls-key", "key.pem")
    assert options.scheme == "https"
    assert options.gunicorn_arguments() == [
        "--worker-connections=1000",
        f"--certfile={tmp_path / 'chain.pem'}",
        f"--keyfile={tmp_path / 'key.pem'}",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tls-certificate", "chain.pem"], "need each other"),
        (["--tls-key", "none.pem"], "none.pem: is not a file"),
        (["--access-log", "no/such/folder/log"], "no/such/folder/log: No such file"),
    ],
)
def test_what_cannot_be_used_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("chain.pem").touch()
    with pytest.raises(BlinkError, match=message):
        parse(*arguments)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read every file")
def test_a_key_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.touch(mode=0o000)
    with pytest.raises(BlinkError, match=r"key\.pem"):
        parse("--tls-key", str(key))
