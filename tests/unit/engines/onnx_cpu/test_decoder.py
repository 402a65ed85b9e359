"""What continuous batching relies on: rows do not see each other, chunks do not show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from blink_persistent.engines.onnx_cpu.decoder import Decoder, StepInputs
from blink_persistent.engines.onnx_cpu.graph import write_graph
from blink_persistent.engines.onnx_cpu.session import load_model
from blink_server.errors import EngineFailure, InvalidModel
from blink_server.importers.quantizing import QuantizingCheckpoint
from blink_server.testing.memory_checkpoint import (
    MemoryCheckpoint,
    random_checkpoint,
    tiny_architecture,
)

ROWS = 5
PROMPTS = [
    [int(token) for token in np.random.default_rng(row).integers(0, 101, 4 + 7 * row)]
    for row in range(ROWS)
]


@pytest.fixture(scope="module", params=["stretched", "4 bit, biases, norms of heads"])
def checkpoint(request: pytest.FixtureRequest) -> MemoryCheckpoint:
    if request.param == "stretched":
        return random_checkpoint(tiny_architecture(), bits=4)
    floats = random_checkpoint(tiny_architecture(attention_bias=True, qk_norm=True))
    quantizing = QuantizingCheckpoint(floats, 4)
    tensors = {name: quantizing.tensor(name) for name in floats.tensors}
    return MemoryCheckpoint(floats.architecture, tensors)


@pytest.fixture
def driven(drive: Any, checkpoint: MemoryCheckpoint) -> Any:
    return drive(checkpoint, max_rows=ROWS)


def test_a_row_is_bit_equal_whatever_its_batch_and_index(driven: Any):
    for row, prompt in enumerate(PROMPTS):
        driven.prefill(row, prompt)
    together = [driven.decode(dict.fromkeys(range(ROWS), 10 + step)) for step in range(3)]
    caches = [driven.cache(row) for row in range(ROWS)]
    for row, prompt in enumerate(PROMPTS):
        for index in (0, ROWS - 1):
            driven.prefill(index, prompt)
            for step in range(3):
                alone = driven.decode({index: 10 + step}, rows=index + 1)
                np.testing.assert_array_equal(alone[index], together[step][row])
            np.testing.assert_array_equal(driven.cache(index), caches[row])


@pytest.mark.parametrize(
    "chunks",
    [[1, 62], [62, 1], [7, 56], [32, 31], [33, 30], [30, 33], [1] * 63, [5, 1, 57], [8, 55]],
)
def test_chunks_of_a_prompt_are_bit_equal_to_the_whole(driven: Any, chunks: list[int]):
    prompt = [token % 101 for token in range(7, 70)]
    whole = driven.prefill(0, prompt)
    np.testing.assert_array_equal(driven.prefill(1, prompt, chunks), whole)
    np.testing.assert_array_equal(driven.cache(1), driven.cache(0))


def test_a_prompt_of_one_token_has_the_logits_of_the_same_token_in_a_longer_one(driven: Any):
    driven.prefill(0, [42])
    driven.prefill(1, [42, 17])
    np.testing.assert_array_equal(driven.cache(0)[:, :, 0], driven.cache(1)[:, :, 0])


def test_inactive_rows_keep_their_slabs(driven: Any):
    for row, prompt in enumerate(PROMPTS):
        driven.prefill(row, prompt)
    before = driven.decoder.kv.copy()
    driven.decode({1: 50, 4: 51})
    for row in (0, 2, 3):
        np.testing.assert_array_equal(driven.decoder.kv[:, :, row], before[:, :, row])
    # A paused row goes on as if nothing had happened.
    continued = driven.decode({0: 60}, rows=1)[0]
    driven.prefill(2, PROMPTS[0])
    np.testing.assert_array_equal(driven.decode({2: 60})[2], continued)


def test_a_step_writes_one_entry_of_its_row_and_nothing_else(driven: Any):
    driven.prefill(3, PROMPTS[0])
    before = driven.decoder.kv.copy()
    driven.decode({3: 50}, rows=4)
    changed = np.argwhere(driven.decoder.kv != before)
    assert {(row, position) for _, _, row, _, position, _ in changed} == {(3, len(PROMPTS[0]))}
    layers_parts_heads = {(layer, part, head) for layer, part, _, head, _, _ in changed}
    assert len(layers_parts_heads) == 2 * 2 * 2


def test_a_lone_last_token_writes_its_own_entry_only(driven: Any):
    driven.prefill(0, PROMPTS[0])
    before = driven.decoder.kv.copy()
    driven.prefill(0, [*PROMPTS[0], 9], [len(PROMPTS[0]), 1])
    changed = np.argwhere(driven.decoder.kv != before)
    assert {position for *_, position, _ in changed} == {len(PROMPTS[0])}


def test_a_lone_token_after_decoded_ones_leaves_them_alone(driven: Any):
    driven.prefill(0, PROMPTS[0])
    driven.decode({0: 50})
    before = driven.cache(0)
    driven.prefill_inputs.token_ids[0] = 9
    driven.prefill_inputs.start_positions[0] = driven.lengths[0]
    driven.prefill_inputs.lengths[0] = driven.lengths[0] + 1
    driven.decoder.prefill(0, 1)
    np.testing.assert_array_equal(driven.cache(0), before)
    assert np.isfinite(driven.logits[0]).all()


def test_a_used_slab_serves_a_new_prompt_as_a_fresh_one_does(driven: Any):
    fresh = driven.prefill(0, PROMPTS[0])
    driven.prefill(1, PROMPTS[4])
    np.testing.assert_array_equal(driven.prefill(1, PROMPTS[0]), fresh)


@pytest.mark.parametrize("part", [0, 1], ids=["keys", "values"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_entries_that_are_no_numbers_are_their_own_rows_alone(
    driven: Any, part: int, value: float
) -> None:
    """Nor has NaN that nobody has written any effect: in slabs, and behind a row's entries."""
    for row, prompt in enumerate(PROMPTS):
        driven.prefill(row, prompt)
    clean = [driven.decoder.kv.copy(), driven.lengths.copy()]
    expected = driven.decode(dict.fromkeys((0, 1, 3, 4), 10), rows=ROWS)
    chunk = driven.prefill(2, PROMPTS[2])
    driven.decoder.kv[:], driven.lengths[:] = clean
    for row, prompt in enumerate(PROMPTS):
        driven.decoder.kv[:, :, row, :, len(prompt) :] = np.nan
    driven.decoder.kv[0, part, 3, :, 2] = value
    found = driven.decode(dict.fromkeys((0, 1, 3, 4), 10), rows=ROWS)
    assert np.isnan(found[3]).all(), "the answer would look like one"
    for row in (0, 1, 4):
        np.testing.assert_array_equal(found[row], expected[row])
    driven.decoder.kv[:, :, 2] = np.nan
    np.testing.assert_array_equal(driven.prefill(2, PROMPTS[2]), chunk)


