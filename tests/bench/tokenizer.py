"""`blink_bpe` against other tokenizers, in one process on one core: `make bench-tokenizer`.

All have the vocabulary of SmolLM2-135M-Instruct. Texts of 10 to 2,048 tokens are cut from the
documentation and the sources of this checkout, 16 of each length. A round encodes all of them,
short ones several times, with each tokenizer, which take turns, and gives the mean time of a text.
The minimum and the median of the rounds are reported, and the median of the rounds' ratios to
`blink_bpe`. The time is the processor's, which another process on the core does not add to, of
calls from Python that return a list of ids:

- tokenizers: `encode(text).ids`; tokenizers, unlocked: `encode_batch_fast([text])`, which the
  server's `huggingface` uses, because it releases the interpreter lock;
- tiktoken: `encode_ordinary`, with the same vocabulary and pattern. Its merges follow the order of
  ids, so that its ids need not all be the same;
- llama.cpp: `llama_tokenize` into an array that is there already, and a slice of it, from the GGUF
  file. It is built first, as by bench-llama.

The benchmark says how many texts each tokenizer gives the ids of `tokenizers` for.

    python tests/bench/tokenizer.py [--rounds 25]
"""

from __future__ import annotations

import ctypes
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import tiktoken
import tokenizers
from rich.console import Console
from rich.table import Table

from blink_bpe.tokenizer import BlinkBpeTokenizer
from blink_server.importers.gguf import open_gguf
from blink_server.importers.pull import pull
from blink_server.text.token_bytes import byte_level_piece
from blink_server.text.tokenizers import HuggingFaceTokenizer

sys.path.insert(0, str(Path(__file__).parent))
from llama_cpp_bench import ENVIRONMENT, PACKAGE, peer_python
from machine import describe_machine
from measures import keep

MODEL = "smollm2-135m-instruct"
PROJECT = Path(__file__).parents[2]
LENGTHS = (10, 32, 128, 512, 1024, 2048)
TEXTS = 16
OURS, REFERENCE = "blink_bpe", "tokenizers"
# SmolLM2's digits stand alone; then GPT-2's words.
PATTERN = r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?=\p{N})|\s+(?!\S)|\s+"

Encode = Callable[[str], Sequence[int]]


def with_tokenizers(serialized: str) -> Encode:
    """The library as most callers use it."""
    tokenizer = tokenizers.Tokenizer.from_str(serialized)

    def encode(text: str) -> Sequence[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return encode


def with_blink_bpe(serialized: str) -> Encode:
    """Ours, and the way it is called in the server."""
    tokenizer = BlinkBpeTokenizer(HuggingFaceTokenizer(serialized))
    return lambda text: tokenizer.encode(text, add_special_tokens=False)


def with_huggingface(serialized: str) -> Encode:
    """The server's `huggingface`."""
    tokenizer = HuggingFaceTokenizer(serialized)
    return lambda text: tokenizer.encode(text, add_special_tokens=False)


def with_tiktoken(serialized: str) -> Encode:
    """tiktoken with the same tokens; bytes that the vocabulary lacks get ids behind it."""
    tokenizer = tokenizers.Tokenizer.from_str(serialized)
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    ranks = {
        byte_level_piece(piece): id_ for piece, id_ in vocabulary.items() if piece not in added
    }
    missing = [bytes([byte]) for byte in range(256) if bytes([byte]) not in ranks]
    ranks |= {byte: len(vocabulary) + place for place, byte in enumerate(missing)}
    encoding = tiktoken.Encoding(
        "smollm2", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={}
    )
    return encoding.encode_ordinary


def with_llama_cpp(gguf: Path) -> Encode:
    """llama.cpp's, from the environment it is built in, which has the same Python."""
    peer_python()
    sys.path += [str(path) for path in ENVIRONMENT.glob("lib/python*/site-packages")]
    import llama_cpp

    llama_cpp.llama_log_set(_SILENT, ctypes.c_void_p(0))
    parameters = llama_cpp.llama_model_default_params()
    parameters.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(gguf).encode(), parameters)
    vocabulary = llama_cpp.llama_model_get_vocab(model)
    room = 4 * max(LENGTHS)
    ids = (llama_cpp.llama_token * room)()

    def encode(text: str) -> list[int]:
        content = text.encode()
        count = llama_cpp.llama_tokenize(vocabulary, content, len(content), ids, room, False, False)
        found: list[int] = ids[:count]
        return found

    return encode


