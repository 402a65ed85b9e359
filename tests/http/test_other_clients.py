"""Clients that people point at an OpenAI-compatible server: litellm and llm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ANSWER = "naïve 你好 😀 STOP the end"

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("shape", ["openai", "anthropic"])
def test_litellm(server: Any, monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = pytest.importorskip("litellm")
    base = f"{server.url}/v1" if shape == "openai" else server.url
    fields: dict[str, Any] = {
        "model": f"{shape}/tiny",
        "api_base": base,
        "api_key": "secret",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 100,
    }
    plain = litellm.completion(**fields)
    assert plain.choices[0].message.content == ANSWER
    pieces = [
        chunk.choices[0].delta.content or "" for chunk in litellm.completion(**fields, stream=True)
    ]
    assert "".join(pieces) == ANSWER
    tool = {
        "type": "function",
        "function": {"name": "get_weather", "parameters": {"type": "object"}},
    }
    called = litellm.completion(**{**fields, "model": f"{shape}/caller", "tools": [tool]})
    assert called.choices[0].message.tool_calls[0].function.name == "get_weather"
    assert called.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("options", [[], ["--no-stream"]])
def test_llm(server: Any, tmp_path: Path, options: list[str]) -> None:
    pytest.importorskip("llm")
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: local\n  model_name: tiny\n  api_base: {server.url}/v1\n"
        "  api_key_name: local\n"
    )
    command = [sys.executable, "-m", "llm", "prompt", "-m", "local", "Hi", "--key", "secret"]
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path)}
    finished = subprocess.run(
        [*command, "--no-log", *options],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip() == ANSWER
