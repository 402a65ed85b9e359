from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from blink_server.backend import ModelVersion, SessionLimits
from blink_server.builtin import blink_tokenizers, blink_tool_parsers
from blink_server.errors import InvalidModel, Unavailable, UnknownModel
from blink_server.http.model_entry import ModelEntry
from blink_server.http.models import ModelDirectory
from blink_server.http.text_parts import TextParts, load_text_parts
from blink_server.messages import EndpointKey
from blink_server.repository.harness import State
from blink_server.testing.fake_backend import FakeSession
from blink_server.testing.tiny_tokenizer import CHAT_TEMPLATE, byte_level_tokenizer
from blink_server.text.tokenizers import HuggingFaceTokenizer

TEXT = TextParts(HuggingFaceTokenizer(byte_level_tokenizer()), None)


def entry(
    model: str = "m", version: int = 1, epoch: int = 1, state: State = State.READY, **more: Any
) -> ModelEntry:
    session = FakeSession(lambda request: [], SessionLimits(16, 300, (2,)))
    described = ModelVersion(model, version, Path("unused"), {})
    more.setdefault("session", session)
    return ModelEntry(described, epoch, state, text=TEXT, **more)


def test_the_highest_ready_version_serves_the_bare_name() -> None:
    directory = ModelDirectory()
    directory.publish([entry(version=2), entry(version=10), entry(version=11, state=State.LOADING)])
    assert directory.find("m").version.version == 10
    assert directory.find("m:2").version.version == 2
    assert directory.find("m:11").state is State.LOADING


def test_without_a_ready_version_the_highest_one_says_why() -> None:
    directory = ModelDirectory()
    gone = entry(version=3, state=State.UNAVAILABLE, reason="runner exited: signal SIGKILL")
    directory.publish([entry(version=2, state=State.LOADING), gone])
    with pytest.raises(Unavailable, match="unavailable: runner exited: signal SIGKILL"):
        directory.lease("m")


@pytest.mark.parametrize("name", ["other", "m:9", "m:", "m:01", "m:x", ":1", "", "m:1:1"])
def test_unknown_names(name: str) -> None:
    directory = ModelDirectory()
    directory.publish([entry()])
    with pytest.raises(UnknownModel):
        directory.lease(name)


def test_a_model_without_any_version_says_why() -> None:
    directory = ModelDirectory()
    why = entry(version=0, state=State.UNAVAILABLE, reason="two models have the name 'm'")
    directory.publish([why, entry("other")])
    for name in ("m", "m:1", "m:x"):
        with pytest.raises(Unavailable, match="unavailable: two models have the name 'm'"):
            directory.lease(name)
    assert (directory.models, len(directory.entries)) == (["other"], 1)
    directory.publish([why, entry()])
    assert directory.find("m").version.version == 1
    with pytest.raises(UnknownModel):
        directory.find("m:0")


def test_aliases_and_names() -> None:
    directory = ModelDirectory()
    directory.publish([entry("a", aliases=("best", "b")), entry("b", version=7)])
    assert directory.find("best").version.model == "a"
    assert directory.find("best:1").version.model == "a"
    assert directory.find("b").version.model == "b"


def test_an_entry_that_is_not_connected_is_unavailable() -> None:
    directory = ModelDirectory()
    directory.publish([entry(session=None)])
    with pytest.raises(Unavailable, match="not connected yet"):
        directory.lease("m")


def test_a_retired_endpoint_is_released_after_its_last_lease() -> None:
    directory = ModelDirectory()
    released: list[EndpointKey] = []
    directory.on_released(released.append)
    old, new = entry(epoch=1), entry(epoch=2)
    directory.publish([old])
    first = directory.lease("m")
    with directory.lease("m") as held:
        assert held is old
        second = first.share()
    directory.publish([new])
    assert directory.lease("m").entry is new
    first.release()
    first.release()
    assert released == []
    second.release()
    assert released == [old.key]
    assert directory.leases(old.key) == 0
    directory.publish([new])
    assert released == [old.key]


def test_an_endpoint_without_leases_is_released_at_once() -> None:
    directory = ModelDirectory()
    released: list[EndpointKey] = []
    directory.on_released(released.append)
    old = entry()
    directory.publish([old])
    directory.publish([old])
    assert released == []
    directory.publish([entry(state=State.DRAINING)])
    assert released == [old.key]
    directory.publish([])
    assert released == [old.key]


def test_an_entry_that_never_served_is_not_released() -> None:
    directory = ModelDirectory()
    released: list[EndpointKey] = []
    directory.on_released(released.append)
    directory.publish([entry(state=State.LOADING)])
    directory.publish([])
    assert released == []


def test_an_ended_lease_cannot_be_shared() -> None:
    directory = ModelDirectory()
    directory.publish([entry()])
    lease = directory.lease("m")
    lease.release()
    with pytest.raises(RuntimeError):
        lease.share()


async def test_the_next_endpoint_is_waited_for() -> None:
    directory = ModelDirectory()
    old, new = entry(epoch=1), entry(epoch=2)
    directory.publish([old])
    lease = directory.lease("m")
    waiting = asyncio.create_task(directory.lease_next("m", after=lease, timeout=60))
    await asyncio.sleep(0)
    directory.publish([old, entry("other")])
    await asyncio.sleep(0)
    assert not waiting.done()
    directory.publish([new])
    lease = await waiting
    assert lease.entry is new
    with pytest.raises(Unavailable, match="changing its endpoint"):
        await directory.lease_next("m", after=lease, timeout=0)


async def test_a_new_session_to_the_same_endpoint_is_a_next_one() -> None:
    directory = ModelDirectory()
    directory.publish([entry(epoch=1)])
    lost = directory.lease("m")
    again = entry(epoch=1)
    directory.publish([again])
    assert (await directory.lease_next("m", after=lost, timeout=0)).entry is again


def test_text_parts_come_from_the_version_directory(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(byte_level_tokenizer())
    (tmp_path / "chat.jinja").write_text("{{ bos_token }}{{ eos_token }}" + CHAT_TEMPLATE)
    config = {
        "tokenizer": {"name": "huggingface", "file": "tokenizer.json"},
        "chat_template": "chat.jinja",
        "bos_token_id": 1,
        "eos_token_ids": [2, 0],
    }
    version = ModelVersion("m", 1, tmp_path, config)
    parts = load_text_parts(version, blink_tokenizers(), blink_tool_parsers())
    assert parts.chat_template is not None
    rendered = parts.chat_template.render([{"role": "user", "content": "Hi"}])
    assert rendered.startswith("<|im_start|><|im_end|><|im_start|>user\nHi")
    bare = {**config, "chat_template": None, "bos_token_id": None}
    assert load_text_parts(ModelVersion("m", 1, tmp_path, bare), blink_tokenizers(), {})
    with pytest.raises(Unavailable, match="no plugin brings the tokenizer 'huggingface'"):
        load_text_parts(version, {}, {})
    (tmp_path / "tokenizer.json").write_text(json.dumps({}))
    with pytest.raises(InvalidModel, match=r"tokenizer\.json"):
        load_text_parts(version, blink_tokenizers(), blink_tool_parsers())
