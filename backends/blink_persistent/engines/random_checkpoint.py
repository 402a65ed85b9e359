"""Random weights in the shape of a published model: `import --random`, to measure speed with.

The tokenizer has a token for each byte, which is what a text becomes, and words for all others, so
that every id that comes out shows as text. No id ends an answer: it is as long as was asked for.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from string import ascii_lowercase
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from blink_persistent.engines.cuda.architectures import ARCHITECTURES
from blink_server.importers.checkpoint import Architecture, Tensor
from blink_server.importers.failure import ModelImportError
from blink_server.importers.importer import Progress
from blink_server.schema_problems import nearest

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@dataclass(frozen=True, slots=True)
class RandomCheckpoint:
    """A `Checkpoint`: the values of a tensor follow from its name and shape.

    Matrices have the variance 1 / columns, gains are 1, biases 0.
    """

    model: str  # a name of `ARCHITECTURES`
    architecture: Architecture
    tokenizer_json: str
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    chat_template: str | None = CHAT_TEMPLATE

    @property
    def source(self) -> Mapping[str, Any]:
        return {"format": "random", "model": self.model}

    def tensor_names(self) -> list[str]:
        return list(self.architecture.tensor_shapes())

    def tensor(self, name: str) -> Tensor:
        """The tensor of a canonical name, made anew at each call. Raises KeyError."""
        shape = self.architecture.tensor_shapes()[name]
        if len(shape) == 1:
            return np.full(shape, 0.0 if name.endswith(".bias") else 1.0, np.float32)
        random = np.random.default_rng(zlib.crc32(name.encode()))
        values = random.standard_normal(shape, dtype=np.float32)
        values *= np.float32(shape[-1] ** -0.5)
        return values


def open_random(source: str, *, revision: str | None, progress: Progress) -> RandomCheckpoint:
    """The importer `random`: `source` is a name of `ARCHITECTURES`. Raises ModelImportError."""
    if revision is not None:
        raise ModelImportError(f"--revision is of a hub's model; {source} gets random weights")
    architecture = ARCHITECTURES.get(source)
    if architecture is None:
        raise ModelImportError(
            f"no shape of a model {source!r} is known; {nearest(source, ARCHITECTURES)}"
        )
    return RandomCheckpoint(source, architecture, byte_tokenizer(architecture.vocabulary_size))


def byte_tokenizer(vocabulary_size: int) -> str:
    """A tokenizer.json of the 256 bytes and as many words as there are ids left."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: token_id for token_id, piece in enumerate(alphabet)}
    for token_id in range(len(alphabet), vocabulary_size):
        vocabulary[f"Ġ{_letters(token_id)}"] = token_id
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False)


def _letters(number: int) -> str:
    """The number in base 26, least digit first."""
    digits = ""
    while number:
        number, digit = divmod(number, len(ascii_lowercase))
        digits += ascii_lowercase[digit]
    return digits
