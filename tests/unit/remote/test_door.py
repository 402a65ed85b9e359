"""The door against strangers, garbage and frontends that come and go."""

from __future__ import annotations

import asyncio
import json
import os
import random
import ssl
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from blink_server.errors import Unavailable
from blink_server.message_codec import decode, encode
from blink_server.messages import CatalogUpdate, Connected, EndpointKey, RegisterWorker, Released
from blink_server.remote.credentials import Credentials, frontend_context
from blink_server.remote.door import _MOST_STRANGERS, Lines
from blink_server.remote.gate_link import GateLink
from blink_server.remote.host_link import DoorRefusedError, expect, send
from blink_server.remote.messages import Attached, Fetch, Hello, Part, Refused, Say

KEY = EndpointKey("tiny", 1, 1)


async def knock(site: Any) -> Lines:
    """A connection over TLS that has said nothing."""
    opened = await asyncio.open_connection("127.0.0.1", site.port, ssl=frontend_context())
    return Lines(*opened)


async def test_a_wrong_token_is_refused(site: Any) -> None:
    wrong = replace(site.link, credentials=Credentials("x" * 43, site.link.credentials.fingerprint))
    with pytest.raises(DoorRefusedError, match="the token is wrong"):
        await wrong.open("follow")


async def test_the_token_is_not_sent_to_another_certificate(site: Any) -> None:
    said: list[bytes] = []
    read = Lines.read

    async def listen(lines: Lines) -> bytes:
        line = await read(lines)
        said.append(line)
        return line

    Lines.read = listen  # type: ignore[method-assign]
    try:
        credentials = replace(site.link.credentials, fingerprint="sha256:" + "0" * 64)
        with pytest.raises(Unavailable, match=r"certificate is sha256:.*, not sha256:000"):
            await replace(site.link, credentials=credentials).open("follow")
        (await site.link.open("follow")).writer.close()
    finally:
        Lines.read = read  # type: ignore[method-assign]
    assert len([line for line in said if site.link.credentials.token.encode() in line]) == 1


