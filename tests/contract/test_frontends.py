"""Whole frontends, on whatever transport: their answers, and what accidents do to them.

One server with its own local worker, and two frontends, serve all tests of a transport, in order:
what one test breaks must be whole for the next.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPResponse

import pytest

from blink_persistent.testing.frontend_site import (
    LONG,
    SECONDS,
    Site,
    Started,
    Stream,
    answer,
    wait_until,
)
from blink_persistent.testing.scripted_version import write_scripted_version

TRANSPORTS = [
    pytest.param("file", marks=pytest.mark.slow),
    pytest.param("rdma", marks=pytest.mark.rdma),
]
REQUESTS, CONCURRENCY, LONGEST = 200, 32, 8
SHORT = 25  # tokens: half a second
QUEUED = 250  # more than a frontend's share of the queue, and than its rows


@pytest.fixture(scope="module", params=TRANSPORTS)
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    started: Started = request.getfixturevalue(f"{request.param}_programs")
    server, *frontends = started.programs
    import openai.resources.completions  # noqa: F401 (slow in the guest: while the servers start)

    local, *remote = (program.line("Blink ").split()[-1] for program in started.programs)
    site = Site(started.repository, started.runtime, server, frontends, local, remote)
    for url in remote:  # they do not wait for ever for a model that they must refuse
        wait_until(lambda url=url: site.serves(url, "scripted"), "the model is served")  # type: ignore[misc]
    yield site
    started.programs[:] = [*site.frontends, site.server]
    for stopping in (site.frontends, [site.server]):
        for program in stopping:
            program.terminate()
        assert {program.wait() for program in stopping} == {0}


def prompt_of(number: int) -> str:
    return f"{number} " + "word " * (number * 7 % 60)


def tokens_of(number: int) -> int:
    return 1 + number * 13 % LONGEST


def local_answers(url: str) -> list[str]:
    """Without a client library, and many to a request: the guest is slow."""

    def ask_for(tokens: int) -> dict[int, str]:
        numbers = [number for number in range(REQUESTS) if tokens_of(number) == tokens]
        body = {"model": "scripted", "prompt": [*map(prompt_of, numbers)], "max_tokens": tokens}
        request = urllib.request.Request(
            f"{url}/v1/completions",
            json.dumps({**body, "temperature": 0}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as reply:
            texts = [choice["text"] for choice in json.load(reply)["choices"]]
        return dict(zip(numbers, texts, strict=True))

    with ThreadPoolExecutor(4) as threads:
        found = {
            n: t for part in threads.map(ask_for, range(1, LONGEST + 1)) for n, t in part.items()
        }
    return [found[number] for number in range(REQUESTS)]


def stream_request(url: str, prompt: str, tokens: int = LONG) -> urllib.request.Request:
    body = {"model": "scripted", "prompt": prompt, "max_tokens": tokens, "stream": True}
    return urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )


async def remote_answers(urls: list[str]) -> list[str]:
    """Streamed to the `openai` client, 32 at a time."""
    from openai import AsyncOpenAI

    clients = [AsyncOpenAI(base_url=f"{url}/v1", api_key="-", timeout=120) for url in urls]
    room = asyncio.Semaphore(CONCURRENCY)

    async def one(number: int) -> str:
        async with room:
            stream = await clients[number % len(clients)].completions.create(
                model="scripted",
                prompt=prompt_of(number),
                max_tokens=tokens_of(number),
                temperature=0,
                stream=True,
            )
            return "".join([event.choices[0].text async for event in stream])

    return list(await asyncio.gather(*map(one, range(REQUESTS))))


def test_answers_are_those_of_the_local_path(site: Site) -> None:
    """200 requests of mixed lengths through two frontends, and the same ones beside the ring."""
    with ThreadPoolExecutor(1) as beside:
        local = beside.submit(local_answers, site.local)
        assert asyncio.run(remote_answers(site.remote)) == local.result()
    assert len(set(local.result())) > REQUESTS // 2
    wait_until(lambda: site.requests() == 0, "every slot is given back")


def test_clients_that_go_away_leave_no_request_behind(site: Site) -> None:
    processes = [Stream(site.remote[0], f"gone {n}", SHORT) for n in range(8)]
    for each in processes:
        each.begun.wait()
    expected = answer(site.local, "gone 0", SHORT)
    for each in processes:
        each.wait()
    assert processes[0].text == expected
    replies = [
        urllib.request.urlopen(stream_request(site.remote[0], "x"), timeout=60) for _ in range(30)
    ]
    for reply in replies:
        reply.readline()
    for reply in replies:
        reply.close()
    wait_until(lambda: site.requests() == 0, "the slots of clients that went away are empty")


@pytest.mark.parametrize("site", TRANSPORTS[:1], indirect=True, scope="module")
def test_when_the_queue_is_full_clients_are_told_to_come_again(site: Site) -> None:
    asked = [stream_request(site.remote[0], f"{number}", LONG) for number in range(QUEUED)]
    waiting = [HTTPConnection(request.host) for request in asked]
    for connection, request in zip(waiting, asked, strict=True):
        connection.request("POST", request.selector, request.data, dict(request.headers))
    replies: list[HTTPResponse] = []
    while not any(reply.status == 503 for reply in replies):
        heard, _, _ = select.select([each.sock for each in waiting], [], [], SECONDS)
        assert heard, "nobody is refused"
        replies += [each.getresponse() for each in waiting if each.sock in heard]
        waiting = [each for each in waiting if each.sock not in heard]
    assert {reply.status for reply in replies} <= {200, 503}
    refused = [reply for reply in replies if reply.status == 503]
    assert all(reply.headers["Retry-After"] for reply in refused)
    assert all(b"queue is full" in reply.read() for reply in refused)
    for open_one in (*waiting, *replies):
        open_one.close()
    wait_until(lambda: site.requests() == 0, "the slots of clients that went away are empty")


@pytest.mark.parametrize("site", TRANSPORTS[:1], indirect=True, scope="module")
def test_a_model_without_its_tokenizer_is_refused_by_name(site: Site) -> None:
    assert "no plugin here brings the tokenizer 'exotic'" in site.frontends[0].line("exotic:1  ")
    assert site.serves(site.local, "exotic")
    assert not site.serves(site.remote[0], "exotic")


@pytest.mark.parametrize("site", TRANSPORTS[1:], indirect=True, scope="module")
def test_streams_go_on_after_the_link_was_down(site: Site) -> None:
    from rdma_frontend.testing.guest import HOST_LINK, set_link

    local, *streams = (Stream(url, "through") for url in (site.local, *site.remote))
    for stream in streams:
        stream.begun.wait()
    seen = [len(frontend.lines) for frontend in site.frontends]
    set_link(HOST_LINK, "down")
    try:
        for frontend, before in zip(site.frontends, seen, strict=True):
            frontend.line("trying for", after=before)
    finally:
        set_link(HOST_LINK, "up")
    local.wait()
    for stream in streams:
        stream.wait()
        assert (stream.text, stream.error) == (local.text, "")
    assert local.finish == "length"


def test_a_killed_agent_ends_its_own_streams_only(site: Site) -> None:
    other = Stream(site.remote[1], "other")
    other.begun.wait()
    mine = Stream(site.remote[0], "mine")  # the last to begin: it must not have ended by itself
    mine.begun.wait()
    (agent,) = site.frontends[0].children("blink_persistent.agent")
    os.kill(agent, signal.SIGKILL)
    mine.wait()
    assert "gone" in mine.error or "lost" in mine.error
    other.wait()
    assert (other.finish, other.error) == ("length", "")
    wait_until(lambda: site.serves(site.remote[0], "scripted"), "a new agent serves")
    assert answer(site.remote[0], "after") == answer(site.local, "after")


def test_a_killed_door_ends_remote_streams_and_comes_again(site: Site) -> None:
    local = Stream(site.local, "local")
    local.begun.wait()
    remote = Stream(site.remote[0], "remote")
    remote.begun.wait()
    (door,) = site.server.children("door_process")
    os.kill(door, signal.SIGKILL)
    remote.wait()
    assert remote.error
    local.wait()
    assert (local.finish, local.error) == ("length", "")
    for url in site.remote:
        wait_until(lambda url=url: site.serves(url, "scripted"), "the frontend is back")  # type: ignore[misc]
        assert answer(url, "after the door") == answer(site.local, "after the door")
    wait_until(lambda: site.requests() == 0, "the dead door's slots are taken back")


@pytest.mark.parametrize("site", TRANSPORTS[:1], indirect=True, scope="module")
def test_another_model_is_followed_without_a_restart(site: Site) -> None:
    before = [frontend.pid for frontend in site.frontends]
    write_scripted_version(site.repository, "second", limits={"slots": 1024})
    for url in site.remote:
        wait_until(lambda url=url: site.serves(url, "second"), "the new model is served")  # type: ignore[misc]
    assert [frontend.pid for frontend in site.frontends] == before


def test_slots_of_a_killed_frontend_are_taken_back(site: Site) -> None:
    stream, local = Stream(site.remote[1], "doomed"), Stream(site.local, "local")
    stream.begun.wait()
    frontend = site.frontends.pop()
    frontend.kill()
    stream.wait()
    local.wait()
    assert (local.finish, local.error) == ("length", "")
    wait_until(lambda: site.requests() == 0, "the dead frontend's slots are taken back")
    site.killed.append(frontend)


@pytest.mark.parametrize("site", TRANSPORTS[:1], indirect=True, scope="module")
def test_a_killed_frontend_may_come_back(site: Site) -> None:
    site.frontends.append(site.killed.pop().again())
    url = site.frontends[-1].line("Blink frontend on").split()[-1]
    assert answer(url, "another") == answer(site.local, "another")
