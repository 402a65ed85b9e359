"""Random weights by a model's name, and their tokenizer of bytes and words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from blink_persistent.engines.cuda.architectures import ARCHITECTURES
from blink_persistent.engines.random_checkpoint import (
    CHAT_TEMPLATE,
    RandomCheckpoint,
    byte_tokenizer,
    open_random,
)
from blink_server.importers.failure import ModelImportError
from blink_server.importers.template_check import template_fault
from blink_server.testing.memory_checkpoint import tiny_architecture
from blink_server.text.tokenizers import HuggingFaceTokenizer

VOCABULARY = 1000
DOCUMENT = Path(__file__).parents[3] / "docs" / "models.md"


@pytest.fixture
def tokenizer(tmp_path: Path) -> HuggingFaceTokenizer:
    file = tmp_path / "tokenizer.json"
    file.write_text(byte_tokenizer(VOCABULARY), encoding="utf-8")
    return HuggingFaceTokenizer.load(tmp_path, {"file": file.name})


@pytest.mark.parametrize("text", ["Hello world\n", "héllo 你好 😀", "\x00\t  a", ""])
def test_a_text_is_its_bytes_and_comes_back(tokenizer: HuggingFaceTokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=True)
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text


def test_every_id_has_a_text_of_its_own(tokenizer: HuggingFaceTokenizer) -> None:
    assert tokenizer.vocabulary_size == VOCABULARY
    pieces = [tokenizer.token_bytes(token_id) for token_id in range(VOCABULARY)]
    assert all(pieces)
    assert len(set(pieces)) == VOCABULARY
    assert all(piece.decode().strip() for piece in pieces[256:])


def test_values_follow_from_the_name() -> None:
    architecture = tiny_architecture(attention_bias=True, tied_embeddings=False)
    checkpoint = RandomCheckpoint("tiny", architecture, "{}")
    shapes = architecture.tensor_shapes()
    assert checkpoint.tensor_names() == list(shapes)
    matrices = {}
    for name, shape in shapes.items():
        tensor = checkpoint.tensor(name)
        assert isinstance(tensor, np.ndarray)
        assert tensor.dtype == np.float32
        assert tensor.shape == shape
        np.testing.assert_array_equal(tensor, checkpoint.tensor(name))
        if len(shape) == 1:
            assert set(tensor.tolist()) == {0.0 if name.endswith("bias") else 1.0}
        else:
            matrices[name] = tensor
            assert tensor.std() == pytest.approx(shape[1] ** -0.5, rel=0.1)
    first, second = (matrices[f"model.layers.{n}.mlp.up_proj.weight"] for n in (0, 1))
    assert not np.array_equal(first, second)


def test_a_shape_is_known_by_name_or_refused_by_it() -> None:
    checkpoint = open_random("smollm2-135m", revision=None, progress=lambda *_: None)
    assert checkpoint.architecture.vocabulary_size == 49152
    assert checkpoint.source == {"format": "random", "model": "smollm2-135m"}
    assert template_fault(CHAT_TEMPLATE) is None
    with pytest.raises(ModelImportError, match=r"'smollm2-135'.*did you mean 'smollm2-135m'"):
        open_random("smollm2-135", revision=None, progress=lambda *_: None)
    with pytest.raises(ModelImportError, match="--revision"):
        open_random("smollm2-135m", revision="main", progress=lambda *_: None)


def test_the_documentation_names_every_shape() -> None:
    told = DOCUMENT.read_text(encoding="utf-8").partition("### Random weights")[2]
    assert [name for name in ARCHITECTURES if f"`{name}`" not in told.partition("\n## ")[0]] == []
