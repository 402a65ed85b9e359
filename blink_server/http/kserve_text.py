"""POST /v2/models/{model}/infer, /generate and /generate_stream."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import falcon.asgi

from blink_server.errors import InvalidRequest
from blink_server.http import sse
from blink_server.http.body import check_content_type, read_bytes, read_object
from blink_server.http.choice import Delta
from blink_server.http.errors import ErrorReply, kserve_body
from blink_server.http.kserve_fields import TEXT_INPUT, TEXT_OUTPUT, TextQuestion, text_question
from blink_server.http.kserve_models import version_name
from blink_server.http.kserve_tensors import HEADER, Tensor, encode_texts, read_inputs, split_body
from blink_server.http.text_resource import TextAnswers
from blink_server.http.wire import FinishedChoice, Used


class _KServeWire:
    """What every answer of the protocol has."""

    operation = "text_completion"
    continuous_usage = False

    def __init__(self, model: str, version: int) -> None:
        self.id = f"infer-{uuid.uuid4().hex}"
        self._envelope: dict[str, Any] = {"model_name": model, "model_version": str(version)}

    def opening(self, echoes: Sequence[str], used: Used) -> bytes:
        return b""

    def events(self, delta: Delta, used: Used | None) -> bytes:
        event = {**self._envelope, TEXT_OUTPUT: delta.text}
        return sse.frame(json.dumps(event).encode())

    def closing(self, used: Used) -> bytes:
        return b""

    def failure(self, error: ErrorReply) -> bytes:
        return sse.frame(kserve_body(error))


class _GenerateWire(_KServeWire):
    def response(self, choices: Sequence[FinishedChoice], used: Used) -> bytes:
        return json.dumps({**self._envelope, TEXT_OUTPUT: choices[0].text}).encode()


class _InferWire(_KServeWire):
    """`binary`: the texts follow the JSON, whose length `header_length` then is."""

    def __init__(
        self, model: str, version: int, shape: Sequence[int], *, request_id: str, binary: bool
    ) -> None:
        super().__init__(model, version)
        if request_id:
            self._envelope["id"] = request_id
        self._shape = list(shape)
        self._binary = binary
        self.header_length: int | None = None

    def response(self, choices: Sequence[FinishedChoice], used: Used) -> bytes:
        texts = [choice.text for choice in choices]
        output: dict[str, Any] = {
            "name": TEXT_OUTPUT,
            "datatype": "BYTES",
            "shape": self._shape,
        }
        data = encode_texts(texts) if self._binary else b""
        if self._binary:
            output["parameters"] = {"binary_data_size": len(data)}
        else:
            output["data"] = texts
        head = json.dumps({**self._envelope, "outputs": [output]}).encode()
        if self._binary:
            self.header_length = len(head)
        return head + data


class GenerateResource(TextAnswers):
    """Triton's generate extension: a prompt in, a text or its events out."""

    async def on_post(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, **path: str
    ) -> None:
        """`{"text_input", "parameters": {}}` -> `{"model_name", "model_version", "text_output"}`.

        Raises `InvalidRequest` where it asks for a stream.
        """
        await self._generate(req, resp, version_name(path), stream=False)

    async def on_post_stream(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, **path: str
    ) -> None:
        """The same as events, each with the text that has been added."""
        await self._generate(req, resp, version_name(path), stream=True)

    async def _generate(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, name: str, *, stream: bool
    ) -> None:
        received_ns = time.monotonic_ns()
        # Triton reads JSON whatever the content type, and its examples send it as curl's form.
        body = await read_object(req, self._settings, lenient=True)
        prompt, given = body.pop(TEXT_INPUT, None), body.pop("parameters", {})
        if not isinstance(prompt, str):
            raise InvalidRequest(f"{TEXT_INPUT} must be a text", param=TEXT_INPUT)
        if not isinstance(given, dict):
            raise InvalidRequest("parameters must be an object", param="parameters")
        fields = {**body, **given}
        if fields.get("stream") and not stream:
            raise InvalidRequest("streams come from generate_stream", param="stream")
        fields["stream"] = stream
        question = text_question(name, [prompt], fields, max_n=1)
        entry = self._directory.find(name).version
        wire = _GenerateWire(entry.model, entry.version)
        await self.answer(req, resp, question.request, wire, received_ns=received_ns)


class InferResource(TextAnswers):
    """The inference of KServe's v2 protocol, with Triton's binary tensors."""

    async def on_post(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, **path: str
    ) -> None:
        """BYTES `text_input` of n prompts -> BYTES `text_output` of n texts, of the same shape."""
        received_ns, name = time.monotonic_ns(), version_name(path)
        check_content_type(req, ["application/json", "application/octet-stream"], lenient=True)
        document, binary = split_body(await read_bytes(req, self._settings), req.get_header(HEADER))
        inputs = read_inputs(document, binary)
        prompts = inputs.pop(TEXT_INPUT, None)
        if prompts is None or not prompts.values:
            raise InvalidRequest(f"the input {TEXT_INPUT!r} is missing", param="inputs")
        if prompts.datatype != "BYTES":
            wrong = f"the input {TEXT_INPUT!r} has the datatype {prompts.datatype!r}"
            raise InvalidRequest(f"{wrong}; it must be 'BYTES'", param="inputs")
        question = _question(name, prompts, inputs, _parameters(document))
        entry = self._directory.find(name).version
        wire = _InferWire(
            entry.model,
            entry.version,
            prompts.shape,
            request_id=str(document.get("id", "")),
            binary=_wants_binary(document),
        )
        await self.answer(req, resp, question.request, wire, received_ns=received_ns)
        if wire.header_length is not None:
            resp.content_type = "application/octet-stream"
            resp.set_header(HEADER, str(wire.header_length))


def _question(
    name: str, prompts: Tensor, inputs: Mapping[str, Tensor], parameters: Mapping[str, Any]
) -> TextQuestion:
    fields = dict(parameters)
    for tensor in inputs.values():
        # Lists are of stop words; everything else is one value.
        single = len(tensor.values) == 1
        fields[tensor.name] = tensor.values[0] if single else list(tensor.values)
    if fields.get("stream"):
        raise InvalidRequest("streams come from generate_stream", param="stream")
    return text_question(name, prompts.values, fields, max_n=1)


def _parameters(document: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = document.get("parameters", {})
    if not isinstance(parameters, Mapping):
        raise InvalidRequest("parameters must be an object", param="parameters")
    return parameters


def _wants_binary(document: Mapping[str, Any]) -> bool:
    """Whether the output is asked for in binary; raises InvalidRequest for an unknown output."""
    outputs = document.get("outputs")
    if outputs is None:
        return bool(_parameters(document).get("binary_data_output", False))
    if not isinstance(outputs, list) or [_name(each) for each in outputs] != [TEXT_OUTPUT]:
        raise InvalidRequest(f"the one output is {TEXT_OUTPUT}", param="outputs")
    return bool(_parameters(outputs[0]).get("binary_data", False))


def _name(output: Any) -> Any:
    return output.get("name") if isinstance(output, dict) else None
