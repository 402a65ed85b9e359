"""Structured outputs of a tiny random model, through every part, by the `openai` client.

Its logits are noise, so that only the constraint makes its answers what they are.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import openai
import pydantic
import pytest
import pytest_asyncio
from jsonschema import Draft202012Validator

from blink_server.testing.server_process import ServerProcess, processes

pytestmark = pytest.mark.asyncio(loop_scope="module")
Client = openai.AsyncOpenAI


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=6)
    age: int = pydantic.Field(ge=0, le=120)
    pet: Literal["cat", "dog"] | None


CALLING_TEMPLATE = """
{%- if tools %}{{ tools | tojson }} answer with <tool_call>{% endif %}
{%- for message in messages %}{{ message.content }}{% endfor %}"""

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
PERSON_FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "person", "schema": PERSON, "strict": True},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tiny_repository: Path) -> AsyncIterator[Client]:
    directory = Path(tempfile.mkdtemp(prefix="blink-"))
    shutil.copytree(tiny_repository, directory / "repository")
    template = directory / "repository" / "tiny" / "1" / "chat_template.jinja"
    template.write_text(CALLING_TEMPLATE, encoding="utf-8")
    server = await ServerProcess.start(directory / "repository", directory / "run", "--workers=1")
    try:
        url = await server.ready()
        async with Client(
            base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60
        ) as client:
            yield client
        assert await server.stop() == 0
        assert processes(directory / "run") == []  # the compiler's among them
    finally:
        server.kill_everything()
        print(server.output)  # shown where a test fails
        shutil.rmtree(directory, ignore_errors=True)


def request(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Who?"}]
    return {"model": "tiny", "messages": messages, "max_tokens": 100, "seed": 1, **fields}


async def chat(client: Client, **fields: Any) -> Any:
    create: Any = client.chat.completions.create
    return await create(**request(**fields))


async def test_pydantic_models_are_parsed(client: Client) -> None:
    for seed in range(4):
        answer = await client.chat.completions.parse(**request(seed=seed), response_format=Person)
        person = answer.choices[0].message.parsed
        assert isinstance(person, Person)
        assert answer.choices[0].finish_reason == "stop"


async def test_every_choice_fulfils_the_schema(client: Client) -> None:
    answer = await chat(client, response_format=PERSON_FORMAT, n=4, temperature=1.5)
    texts = [choice.message.content for choice in answer.choices]
    assert len(set(texts)) > 1
    for text in texts:
        Draft202012Validator(PERSON).validate(json.loads(text))


async def test_streams_are_what_whole_answers_are(client: Client) -> None:
    whole = await chat(client, response_format=PERSON_FORMAT)
    stream = await chat(client, response_format=PERSON_FORMAT, stream=True)
    text = "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
    assert text == whole.choices[0].message.content


async def test_logprobs_are_those_of_what_is_allowed(client: Client) -> None:
    answer = await chat(
        client, response_format=PERSON_FORMAT, logprobs=True, top_logprobs=20, temperature=0
    )
    [choice] = answer.choices
    first = choice.logprobs.content[0]
    assert bytes(first.bytes).startswith(b"{")
    assert first.logprob <= 0
    # What is not allowed is told as impossible, in a number that JSON has.
    assert {top.logprob for top in first.top_logprobs if not top.token.startswith("{")} == {-9999.0}


async def test_cut_answers_say_so(client: Client) -> None:
    answer = await chat(client, response_format=PERSON_FORMAT, max_tokens=3)
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content.startswith("{")


async def test_expressions_and_choices(client: Client) -> None:
    chosen = await chat(client, extra_body={"guided_choice": ["yes", "no", "perhaps"]})
    assert chosen.choices[0].message.content in ("yes", "no", "perhaps")
    body = {"structured_outputs": {"regex": r"\d{3}-[a-f]+"}}
    matched = await client.completions.create(
        model="tiny", prompt="x", max_tokens=60, extra_body=body
    )
    found = matched.choices[0]
    assert re.fullmatch(r"\d{3}-[a-f]+", found.text) or found.finish_reason == "length"


@pytest.mark.parametrize(
    "only", [{"guided_choice": [""]}, {"guided_regex": ""}, {"structured_outputs": {"regex": ""}}]
)
async def test_the_empty_text_may_be_all_there_is(client: Client, only: dict[str, Any]) -> None:
    answer = await chat(client, extra_body=only)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("", "stop")
    assert answer.usage.completion_tokens == 1


async def test_the_empty_text_may_be_one_of_several(client: Client) -> None:
    answer = await chat(client, n=8, extra_body={"guided_choice": ["", "yes"]})
    assert {choice.message.content for choice in answer.choices} <= {"", "yes"}


async def test_the_responses_endpoint_parses_too(client: Client) -> None:
    answer = await client.responses.parse(
        model="tiny", input="Who?", text_format=Person, max_output_tokens=100
    )
    assert isinstance(answer.output_parsed, Person)
    assert answer.text.format.type == "json_schema"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "find"}}])
async def test_calls_that_must_be_made_fulfil_their_schema(client: Client, choice: Any) -> None:
    tools = [
        {"type": "function", "function": {"name": "find", "strict": True, "parameters": PERSON}}
    ]
    answer = await chat(
        client, tools=tools, tool_choice=choice, parallel_tool_calls=False, max_tokens=200
    )
    [call] = answer.choices[0].message.tool_calls
    assert call.function.name == "find"
    Draft202012Validator(PERSON).validate(json.loads(call.function.arguments))


@pytest.mark.parametrize(
    ("field", "named"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        pytest.param({"guided_regex": "(a|b)*a(a|b){24}"}, "guided_regex", marks=pytest.mark.slow),
        ({"guided_regex": "((a{1000}){1000}){1000}"}, "guided_regex"),
        ({"guided_regex": "(?=a)b"}, "guided_regex"),
        ({"guided_json": {"enum": [f"{n:07}" * 3 for n in range(40_000)]}}, "guided_json.enum"),
        ({"guided_json": {"not": {}}}, "guided_json.not"),
        (
            {"guided_json": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}},
            "'#/$defs/a' leads to itself",
        ),
        ({"guided_choice": ["a"], "guided_json": {}}, "guided_choice"),
    ],
)
async def test_what_cannot_be_held_is_refused_by_name(
    client: Client, field: dict[str, Any], named: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await chat(client, extra_body=field)
    assert named in str(refused.value)
    # And the next one is served.
    assert (await chat(client, extra_body={"guided_choice": ["a"]})).choices[
        0
    ].message.content == "a"