def test_the_context_can_be_filled_to_its_last_entry_and_not_beyond(driven: Any):
    limit = driven.decoder.context_length
    prompt = [row % 101 for row in range(limit - 1)]
    driven.prefill(0, prompt)
    driven.prefill(2, prompt)
    other = driven.decoder.kv[:, :, 1].copy()
    driven.decode({0: 5})
    assert driven.lengths[0] == limit
    with pytest.raises(EngineFailure):
        driven.decode({0: 5})
    np.testing.assert_array_equal(driven.decoder.kv[:, :, 1], other)
    # The decoder is not spoilt by a refused step.
    driven.lengths[0] = limit - 1
    assert np.isfinite(driven.decode({0: 5})).all()


@pytest.mark.parametrize("rows", [0, -1, ROWS + 1])
def test_decode_refuses_rows_that_do_not_exist(driven: Any, rows: int):
    with pytest.raises(ValueError, match="rows"):
        driven.decoder.decode(rows)


@pytest.mark.parametrize(("row", "count"), [(-1, 2), (ROWS, 2), (0, 0), (0, 65)])
def test_prefill_refuses_what_its_buffers_cannot_hold(driven: Any, row: int, count: int):
    with pytest.raises(ValueError, match="row"):
        driven.decoder.prefill(row, count)


def _open(path: Path, **changes: Any) -> Decoder:
    def inputs() -> StepInputs:
        return StepInputs(*(np.zeros(4, np.int32) for _ in range(3)))

    arguments: dict[str, Any] = {
        "max_rows": 4,
        "context_length": 64,
        "decode": inputs(),
        "prefill": inputs(),
        "logits": np.zeros((4, 101), np.float32),
    }
    return Decoder(load_model(path, threads=1), **(arguments | changes))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, checkpoint: MemoryCheckpoint) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    write_graph(checkpoint, path, context_length=64)
    return path


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"logits": np.zeros((3, 101), np.float32)}, "logits"),
        ({"logits": np.zeros((4, 100), np.float32)}, "logits"),
        ({"logits": np.zeros((4, 101), np.float64)}, "logits"),
        ({"logits": np.zeros((101, 4), np.float32).T}, "contiguous"),
        ({"decode": StepInputs(*(np.zeros(3, np.int32) for _ in range(3)))}, "decode.token_ids"),
        ({"prefill": StepInputs(*(np.zeros(4, np.int64) for _ in range(3)))}, "prefill.token_ids"),
    ],
)
def test_buffers_that_do_not_fit_are_refused(model: Path, changes: dict[str, Any], named: str):
    with pytest.raises(ValueError, match=named):
        _open(model, **changes)


def test_a_context_beyond_the_models_is_refused(model: Path):
    with pytest.raises(InvalidModel, match="context_length: is 65"):
        _open(model, context_length=65)


def test_a_shorter_context_takes_less_memory(model: Path):
    short, whole = _open(model, context_length=16), _open(model)
    assert short.kv.nbytes == whole.kv.nbytes // 4 == 4 * 16 * short.shape.entry_bytes


@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "noise"])
def test_a_file_that_cannot_be_loaded_is_named(tmp_path: Path, model: Path, damage: str):
    path = tmp_path / "damaged.onnx"
    content = model.read_bytes()
    broken = {"empty": b"", "truncated": content[: len(content) // 2], "noise": b"\xff" * 1000}
    if damage != "missing":
        path.write_bytes(broken[damage])
    with pytest.raises(InvalidModel, match=r"damaged\.onnx"):
        _open(path)


def test_a_model_of_another_builder_is_refused(tmp_path: Path, model: Path):
    foreign = onnx.load(model)
    (entry,) = foreign.metadata_props
    entry.value = entry.value.replace('"format": 1', '"format": 99')
    onnx.save_model(foreign, tmp_path / "foreign.onnx")
    with pytest.raises(InvalidModel, match="format: is 99"):
        _open(tmp_path / "foreign.onnx")
    del foreign.metadata_props[:]
    onnx.save_model(foreign, tmp_path / "foreign.onnx")
    with pytest.raises(InvalidModel, match="metadata format"):
        _open(tmp_path / "foreign.onnx")
