from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blink_server.http.settings import ServerSettings
from blink_server.http_options import HttpOptions
from blink_server.testing.fake_backend import events

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def assert_error(result: Any, status: int, *, param: str | None = None) -> str:
    assert result.status_code == status, result.text
    assert result.headers["content-type"].startswith("application/json")
    error = result.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] is None or isinstance(error["code"], str)
    if param is not None:
        assert error["param"] == param
    return str(error["message"])


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"text"', b"null", b"17", b"\xff\xfe", b'{"temperature": NaN}'],
)
async def test_a_body_that_is_no_json_object(worker: Any, path: str, body: bytes) -> None:
    worker.serve("ok")
    assert_error(await worker.post(path, body), 400)


async def test_a_body_nested_too_deeply(worker: Any) -> None:
    assert_error(await worker.post(CHAT, b'{"a":' + b"[" * 200_000), 400)


async def test_a_number_with_too_many_digits(worker: Any) -> None:
    body = b'{"model": "tiny", "prompt": "x", "seed": ' + b"9" * 5000 + b"}"
    assert_error(await worker.post(COMPLETIONS, body), 400)


async def test_a_wrong_content_type(worker: Any) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    message = assert_error(await worker.post(CHAT, b"{}", headers=headers), 400)
    assert "application/json" in message


async def test_a_body_over_the_limit(worker: Any) -> None:
    worker.settings = ServerSettings(http=HttpOptions(max_body_mib=1))
    worker.serve("ok")
    assert_error(await worker.complete("x" * 2**20), 413)


async def test_a_logit_bias_of_what_is_no_token_id(worker: Any) -> None:
    worker.serve("ok")
    for key in ("abc", "-1", "1.5", ""):
        message = assert_error(await worker.complete(logit_bias={"5": 1, key: 1}), 400)
        assert message == f'logit_bias has the key "{key}"; its keys must be token ids'


async def test_unload_without_the_admin_key_says_which_key_is_needed(
    worker: Any, tmp_path: Path
) -> None:
    keys = tmp_path / "admin-keys"
    keys.write_text("adm1n\n")
    keys.chmod(0o600)
    worker.settings = ServerSettings(http=HttpOptions(admin_key_file=str(keys)))
    for action in ("load", "unload"):
        result = await worker.post(f"/v2/repository/models/tiny/{action}", {})
        assert result.status_code == 401
        told = "an admin key, of the server's --admin-key-file, is needed: Authorization: Bearer"
        assert result.json["error"].startswith(told)


CHAT_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "warm"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"temperature": 10**400}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": -0.1}, "min_p"),
    ({"presence_penalty": 2.5}, "presence_penalty"),
    ({"frequency_penalty": -2.5}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"seed": 2**64}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"n": 0}, "n"),
    ({"n": 9}, "n"),
    ({"n": 10**9}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "many"}, "max_tokens"),
    ({"max_tokens": 3, "min_tokens": 4}, "min_tokens"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop[1]"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": 5}, "stop"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"stop_token_ids": [10**6]}, "stop_token_ids"),
    ({"logit_bias": {"word": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5"),
    ({"logit_bias": {"1000000": 1}}, "logit_bias"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"top_logprobs": 2, "logprobs": False}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": 3}, "logprobs"),
    ({"messages": []}, "messages"),
    ({"messages": "Hi"}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": ["Hi"]}, "messages[0]"),
    ({"messages": [{"content": "Hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": ["Hi"]}]}, "messages[0].content[0]"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0].type",
    ),
    (
        {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]},
        "messages[0].tool_calls[0]",
    ),
    ({"model": 5}, "model"),
    ({"model": 3}, "model"),
    ({"temprature": 1}, "temprature"),
    ({"response_format": {}}, "response_format.type"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}},
        "response_format.json_schema.name",
    ),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_choice": ["a", None]}, "guided_choice[1]"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_json": "[" * 100_000}, "guided_json"),
    ({"guided_json": {"multipleOf": 3}}, "guided_json"),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
]


@pytest.mark.parametrize(("fields", "param"), CHAT_FIELDS)
async def test_wrong_fields_are_named(worker: Any, fields: dict[str, Any], param: str) -> None:
    session = worker.serve("ok")
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], **fields}
    message = assert_error(await worker.post(CHAT, body), 400, param=param)
    assert param.partition("[")[0].partition(".")[0] in message
    assert not session.requests
    assert (await worker.chat()).status_code == 200


UNSUPPORTED: list[dict[str, Any]] = [
    {"functions": [{"name": "f"}]},
    {"modalities": ["text", "audio"]},
    {"prediction": {"type": "content", "content": "x"}},
    {"reasoning_effort": "high"},
    {"continue_final_message": True},
    {"guided_grammar": "root ::= x"},
    {"best_of": 2},
]


@pytest.mark.parametrize("fields", UNSUPPORTED, ids=lambda fields: next(iter(fields)))
async def test_what_is_not_served_is_refused_by_name(worker: Any, fields: dict[str, Any]) -> None:
    worker.serve("ok")
    name = next(iter(fields))
    message = assert_error(await worker.chat(**fields), 400, param=name)
    assert message == f"{name} is not supported by this server"


@pytest.mark.parametrize("fields", [{"echo": True, "logprobs": 1}, {"best_of": 3}, {"suffix": "x"}])
async def test_completion_fields_that_are_not_served(worker: Any, fields: dict[str, Any]) -> None:
    worker.serve("ok")
    assert_error(await worker.complete(**fields), 400, param=next(iter(fields)))


