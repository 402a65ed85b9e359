"""Inference by KServe's v2 protocol, of a worker in this process."""

from __future__ import annotations

import struct
from typing import Any

import pytest

INFER = "/v2/models/tiny/infer"


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
