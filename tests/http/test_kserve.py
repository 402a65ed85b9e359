"""Inference by KServe's v2 protocol, of a worker in this process."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blink_server.http_options import HttpOptions
from blink_server.testing.tiny_tokenizer import IM_END

INFER = "/v2/models/tiny/infer"
GENERATE = "/v2/models/tiny/generate"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}  # what curl -d sends


def tensor(name: str, datatype: str, data: Any, shape: list[int] | None = None) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape or [len(data)], "data": data}


def refused(result: Any) -> str:
    assert result.status_code == 400, result.text
    assert list(result.json) == ["error"]
    return str(result.json["error"])


async def test_the_output_has_the_shape_of_the_input(worker: Any) -> None:
    worker.serve("ok")
    exclude = tensor("exclude_input_in_output", "BOOL", [True])
    inputs = [tensor("text_input", "BYTES", [["a"], ["b"]], [2, 1]), exclude]
    result = await worker.post(INFER, {"inputs": inputs})
    [output] = result.json["outputs"]
    assert (output["shape"], output["data"]) == ([2, 1], ["ok", "ok"])


@pytest.mark.parametrize(
    ("datatype", "data"),
    [("INT32", [1, 2]), ("UINT64", [7]), ("FP32", [0.5]), ("BOOL", [True])],
)
async def test_prompts_of_another_datatype_than_text(
    worker: Any, datatype: str, data: list[Any]
) -> None:
    session = worker.serve("ok")
    told = refused(await worker.post(INFER, {"inputs": [tensor("text_input", datatype, data)]}))
    assert told == f"the input 'text_input' has the datatype '{datatype}'; it must be 'BYTES'"
    assert session.requests == []


async def test_prompts_of_another_datatype_in_binary(worker: Any) -> None:
    worker.serve("ok")
    head = (
        b'{"inputs": [{"name": "text_input", "datatype": "INT32", "shape": [2], '
        b'"parameters": {"binary_data_size": 8}}]}'
    )
    headers = {"Inference-Header-Content-Length": str(len(head))}
    body = head + struct.pack("<2i", 1, 2)
    told = refused(await worker.post(INFER, body, headers=headers))
    assert "'INT32'; it must be 'BYTES'" in told


@pytest.mark.parametrize(
    ("datatype", "data", "expected"),
    [
        ("FOO", ["x"], "has the datatype 'FOO'; it must be one of BYTES, BOOL, INT8"),
        ("BYTES", [1], "of datatype BYTES must hold texts"),
        ("BOOL", [1], "of datatype BOOL must hold true and false"),
        ("INT8", [128], "of datatype INT8 must hold whole numbers from -128 to 127"),
        ("UINT32", [-1], "of datatype UINT32 must hold whole numbers from 0 to 4294967295"),
        ("INT32", [True], "of datatype INT32 must hold whole numbers"),
        ("INT32", ["3"], "of datatype INT32 must hold whole numbers"),
        ("FP32", ["0.5"], "of datatype FP32 must hold numbers"),
    ],
)
async def test_data_must_be_of_the_datatype(
    worker: Any, datatype: str, data: list[Any], expected: str
) -> None:
    worker.serve("ok")
    inputs = [tensor("text_input", "BYTES", ["x"]), tensor("temperature", datatype, data)]
    told = refused(await worker.post(INFER, {"inputs": inputs}))
    assert told.startswith(f"the input 'temperature' {expected}")


async def test_numbers_of_every_datatype(worker: Any) -> None:
    session = worker.serve("ok")
    inputs = [
        tensor("text_input", "BYTES", ["x"]),
        tensor("max_tokens", "INT32", [[3]], [1, 1]),
        tensor("seed", "UINT64", [2**64 - 1]),
        tensor("temperature", "FP32", [1]),
        tensor("top_p", "FP64", [0.5]),
        tensor("ignore_eos", "BOOL", [True]),
    ]
    assert (await worker.post(INFER, {"inputs": inputs})).status_code == 200
    [request] = session.requests
    sampling = request.sampling
    assert (request.max_tokens, request.ignore_eos) == (3, True)
    assert (sampling.seed, sampling.temperature, sampling.top_p) == (2**64 - 1, 1.0, 0.5)


async def test_an_input_that_is_there_twice(worker: Any) -> None:
    worker.serve("ok")
    inputs = [tensor("text_input", "BYTES", ["x"]), tensor("text_input", "BYTES", ["y"])]
    told = refused(await worker.post(INFER, {"inputs": inputs}))
    assert told == "the input 'text_input' is there twice"


@pytest.mark.parametrize("route", [GENERATE, f"{GENERATE}_stream"])
@pytest.mark.parametrize("content_type", [*FORM.values(), "text/plain", ""])
async def test_generate_reads_json_whatever_it_is_called(
    worker: Any, route: str, content_type: str
) -> None:
    worker.serve("ok")
    body = {"text_input": "What is machine learning?", "max_tokens": 20}
    result = await worker.post(route, body, headers={"Content-Type": content_type})
    assert result.status_code == 200, result.text
    assert '"text_output": ' in result.text


@pytest.mark.parametrize(
    "path",
    [
        "/v1/completions",
        "/v1/chat/completions",
        "/v2/repository/index",
        "/v2/repository/models/tiny/load",
        "/v2/repository/models/tiny/unload",
    ],
)
async def test_a_form_is_refused_elsewhere(worker: Any, tmp_path: Path, path: str) -> None:
    keys = tmp_path / "keys"
    keys.write_text("adm1n")
    keys.chmod(0o600)
    worker.settings = replace(worker.settings, http=HttpOptions(admin_key_file=str(keys)))
    worker.serve("ok")
    headers = {**FORM, "Authorization": "Bearer adm1n"}
    result = await worker.post(path, {}, headers=headers)
    assert result.status_code == 400
    assert "it must be 'application/json'" in result.text


@pytest.mark.parametrize("path", [GENERATE, f"{GENERATE}_stream", INFER, "/v1/completions"])
@pytest.mark.parametrize("content_type", [*FORM.values(), "text/plain;charset=UTF-8", ""])
async def test_what_a_page_of_another_site_may_send_unasked_is_refused(
    worker: Any, path: str, content_type: str
) -> None:
    session = worker.serve("ok")
    headers = {"Content-Type": content_type, "Origin": "https://elsewhere.example"}
    result = await worker.post(path, {"text_input": "x"}, headers=headers)
    assert result.status_code == 400
    assert "it must be 'application/json'" in result.text
    assert not session.requests


async def test_a_page_that_may_call_sends_json(worker: Any) -> None:
    worker.serve("ok")
    origin = {"Origin": "https://ours.example"}
    assert (await worker.post(GENERATE, {"text_input": "x"}, headers=origin)).status_code == 200
    inputs = {"inputs": [tensor("text_input", "BYTES", ["x"])]}
    for kind in ("application/json", "application/octet-stream"):
        headers = {**origin, "Content-Type": kind}
        assert (await worker.post(INFER, inputs, headers=headers)).status_code == 200


async def test_what_examples_for_tensorrt_llm_send(worker: Any) -> None:
    session = worker.serve("ok")
    body = {
        "text_input": "What is machine learning?",
        "max_tokens": 20,
        "bad_words": [""],
        "stop_words": [""],
        "pad_id": 2,
        "end_id": IM_END,
    }
    for sent in (body, {**body, "bad_words": "", "stop_words": ""}):
        result = await worker.post(GENERATE, sent, headers=FORM)
        assert result.json["text_output"] == "What is machine learning?ok"
        request = session.requests[-1]
        assert (request.max_tokens, request.stop_token_ids) == (20, ())
        assert request.sampling.logit_bias == {}


async def test_empty_stop_words_beside_real_ones(worker: Any) -> None:
    worker.serve("one two three")
    body = {"text_input": "x", "max_tokens": 20, "stop_words": ["", " three", ""]}
    result = await worker.post(GENERATE, body)
    assert result.json["text_output"] == "xone two"


async def test_an_end_id_ends_the_text_as_the_model_s_own_do(worker: Any) -> None:
    session = worker.serve("ok")
    body = {"text_input": "x", "max_tokens": 20, "stop_token_ids": [7], "end_id": 9}
    assert (await worker.post(GENERATE, body)).status_code == 200
    assert session.requests[0].stop_token_ids == (7, 9)
    size = worker.tokenizer.vocabulary_size
    for wrong in (size, -1, "2", 2.5, True):
        told = refused(await worker.post(GENERATE, {**body, "end_id": wrong}))
        assert told.startswith("end_id ")
    for nothing in (None, "", []):
        assert (await worker.post(GENERATE, {**body, "end_id": nothing})).status_code == 200
        assert session.requests[-1].stop_token_ids == (7,)


async def test_bad_words_are_kept_out(worker: Any) -> None:
    session = worker.serve("ok")
    tokens = {text: worker.tokenizer.encode(text, add_special_tokens=False) for text in ("z", " ")}
    body = {"text_input": "x", "max_tokens": 20, "bad_words": ["z", "", " "]}
    assert (await worker.post(GENERATE, body)).status_code == 200
    assert session.requests[0].sampling.logit_bias == {token: -100.0 for [token] in tokens.values()}
    inputs = [tensor("text_input", "BYTES", ["x"]), tensor("bad_words", "BYTES", ["z"])]
    assert (await worker.post(INFER, {"inputs": inputs})).status_code == 200
    assert set(session.requests[1].sampling.logit_bias) == set(tokens["z"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["z", "zzqq"], "bad_words has 'zzqq', which is not one token of this model's"),
        ("z" * 10_000, f"bad_words has '{'z' * 60}', which is not one token of this model's"),
        ([1], "bad_words is a list of 1 items; it must be a string or a list of strings"),
        ({}, "bad_words is {}; it must be a string or a list of strings"),
        (["z"] * 129, "bad_words is a list of 129 items; it must be at most 128 words"),
    ],
)
async def test_bad_words_that_cannot_be_kept_out(worker: Any, words: Any, expected: str) -> None:
    session = worker.serve("ok")
    told = refused(await worker.post(GENERATE, {"text_input": "x", "bad_words": words}))
    assert told.startswith(expected)
    assert session.requests == []
