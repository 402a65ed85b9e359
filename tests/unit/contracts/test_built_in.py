"""What the server brings itself, through the suites that plugins are tested with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from blink_server.backend import Backend, ModelVersion
from blink_server.builtin import blink_importers, blink_tool_parsers
from blink_server.importers.importer import Importer
from blink_server.plugins import load_plugins
from blink_server.repository.source import read_repositories
from blink_server.repository.validator import validate_version
from blink_server.testing import (
    BackendContract,
    ImporterContract,
    TokenizerContract,
    ToolFormatContract,
    fake_runner_backend,
)
from blink_server.testing.contracts.tool_format import Call
from blink_server.testing.fake_repository import write_fake_version
from blink_server.testing.fake_runner_backend import FakeRunnerBackend
from blink_server.testing.tiny_gguf import write_tiny_gguf
from blink_server.testing.tiny_huggingface import write_tiny_huggingface
from blink_server.testing.tiny_repository import write_tiny_version
from blink_server.testing.tiny_tokenizer import byte_level_tokenizer, sentencepiece_tokenizer
from blink_server.text.tokenizers import HuggingFaceTokenizer, Tokenizer
from blink_server.text.tools.parser import ToolFormat

PLUGINS = Path(__file__).parents[3] / "plugins"


def validated(repository: Path) -> ModelVersion:
    """The only version of a repository, as a server reads it."""
    plugins = load_plugins([PLUGINS], extra={"fake": fake_runner_backend})
    [model] = read_repositories([repository]).values()
    [number] = model.versions
    return validate_version(model, number, plugins)


class TestByteLevel(TokenizerContract):
    @pytest.fixture
    def tokenizer(self) -> Tokenizer:
        return HuggingFaceTokenizer(byte_level_tokenizer())


class TestSentencePiece(TokenizerContract):
    texts = ("", "Hello", "Hello world", "a b", "naïve 你好 😀")
    leading_space = True

    @pytest.fixture
    def tokenizer(self) -> Tokenizer:
        return HuggingFaceTokenizer(sentencepiece_tokenizer())


class TestBlinkBpe(TokenizerContract):
    @pytest.fixture
    def tokenizer(self, tmp_path: Path) -> Tokenizer:
        (tmp_path / "tokenizer.json").write_text(byte_level_tokenizer(), encoding="utf-8")
        load = load_plugins([]).tokenizers["blink_bpe"]
        return load(tmp_path, {"name": "blink_bpe", "file": "tokenizer.json"})


class TestProxyTokenizer(TokenizerContract):
    @pytest.fixture
    def tokenizer(self) -> Tokenizer:
        return load_plugins([PLUGINS]).tokenizers["openai_proxy"](Path(), {})


class BuiltInFormat(ToolFormatContract):
    name: str

    @pytest.fixture
    def tool_format(self) -> ToolFormat:
        return blink_tool_parsers()[self.name]()


class TestHermes(BuiltInFormat):
    name = "hermes"
    templates = ("return a json object within <tool_call></tool_call> XML tags",)

    def write(self, calls: Sequence[Call]) -> str:
        bodies = [json.dumps({"name": name, "arguments": given}) for name, given in calls]
        return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)


class TestLlama3Json(BuiltInFormat):
    name = "llama3_json"
    templates = ("{{- '<|python_tag|>' }}",)
    content = ""

    def write(self, calls: Sequence[Call]) -> str:
        return "; ".join(json.dumps({"name": name, "parameters": given}) for name, given in calls)


class TestMistral(BuiltInFormat):
    name = "mistral"
    templates = ("{{- '[TOOL_CALLS] [' }}",)

    def write(self, calls: Sequence[Call]) -> str:
        bodies = [{"name": name, "arguments": given} for name, given in calls]
        return f"[TOOL_CALLS] {json.dumps(bodies)}"


class TestPythonic(BuiltInFormat):
    name = "pythonic"
    templates = ("[func_name1(params_name1=params_value1...)] <|python_tag|>",)
    content = ""

    def write(self, calls: Sequence[Call]) -> str:
        bodies = [
            f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})"
            for name, given in calls
        ]
        return f"[{', '.join(bodies)}]"


class TestProxyFormat(ToolFormatContract):
    templates = ("<|openai_chat|>{{ messages | tojson }}",)

    @pytest.fixture
    def tool_format(self) -> ToolFormat:
        return load_plugins([PLUGINS]).tool_parsers["openai_proxy"]()

    def write(self, calls: Sequence[Call]) -> str:
        records = [
            {"index": index, "name": name, "arguments": json.dumps(given)}
            for index, (name, given) in enumerate(calls)
        ]
        return "".join(f"\x1e{json.dumps(each)}\x1f" for each in records)


class TestGgufImporter(ImporterContract):
    @pytest.fixture
    def importer(self) -> Importer:
        return blink_importers()["gguf"]

    @pytest.fixture
    def source(self, tmp_path: Path) -> str:
        write_tiny_gguf(tmp_path / "tiny.gguf")
        return str(tmp_path / "tiny.gguf")


class TestHuggingFaceImporter(ImporterContract):
    @pytest.fixture
    def importer(self) -> Importer:
        return blink_importers()["hf"]

    @pytest.fixture
    def source(self, tmp_path: Path) -> str:
        write_tiny_huggingface(tmp_path / "tiny")
        return str(tmp_path / "tiny")


class TestFakeBackend(BackendContract):
    @pytest.fixture
    def backend(self) -> Backend:
        return FakeRunnerBackend()

    @pytest.fixture
    def version(self, tmp_path: Path) -> ModelVersion:
        write_fake_version(tmp_path)
        return validated(tmp_path)


class TestEcho(BackendContract):
    @pytest.fixture
    def backend(self) -> Backend:
        return load_plugins([PLUGINS]).backends["echo"]

    @pytest.fixture
    def version(self, tmp_path: Path) -> ModelVersion:
        write_tiny_version(tmp_path, backend="echo", sampler="default")
        config = json.loads((tmp_path / "tiny/1/config.json").read_text())
        del config["engine"]
        (tmp_path / "tiny/1/config.json").write_text(json.dumps(config))
        return validated(tmp_path)