GARBAGE = [
    b"\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"{}\n",
    b"[1,2]\n",
    b'{"type":"hello"}\n',
    b'{"type":"hello","token":1,"frontend":"x","purpose":"follow"}\n',
    b'{"type":"hello","token":"","frontend":"x","purpose":"dance"}\n',
    b'{"type":"attach","transport":"fake"}\n',
    b"\xff\xfe\x00\n",
    b"[" * 60000 + b"\n",
    b'{"type":"hello","token":"' + b"a" * (1 << 20) + b'"}\n',
    json.dumps({"type": "hello", "token": "\ud800", "frontend": "x", "purpose": "follow"}).encode()
    + b"\n",
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
async def test_garbage_ends_its_own_connection(site: Any, garbage: bytes) -> None:
    lines = await knock(site)
    lines.writer.write(garbage)
    try:
        reply = await asyncio.wait_for(lines.reader.read(), 20)
    except ConnectionError:  # it is not read to its end
        reply = b""
    assert not reply or isinstance(decode(reply, (Refused,)), Refused)
    (await site.link.open("fetch")).writer.close()


async def test_random_bytes_with_and_without_tls(site: Any) -> None:
    chance = random.Random(1)
    for number in range(40):
        if number % 2:
            lines = await knock(site)
        else:
            lines = Lines(*await asyncio.open_connection("127.0.0.1", site.port))
        lines.writer.write(chance.randbytes(chance.randint(1, 3000)) + b"\n")
        lines.writer.write_eof() if lines.writer.can_write_eof() else lines.writer.close()
        try:
            await asyncio.wait_for(lines.reader.read(), 20)
        except (ConnectionError, ssl.SSLError):
            continue
    (await site.link.open("fetch")).writer.close()


@pytest.mark.parametrize(
    "body",
    [{}, {"type": "dance"}, {"type": "connect"}, {"type": "connect", "name": 5}, {"type": ["x"]}],
)
async def test_an_agents_garbage_is_answered(site: Any, body: dict[str, Any]) -> None:
    gate = GateLink(site.link, site.asked())
    await gate.open()
    keeping = asyncio.create_task(gate.keep())
    assert (await gate.ask(body))["type"] == "unreachable"
    assert (await gate.ask({"type": "attach"}))["address"] == {"number": 1}
    keeping.cancel()


async def test_too_many_strangers_are_turned_away(site: Any) -> None:
    strangers = [await knock(site) for _ in range(_MOST_STRANGERS)]
    while site.door._strangers < _MOST_STRANGERS:  # noqa: ASYNC110 (nobody tells)
        await asyncio.sleep(0)
    with pytest.raises(DoorRefusedError, match="too many connections without a token"):
        await site.link.open("follow")
    for stranger in strangers:
        stranger.writer.close()
    while site.door._strangers:  # noqa: ASYNC110
        await asyncio.sleep(0)
    (await site.link.open("follow")).writer.close()


async def test_a_frontend_follows_the_catalog(site: Any) -> None:
    lines = await site.link.open("follow")
    send(lines, RegisterWorker(os.getpid()))
    update = await expect(lines, CatalogUpdate)
    assert [entry.key for entry in update.models] == [KEY]
    assert not site.catalog.reachable(KEY)
    send(lines, Connected("tiny", 1, 1))
    await site.catalog.until_reachable(KEY, 20)
    assert site.catalog.reachable(KEY)
    await site.catalog.publish("READY", [])
    assert (await expect(lines, CatalogUpdate)).models == ()
    send(lines, Released("tiny", 1, 1))
    await asyncio.wait_for(site.catalog.released(KEY), 20)
    lines.writer.close()


async def test_files_are_had_by_their_hash_only(site: Any) -> None:
    digest = site.files.of(site.entry)["tokenizer.json"]
    lines = await site.link.open("fetch")
    send(lines, Fetch(digest, 0))
    part = await expect(lines, Part)
    assert part.size > 100
    send(lines, Fetch(digest, part.size))
    assert (await expect(lines, Part)).data == ""
    send(lines, Fetch("../../etc/passwd", 0))
    with pytest.raises(DoorRefusedError, match="there is no file of SHA-256"):
        await expect(lines, Part)
    lines.writer.close()


async def test_an_endpoint_that_is_not_there_is_refused(site: Any) -> None:
    with pytest.raises(DoorRefusedError, match="tiny:1 epoch 9 is not in service"):
        await GateLink(site.link, site.asked(epoch=9)).open()


async def test_a_door_that_has_just_begun_waits_for_the_catalog(site: Any) -> None:
    """One that was started again: nobody is told that his endpoint is gone."""
    site.catalog._update = None
    opening = asyncio.create_task(GateLink(site.link, site.asked()).open())
    while not site.catalog._changed._waiters:  # noqa: ASYNC110 (nobody tells)
        await asyncio.sleep(0)
    await site.catalog.publish("READY", [site.entry])
    await asyncio.wait_for(opening, 20)
    assert len(site.gates) == 1


async def test_what_the_gate_refuses_is_told(site: Any) -> None:
    with pytest.raises(DoorRefusedError, match="another layout"):
        await GateLink(site.link, site.asked(layout_hash="0")).open()
    with pytest.raises(DoorRefusedError, match="3 ranges are free"):
        await GateLink(site.link, site.asked(ranges=4)).open()
    assert site.gates == []


async def ended(gate: Any) -> None:
    async with asyncio.timeout(20):
        while not gate.closed:  # noqa: ASYNC110 (a gate tells nobody)
            await asyncio.sleep(0)


async def test_an_orderly_end_gives_the_ranges_back_at_once(site: Any) -> None:
    gate = GateLink(site.link, site.asked(ranges=2))
    await gate.open()
    assert site.sessions.in_use() == {KEY: 7}
    await gate.close()
    await ended(site.gates[0])
    assert site.sessions.in_use() == {}


async def test_a_lost_connection_is_come_back_to(site: Any) -> None:
    gate = GateLink(site.link, site.asked())
    await gate.open()
    keeping = asyncio.create_task(gate.keep())
    assert (await gate.ask({"type": "attach"}))["type"] == "attached"
    for task in list(site.door._connections):
        task.cancel()
    name = {"type": "connect", "name": {"number": 1}}
    async with asyncio.timeout(20):
        while (await gate.ask(name))["type"] != "connected":
            pass
    assert len(site.gates) == 1
    assert not site.gates[0].closed
    keeping.cancel()


async def test_who_stays_away_loses_the_ranges(make_site: Callable[[float], Any]) -> None:
    site = await make_site(0.0)
    gate = GateLink(site.link, site.asked())
    await gate.open()
    gate._lines.writer.close()  # type: ignore[union-attr]
    await ended(site.gates[0])
    with pytest.raises(DoorRefusedError, match="the ranges were taken back"):
        await gate.open()
    await site.door.close()


async def test_a_session_is_its_frontends_alone(site: Any) -> None:
    lines = await site.link.open("attach")
    send(lines, site.asked())
    session = (await expect(lines, Attached)).session
    other = replace(site.link, frontend="dpu-2")
    with pytest.raises(DoorRefusedError, match="the ranges were taken back"):
        await GateLink(other, replace(site.asked(), session=session)).open()
    assert not site.gates[0].closed
    lines.writer.close()


async def test_a_frontends_new_agent_follows_its_dead_one(site: Any) -> None:
    first, second = (GateLink(site.link, site.asked(ranges=3)) for _ in range(2))
    await first.open()
    await second.open()
    assert [gate.closed for gate in site.gates] == [1, 0]
    with pytest.raises(DoorRefusedError, match="the ranges were taken back"):
        await first.open()


async def test_a_lost_runner_ends_its_sessions(site: Any) -> None:
    gate = GateLink(site.link, site.asked())
    await gate.open()
    keeping = asyncio.create_task(gate.keep())
    site.gates[0].lost.set()
    with pytest.raises(DoorRefusedError, match="the ranges were taken back"):
        await asyncio.wait_for(keeping, 20)
    assert site.gates[0].closed == 1


async def test_hello_is_plain(site: Any) -> None:
    """Whoever writes another client: one line, and one line back."""
    lines = await knock(site)
    token = site.link.credentials.token
    lines.writer.write(encode(Hello(token, "mine", "attach")))
    assert json.loads(await lines.reader.readline()) == {"type": "welcome"}
    lines.writer.write(encode(site.asked()))
    assert json.loads(await lines.reader.readline())["type"] == "attached"
    lines.writer.write(encode(Say({"type": "attach"})))
    assert json.loads(await lines.reader.readline())["body"]["transport"] == "fake"
    lines.writer.close()
