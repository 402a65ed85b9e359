from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from blink_server.errors import InvalidModel, InvalidRequest
from blink_server.testing.tiny_tokenizer import CHAT_TEMPLATE
from blink_server.text.chat_template import ChatTemplate

HELLO = [{"role": "user", "content": "Hi"}]


def test_chatml() -> None:
    template = ChatTemplate(CHAT_TEMPLATE)
    assert template.render(HELLO) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert template.render(HELLO, add_generation_prompt=False) == (
        "<|im_start|>user\nHi<|im_end|>\n"
    )


def test_blocks_are_trimmed_as_transformers_does() -> None:
    source = (
        "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}"
    )
    assert ChatTemplate(source).render(HELLO) == "Hi\n"


def test_tojson_leaves_text_alone() -> None:
    source = (
        "{{ messages[0] | tojson }}|{{ {'b': 1, 'a': 'é'} | tojson(indent=1, sort_keys=true) }}"
    )
    rendered = ChatTemplate(source).render([{"role": "user", "content": "<é & '\"😀>"}])
    assert rendered == ('{"role": "user", "content": "<é & \'\\"😀>"}|{\n "a": "é",\n "b": 1\n}')


def test_special_tokens_time_and_variables() -> None:
    source = (
        "{{ bos_token }}{{ strftime_now('%d %b %Y') }}{{ mood }}{{ eos_token }}{{ tools is none }}"
    )
    template = ChatTemplate(
        source, bos_token="<s>", eos_token="</s>", now=lambda: datetime(2026, 11, 3)
    )
    assert template.render(HELLO, variables={"mood": "!"}) == "<s>03 Nov 2026!</s>True"


def test_variables_cannot_replace_the_messages() -> None:
    template = ChatTemplate("{{ messages[0].content }}")
    assert template.render(HELLO, variables={"messages": []}) == "Hi"


def test_loop_controls_and_generation_blocks() -> None:
    source = (
        "{% for m in messages %}{% if m.content == 'skip' %}{% continue %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    )
    messages = [{"role": "user", "content": text} for text in ("a", "skip", "b")]
    assert ChatTemplate(source).render(messages) == "ab"


def test_a_refusal_is_told_in_the_templates_words() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidRequest, match="roles must alternate") as caught:
        template.render(HELLO)
    assert caught.value.param == "messages"


def test_a_failure_names_the_problem() -> None:
    with pytest.raises(InvalidRequest, match="ZeroDivisionError"):
        ChatTemplate("{{ 1 // 0 }}").render(HELLO)
    with pytest.raises(InvalidRequest, match="has no attribute 'nothing'"):
        ChatTemplate("{{ messages[0].nothing.more }}").render(HELLO)


def test_templates_run_in_a_sandbox() -> None:
    with pytest.raises(InvalidRequest, match="unsafe"):
        ChatTemplate("{{ messages.__class__.__mro__ }}").render(HELLO)
    with pytest.raises(InvalidRequest):
        ChatTemplate("{{ messages.append(1) }}").render(HELLO)


def test_loading_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "chat_template.jinja"
    with pytest.raises(InvalidModel, match="cannot be read"):
        ChatTemplate.load(path)
    path.write_text("fine\n{% if %}")
    with pytest.raises(InvalidModel, match=r"chat_template\.jinja: line 2"):
        ChatTemplate.load(path)
    path.write_bytes(b"\xff")
    with pytest.raises(InvalidModel, match="not UTF-8"):
        ChatTemplate.load(path)
