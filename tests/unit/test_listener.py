from __future__ import annotations

import socket

import pytest

from blink_server.errors import BlinkError
from blink_server.listener import bind_listener, is_loopback, url_of


def test_the_socket_listens_on_a_free_port() -> None:
    with bind_listener("127.0.0.1", 0) as listener:
        host, port = listener.getsockname()
        assert host == "127.0.0.1"
        with socket.create_connection((host, port)):
            pass


def test_a_port_in_use_is_named() -> None:
    with bind_listener("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(BlinkError, match=rf"^cannot listen on 127\.0\.0\.1:{port}: .* in use$"):
            bind_listener("127.0.0.1", port)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(BlinkError, match=r"cannot listen on 203\.0\.113\.1:8000: "):
        bind_listener("203.0.113.1", 8000)


@pytest.mark.parametrize(
    ("host", "only_this_machine"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("localhost", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("203.0.113.1", False),
    ],
)
def test_who_can_reach_a_host(host: str, only_this_machine: bool) -> None:
    assert is_loopback(host) is only_this_machine


def test_a_host_without_address_is_named() -> None:
    with pytest.raises(BlinkError, match="host 'no such host'"):
        is_loopback("no such host")


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("::1", "http://[::1]:80"),
        ("0.0.0.0", "http://localhost:80"),
        ("::", "http://localhost:80"),
    ],
)
def test_the_url_is_one_that_a_client_can_use(host: str, url: str) -> None:
    assert url_of(host, 80) == url
