"""SmolLM2-135M-Instruct on the engine `onnx_cpu` against float32 Hugging Face transformers.

Teacher forced: the decoder reads the reference's tokens whatever it would have chosen itself, so
that one near tie does not decide about all that follows it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blink_persistent.engines.onnx_cpu.graph import write_graph
from blink_persistent.engines.onnx_cpu.metadata import Compute
from blink_persistent.testing.driven_decoder import DrivenDecoder
from blink_server.importers.gguf import open_gguf
from blink_server.importers.pull import pull

pytestmark = pytest.mark.slow

REFERENCE = Path(__file__).parent / "reference" / "smollm2_greedy.json"
CASES: list[dict[str, Any]] = json.loads(REFERENCE.read_text(encoding="utf-8"))["cases"]
ROWS = 8


def _build(directory: Path, compute: Compute) -> Path:
    path = directory / f"{compute}.onnx"
    checkpoint = open_gguf(pull("smollm2-135m-instruct"))
    write_graph(checkpoint, path, context_length=1024, compute=compute)
    return path


@pytest.fixture(scope="module")
def driven(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DrivenDecoder]:
    path = _build(tmp_path_factory.mktemp("model"), "int8")
    driven = DrivenDecoder(path, max_rows=ROWS, threads=2)
    yield driven
    driven.decoder.close()


def _follow(driven: DrivenDecoder, case: dict[str, Any]) -> np.ndarray:
    """Logits before each of the reference's tokens, [tokens, vocabulary], on row 0."""
    logits = [driven.prefill(0, case["prompt_ids"])]
    logits += [driven.decode({0: token})[0] for token in case["tokens"][:-1]]
    return np.array(logits)


@pytest.fixture(scope="module")
def followed(driven: DrivenDecoder) -> list[np.ndarray]:
    return [_follow(driven, case) for case in CASES]


@dataclass(frozen=True, slots=True)
class Comparison:
    """All tokens of all cases. `flipped_margins`: the reference's margin where we chose another."""

    tokens: int
    flipped_margins: list[float]
    differences: np.ndarray

    @property
    def agreement(self) -> float:
        return 1 - len(self.flipped_margins) / self.tokens


def _compare(followed: Sequence[np.ndarray]) -> Comparison:
    flipped: list[float] = []
    differences: list[float] = []
    for case, logits in zip(CASES, followed, strict=True):
        wide = logits.astype(np.float64)
        wide -= wide.max(axis=1, keepdims=True)
        logprobs = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
        for step, token in enumerate(case["tokens"]):
            if logprobs[step].argmax() != token:
                flipped.append(case["margin"][step])
            differences.append(abs(logprobs[step, token] - case["logprob"][step]))
    return Comparison(len(differences), flipped, np.array(differences))


def test_int8_agrees_with_the_reference_but_for_near_ties(followed: list[np.ndarray]):
    result = _compare(followed)
    assert result.tokens > 400
    assert max(result.flipped_margins, default=0) <= 0.5
    assert result.agreement >= 0.965
    assert result.differences.mean() < 0.05


def test_fp32_agrees_with_the_reference_but_for_the_nearest_ties(tmp_path: Path):
    """Up to a case's first flip this is also what a greedy answer would have been."""
    driven = DrivenDecoder(_build(tmp_path, "fp32"), context_length=256, threads=2)
    result = _compare([_follow(driven, case) for case in CASES])
    driven.decoder.close()
    assert result.tokens > 400
    assert max(result.flipped_margins, default=0) <= 0.02
    assert result.agreement >= 0.995
    assert result.differences.mean() < 0.005
    assert result.differences.max() < 1e-3


def test_rows_decoded_together_are_bit_equal_to_each_alone(
    driven: DrivenDecoder, followed: list[np.ndarray]
):
    """Rows drop out as their cases end, so that batches of all sizes and holes occur."""
    cases = list(enumerate(CASES))[:ROWS]
    for row, case in cases:
        np.testing.assert_array_equal(driven.prefill(row, case["prompt_ids"]), followed[row][0])
    for step in range(max(len(case["tokens"]) for _, case in cases) - 1):
        tokens = {
            row: case["tokens"][step] for row, case in cases if step + 1 < len(case["tokens"])
        }
        logits = driven.decode(tokens)
        for row in tokens:
            np.testing.assert_array_equal(logits[row], followed[row][step + 1])


@pytest.mark.parametrize("chunks", [[256, 45], [129, 172], [128, 173], [300, 1], [65, 33, 203]])
def test_chunks_of_a_prompt_are_bit_equal_to_the_whole(driven: DrivenDecoder, chunks: list[int]):
    prompt = [token for case in CASES for token in case["prompt_ids"] + case["tokens"]][:301]
    whole = driven.prefill(0, prompt)
    np.testing.assert_array_equal(driven.prefill(5, prompt, chunks), whole)
    np.testing.assert_array_equal(driven.cache(5), driven.cache(0))
