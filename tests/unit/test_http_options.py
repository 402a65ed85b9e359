from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from blink_server.errors import BlinkError
from blink_server.gunicorn_settings import API_KEY_FILE_VARIABLE
from blink_server.http.settings import ServerSettings
from blink_server.http_options import HttpOptions, http_options
from blink_server.testing.certificates import make_certificate


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
    assert ServerSettings.of_environment({}) == ServerSettings()
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
    assert ServerSettings.of_environment(environment) == ServerSettings(
        api_key_file=tmp_path / "keys",
        http=HttpOptions(
            max_requests_per_key=3,
            request_timeout_secs=1.5,
            max_body_mib=2,
            max_connections=7,
            head_timeout_secs=2.5,
            grammar_timeout_ms=250,
            cors_origins="https://a,https://b",
            access_log=str(log),
            strict_readiness=True,
            default_model="chat:3",
            console=False,
        ),
    )
    assert options.origins == ["https://a", "https://b"]
    assert options.max_body_bytes == 2 * 1024 * 1024


def test_the_record_of_a_front_can_be_compared_with_its_options(tmp_path: Path) -> None:
    options = parse("--cors-origin", "*", "--access-log", "-")
    assert json.loads(json.dumps(asdict(options))) == asdict(options)


def test_tls_reaches_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = make_certificate(tmp_path, "server")
    options = parse("--tls-certificate", "server.pem", "--tls-key", "server.key")
    assert options.scheme == "https"
    assert HttpOptions.of_environment(options.environment()).certificate_files == made
    assert HttpOptions().certificate_files is None


def test_a_certificate_and_another_ones_key_are_refused(tmp_path: Path) -> None:
    one, other = make_certificate(tmp_path, "one"), make_certificate(tmp_path, "other")
    with pytest.raises(BlinkError, match=r"--tls-key: TLS key .*other\.key: is not the key of"):
        parse("--tls-certificate", str(one.certificate), "--tls-key", str(other.key))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tls-certificate", "chain.pem"], "need each other"),
        (["--tls-key", "none.pem"], "need each other"),
        (["--tls-certificate", "chain.pem", "--tls-key", "none.pem"], "chain.pem: holds no cert"),
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