async def test_harmless_and_neutral_fields_are_accepted(worker: Any) -> None:
    worker.serve("ok")
    result = await worker.chat(
        user="me",
        metadata={"a": "b"},
        store=True,
        service_tier="auto",
        parallel_tool_calls=True,
        tools=[],
        tool_choice="none",
        response_format={"type": "text"},
        functions=None,
        stop=None,
        seed=None,
        max_tokens=5.0,
    )
    assert result.status_code == 200


@pytest.mark.parametrize(
    "prompt", ["", [""], [], ["a", ""], [[]], None, 5, [1.5], [-1], [True], [{}]]
)
async def test_empty_and_wrong_prompts_are_refused_and_the_next_request_served(
    worker: Any, prompt: Any
) -> None:
    session = worker.serve("ok")
    assert_error(await worker.complete(prompt), 400, param="prompt")
    assert not session.requests
    assert (await worker.complete("Hello")).status_code == 200


@pytest.mark.parametrize(
    ("prompt", "named"),
    [
        ([-1], "prompt[0] is -1;"),
        ([5, 6, 2**31], "prompt[2] is 2147483648;"),
        ([5, True], "prompt[1] is true;"),
        ([[5], [5, 6, "x"]], 'prompt[1][2] is "x";'),
    ],
)
async def test_a_wrong_token_id_is_named_with_its_place(
    worker: Any, prompt: Any, named: str
) -> None:
    worker.serve("ok")
    assert named in assert_error(await worker.complete(prompt), 400, param="prompt")


async def test_a_token_id_outside_the_vocabulary(worker: Any) -> None:
    worker.serve("ok")
    message = assert_error(await worker.complete([5, 100_000]), 400, param="prompt")
    assert "100000" in message


async def test_a_lone_surrogate_in_a_prompt(worker: Any) -> None:
    worker.serve("ok")
    assert_error(await worker.post(COMPLETIONS, b'{"model":"tiny","prompt":"\\ud800"}'), 400)
    body = b'{"model":"tiny","messages":[{"role":"user","content":"\\ud800"}]}'
    assert_error(await worker.post(CHAT, body), 400)
    assert_error(await worker.post(CHAT, b'{"model":"\\ud800","messages":[]}'), 400)


async def test_too_many_choices_in_all(worker: Any) -> None:
    worker.serve("ok")
    assert_error(await worker.complete(["a"] * 100, n=8), 400, param="n")


async def test_log_probabilities_of_completions_end_at_five(worker: Any) -> None:
    worker.serve("ok")
    assert_error(await worker.complete(logprobs=6), 400, param="logprobs")


@pytest.mark.parametrize("model", ["other", "tiny:2", "tiny:0", "tiny:x", "tiny:", ":1", ""])
async def test_an_unknown_model(worker: Any, model: str) -> None:
    worker.serve("ok")
    result = await worker.post(COMPLETIONS, {"model": model, "prompt": "x"})
    message = assert_error(result, 404, param="model")
    assert message.startswith(f"the model {model!r} does not exist or is not in service; ")
    assert "tiny" in message.partition(";")[2]


@pytest.mark.parametrize(
    ("method", "path", "near"),
    [
        ("POST", "/v1/chat/completion", CHAT),
        ("POST", "/v1/v1/chat/completions", CHAT),
        ("POST", "/completions", COMPLETIONS),
        ("GET", "/health/", "/health"),
        ("POST", "/v2/models/my-model/genrate", "/v2/models/my-model/generate"),
        ("GET", "/v2/models/m/version/3/ready", "/v2/models/m/versions/3/ready"),
        ("GET", f"/v2/models/{'m' * 150}/redy", f"/v2/models/{'m' * 150}/ready"),
    ],
)
async def test_an_unknown_path_near_one_that_is_there(
    worker: Any, method: str, path: str, near: str
) -> None:
    result = await (worker.get(path) if method == "GET" else worker.post(path, {}))
    told = f"there is nothing at {method} {path}; did you mean {near}?"
    if path.startswith("/v2"):
        assert (result.status_code, result.json) == (404, {"error": told})
    else:
        assert assert_error(result, 404) == told


@pytest.mark.parametrize(
    "path", ["/zzzzzz", "/" + "x" * 5000, "/health/" + "a" * 180, "/console/nothing"]
)
async def test_an_unknown_path_that_is_like_none(worker: Any, path: str) -> None:
    message = assert_error(await worker.get(path), 404)
    hint = "GET /docs shows what there is"
    assert message == f"there is nothing at GET {path[:200]}; {hint}"


async def test_a_wrong_method(worker: Any) -> None:
    result = await worker.get(CHAT)
    message = assert_error(result, 405)
    assert message == f"there is no GET {CHAT}; this path takes POST, OPTIONS"
    assert result.headers["allow"] == "POST, OPTIONS"


async def test_a_full_ring_is_503_with_retry_after(worker: Any) -> None:
    session = worker.session("ok", free_slots=1)
    worker.directory.publish([worker.entry(session)])
    result = await worker.complete(n=2)
    assert_error(result, 503)
    assert result.headers["retry-after"] == "2"
    assert session.streams[0].cancelled.is_set()
    assert (await worker.complete()).status_code == 200


async def test_a_defect_tells_nothing_of_itself(worker: Any) -> None:
    worker.serve(lambda request: [RuntimeError("secret detail")])
    result = await worker.complete()
    expected = (
        f"internal server error; the server's log has more of {result.headers['x-request-id']}"
    )
    assert assert_error(result, 500) == expected


async def test_a_defect_in_a_stream_tells_nothing_of_itself(worker: Any, frames: Any) -> None:
    worker.serve(lambda request: [*events([50, 51])[:1], RuntimeError("secret detail")])
    chunks = frames((await worker.complete(stream=True)).content)
    assert chunks[-1]["error"]["message"].startswith("internal server error; the server's log")
    assert "secret" not in str(chunks)
