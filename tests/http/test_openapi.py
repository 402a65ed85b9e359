"""The OpenAPI document: complete, valid, and true to the checks it is made from."""

from __future__ import annotations

import html.parser
import json
from collections.abc import Callable, Mapping
from typing import Any

import falcon.inspect
import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from blink_server.errors import InvalidRequest
from blink_server.http.fields import Table
from blink_server.http.messages_request import MESSAGES
from blink_server.http.openai_fields import chat_table, completion_table
from blink_server.http.openapi import document
from blink_server.http.responses_request import RESPONSES
from blink_server.http.tokenize_routes import DETOKENIZE, TOKENIZE_CHAT, TOKENIZE_TEXT

TABLES: dict[str, Table] = {
    "completion": completion_table(8),
    "chat": chat_table(8),
    "responses": RESPONSES,
    "messages": MESSAGES,
    "tokenize text": TOKENIZE_TEXT,
    "tokenize chat": TOKENIZE_CHAT,
    "detokenize": DETOKENIZE,
}
FIELDS = {
    id(check): (name, field)
    for name, table in TABLES.items()
    for field, check in table.fields.items()
}
# Rules that JSON Schema cannot say: names of tools differ, arguments are JSON.
BEYOND_SCHEMAS = {("chat", "tools"), ("chat", "messages"), ("tokenize chat", "tools")}
BEYOND_SCHEMAS |= {("tokenize chat", "messages")}
# Constraints: exactly one of several fields, a schema as text.
BEYOND_SCHEMAS |= {
    (table, field)
    for table in TABLES
    for field in ("response_format", "structured_outputs", "guided_json")
}


async def test_every_route_is_described_and_nothing_else(worker: Any) -> None:
    described = (await worker.get("/openapi.json")).json
    routes = falcon.inspect.inspect_routes(worker.client.app)
    served = {
        (route.path, method.method.lower())
        for route in routes
        for method in route.methods
        if not method.internal and method.method != "HEAD"  # which is GET's
    }
    assert {(path, method) for path, one in described["paths"].items() for method in one} == served


async def test_the_document_holds_valid_schemas(worker: Any) -> None:
    described = (await worker.get("/openapi.json")).json
    assert described["openapi"] == "3.1.0"
    schemas = list(described["components"]["schemas"].values())
    for operations in described["paths"].values():
        for operation in operations.values():
            body = operation.get("requestBody", {}).get("content", {})
            schemas += [media["schema"] for media in body.values()]
    assert len(schemas) > 15
    for schema in schemas:
        jsonschema.Draft202012Validator.check_schema(schema)


async def test_answers_are_as_described(worker: Any) -> None:
    described = document(8, "1")
    worker.serve("ok")
    chat = [{"role": "user", "content": "Hi"}]
    bodies: dict[str, Mapping[str, Any]] = {
        "/v1/completions": {"prompt": "x"},
        "/v1/chat/completions": {"messages": chat},
        "/v1/responses": {"input": "x"},
        "/v1/messages": {"messages": chat, "max_tokens": 5},
        "/tokenize": {"prompt": "x"},
        "/detokenize": {"tokens": [5]},
    }

    def validate(path: str, method: str, result: Any) -> None:
        answers = described["paths"][path][method]["responses"][str(result.status_code)]
        schema = answers["content"]["application/json"]["schema"]
        jsonschema.validate(result.json, {**schema, "components": described["components"]})

    for path, body in bodies.items():
        good = await worker.post(path, {"model": "tiny", **body})
        assert good.status_code == 200
        validate(path, "post", good)
        bad = await worker.post(path, {"model": "tiny", "what": 1})
        assert bad.status_code == 400
        validate(path, "post", bad)
    for path in ("/v1/models", "/health", "/health/ready", "/health/live", "/version"):
        validate(path, "get", await worker.get(path))


async def test_kserve_s_answers_are_as_described(worker: Any) -> None:
    described = document(8, "1")
    worker.serve("ok")
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["x"]}
    bodies: dict[str, Mapping[str, Any] | None] = {
        "/v2": None,
        "/v2/health/live": None,
        "/v2/health/ready": None,
        "/v2/models/stats": None,
        **{
            f"{path}{suffix}": None
            for path in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
            for suffix in ("", "/ready", "/config", "/stats")
        },
        "/v2/models/{model}/infer": {"inputs": [tensor]},
        "/v2/models/{model}/generate": {"text_input": "x", "parameters": {"stop_words": []}},
    }
    for path, body in bodies.items():
        operation = described["paths"][path]["get" if body is None else "post"]
        if body is not None:
            content = operation["requestBody"]["content"]["application/json"]
            jsonschema.validate(body, content["schema"])
        for model, status in (("tiny", 200), ("nobody", 404)):
            url = path.format(model=model, version=1)
            if url == path and status == 404:
                continue
            result = await (worker.get(url) if body is None else worker.post(url, body))
            assert result.status_code == status
            schema = operation["responses"][str(status)]["content"]["application/json"]["schema"]
            jsonschema.validate(result.json, {**schema, "components": described["components"]})


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["user", "assistant", "text", "function", "auto", "none", "a", "1", "tool"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "name", "function", "1", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


def accepted(check: Callable[[Any, str], Any], value: Any) -> bool:
    try:
        check(value, "field")
    except InvalidRequest:
        return False
    return True


VALIDATORS = {
    place: jsonschema.Draft202012Validator(TABLES[table].fields[field].schema)
    for place, (table, field) in FIELDS.items()
}


@settings(max_examples=600, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(place=st.sampled_from(list(FIELDS)), value=JSON)
def test_schemas_let_in_what_checks_let_in(place: int, value: Any) -> None:
    table, field = FIELDS[place]
    assume(value is not None)  # null is absent: the table's matter
    valid = VALIDATORS[place].is_valid(value)
    if accepted(TABLES[table].fields[field], value):
        assert valid
    elif (table, field) not in BEYOND_SCHEMAS:
        assert not valid


@pytest.mark.parametrize("value", [1.0, [7.0], [[7.0, 8.0], [9]], [7, 8.0]])
def test_a_whole_number_may_have_a_point_where_schemas_take_it(value: Any) -> None:
    for place, validator in VALIDATORS.items():
        table, field = FIELDS[place]
        assert validator.is_valid(value) == accepted(TABLES[table].fields[field], value)


async def test_the_page_names_every_route_and_field_and_runs_nothing(worker: Any) -> None:
    result = await worker.get("/docs")
    assert result.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in result.headers["content-security-policy"]
    seen: list[str] = []

    class Page(html.parser.HTMLParser):
        def handle_starttag(self, tag: str, attributes: Any) -> None:
            assert tag not in ("script", "img", "link", "iframe")

        def handle_data(self, data: str) -> None:
            seen.append(data)

    Page().feed(result.text)
    for path, operations in (await worker.get("/openapi.json")).json["paths"].items():
        assert any(path in text for text in seen)
        assert json.dumps(operations)
    assert {"temperature", "max_output_tokens", "stop_sequences", "tokens"} <= set(seen)
