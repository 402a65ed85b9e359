"""What every importer must do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from blink_server.errors import BlinkError
from blink_server.importers.checkpoint import Checkpoint, QuantizedTensor
from blink_server.importers.importer import Importer
from blink_server.text.tokenizers import HuggingFaceTokenizer


class ImporterContract:
    """Override `importer` and `source`."""

    @pytest.fixture
    def importer(self) -> Importer:
        """The one that is tested."""
        raise NotImplementedError("override the fixture `importer`")

    @pytest.fixture
    def source(self) -> str:
        """Something small that it reads."""
        raise NotImplementedError("override the fixture `source`")

    @pytest.fixture
    def checkpoint(self, importer: Importer, source: str) -> Checkpoint:
        return importer(source, revision=None, progress=lambda stage, fraction: None)

    def test_every_tensor_of_the_architecture_is_there(self, checkpoint: Checkpoint) -> None:
        shapes = checkpoint.architecture.tensor_shapes()
        assert set(checkpoint.tensor_names()) == set(shapes)
        for name, shape in shapes.items():
            tensor = checkpoint.tensor(name)
            values = tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor
            assert values.shape == shape, name
            assert np.isfinite(values).all(), name

    def test_a_tensor_that_is_not_there_is_a_key_error(self, checkpoint: Checkpoint) -> None:
        with pytest.raises(KeyError):
            checkpoint.tensor("no.such.weight")

    def test_the_tokenizer_fits_the_architecture(self, checkpoint: Checkpoint) -> None:
        tokenizer = HuggingFaceTokenizer(checkpoint.tokenizer_json)
        size = checkpoint.architecture.vocabulary_size
        assert 0 < tokenizer.vocabulary_size <= size
        ids = [*checkpoint.eos_token_ids]
        ids += [] if checkpoint.bos_token_id is None else [checkpoint.bos_token_id]
        assert all(0 <= each < size for each in ids)

    def test_progress_is_told_in_shares(self, importer: Importer, source: str) -> None:
        told: list[tuple[str, float]] = []
        importer(source, revision=None, progress=lambda *each: told.append(each))
        assert told
        assert all(stage and 0 <= fraction <= 1 for stage, fraction in told)

    def test_what_is_not_there_is_named(self, importer: Importer, tmp_path: Path) -> None:
        with pytest.raises(BlinkError, match="no-such-source"):
            importer(
                str(tmp_path / "no-such-source"),
                revision=None,
                progress=lambda stage, fraction: None,
            )
