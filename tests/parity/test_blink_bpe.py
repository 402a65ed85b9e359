"""`blink_bpe` against the `tokenizers` library on 100 MB of mixed text, 20 MB a vocabulary."""

from __future__ import annotations

import os
from itertools import islice

import pytest

from blink_bpe.tokenizer import BlinkBpeTokenizer
from blink_server.importers.gguf import open_gguf
from blink_server.importers.pull import pull
from blink_server.testing.bpe_families import FAMILIES, trained_tokenizer
from blink_server.testing.mixed_texts import mixed_texts
from blink_server.text.tokenizers import HuggingFaceTokenizer

SIZE = int(os.environ.get("BLINK_BPE_BYTES", "20000000"))  # for each vocabulary
TRAINED = 12_000  # tokens


def serialized(vocabulary: str) -> str:
    if vocabulary not in FAMILIES:
        return open_gguf(pull(vocabulary)).tokenizer_json
    texts = (text[:20_000] for text in islice(mixed_texts(SIZE, seed=1), 300))
    return trained_tokenizer(vocabulary, texts, TRAINED)


@pytest.mark.slow
@pytest.mark.parametrize("vocabulary", [*FAMILIES, "smollm2-135m-instruct"])
def test_ids_and_texts_of_mixed_text(vocabulary: str) -> None:
    library = HuggingFaceTokenizer(serialized(vocabulary))
    native = BlinkBpeTokenizer(library)
    compared = 0
    for text in mixed_texts(SIZE, seed=len(vocabulary)):
        ids = library.encode(text, add_special_tokens=False)
        # Not in the assertion: pytest would write both lists out.
        same = native.encode(text, add_special_tokens=False) == ids
        assert same, f"other ids than the library's: {text[:2000]!a}"
        assert native.decode(ids) == library.decode(ids)
        compared += len(text.encode())
    assert compared >= SIZE
