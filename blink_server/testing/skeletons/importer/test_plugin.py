from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blink_server.importers.importer import Importer
from blink_server.testing import ImporterContract
from blink_server.testing.memory_checkpoint import random_checkpoint, tiny_architecture
from blink_server.testing.skeletons.importer import plugin
from blink_server.testing.tiny_tokenizer import byte_level_tokenizer
from blink_server.testing.with_plugin import plugins_with


class TestMyImporter(ImporterContract):
    @pytest.fixture
    def importer(self) -> Importer:
        return plugins_with(plugin).importers["my_plugin"]

    @pytest.fixture
    def source(self, tmp_path: Path) -> str:
        checkpoint = random_checkpoint(tiny_architecture(vocabulary_size=400))
        weights: dict[str, Any] = checkpoint.dequantized()
        np.savez(tmp_path / "weights.npz", **weights)
        (tmp_path / "shape.json").write_text(json.dumps(asdict(checkpoint.architecture)))
        (tmp_path / "tokenizer.json").write_text(byte_level_tokenizer())
        return str(tmp_path)