_SILENT = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)


def texts_of(reference: Encode, decode: Callable[[Sequence[int]], str]) -> dict[int, list[str]]:
    """`TEXTS` texts of each length, which start at different places of documents and sources."""
    files = [*sorted(PROJECT.glob("docs/*.md")), *sorted(PROJECT.glob("blink_server/**/*.py"))]
    ids = reference("\n".join(file.read_text() for file in files))
    step = (len(ids) - max(LENGTHS)) // TEXTS
    return {
        length: [decode(ids[at * step : at * step + length]) for at in range(TEXTS)]
        for length in LENGTHS
    }


def measure(
    encoders: Mapping[str, Encode], texts: Sequence[str], rounds: int
) -> dict[str, list[float]]:
    """Microseconds of a text: the mean of each round, by tokenizer."""
    repeats = max(1, 2_000 // len(texts[0]))  # a round of short texts would be shorter than noise
    found: dict[str, list[float]] = {name: [] for name in encoders}
    for _ in range(rounds + 1):
        for name, encode in encoders.items():
            began = time.process_time_ns()
            for _ in range(repeats):
                for text in texts:
                    encode(text)
            taken = time.process_time_ns() - began
            found[name].append(taken / 1000 / (repeats * len(texts)))
    return {name: values[1:] for name, values in found.items()}  # the first one warms up


def summary(found: Mapping[str, Sequence[float]]) -> dict[str, dict[str, Any]]:
    """Minimum, median, and how many times as long as ours, by tokenizer."""
    return {
        name: {
            "minimum_us": min(values),
            "median_us": statistics.median(values),
            "times_ours": statistics.median(
                their / our for their, our in zip(values, found[OURS], strict=True)
            ),
            "rounds_us": list(values),
        }
        for name, values in found.items()
    }


def shown(results: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> Table:
    """Medians in microseconds, and in brackets how many times as long as ours."""
    table = Table("tokens", *results[LENGTHS[0]])
    for length, found in results.items():
        cells = (f"{one['median_us']:.2f} us ({one['times_ours']:.1f})" for one in found.values())
        table.add_row(str(length), *cells)
    return table


@click.command()
@click.option("--rounds", type=click.IntRange(min=1), default=25, show_default=True)
def main(rounds: int) -> None:
    """Measure, print and keep."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = "1"
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    machine = describe_machine()
    gguf = pull(MODEL)
    serialized = open_gguf(gguf).tokenizer_json
    encoders = {
        OURS: with_blink_bpe(serialized),
        REFERENCE: with_tokenizers(serialized),
        "tokenizers, unlocked": with_huggingface(serialized),
        "tiktoken": with_tiktoken(serialized),
        "llama.cpp": with_llama_cpp(gguf),
    }
    reference = encoders[REFERENCE]
    texts = texts_of(reference, tokenizers.Tokenizer.from_str(serialized).decode)
    everything = [text for some in texts.values() for text in some]
    same = {
        name: sum(list(encode(text)) == list(reference(text)) for text in everything)
        for name, encode in encoders.items()
    }
    gc.disable()
    results = {length: summary(measure(encoders, texts[length], rounds)) for length in LENGTHS}
    console = Console()
    console.print(shown(results))
    console.print(f"texts with the ids of {REFERENCE}, of {len(everything)}: {same}")
    path = keep(
        "tokenizer",
        __doc__,
        machine,
        [],
        compared_with=[f"tiktoken=={version('tiktoken')}", PACKAGE],
        texts=len(everything),
        same_ids=same,
        tokens=results,
    )
    console.print(f"raw numbers: {path}")


if __name__ == "__main__":
    main()
