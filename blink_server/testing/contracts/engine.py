"""What every engine of `blink_persistent` must do that runs on a host."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from blink_persistent.engines import Engine, Provisioned, ProvisionLimits
from blink_persistent.graph_grid import GraphGrid
from blink_persistent.samplers.default import DefaultSampler
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.served_engine import ServedEngine
from blink_server.backend import ModelVersion
from blink_server.config import load_graph_grid
from blink_server.errors import InvalidModel


class EngineContract:
    """Override `engine` and `version`: one that is valid and small.

    `alone_as_together`: greedy answers do not depend on the other rows of a step, bit by bit; an
    engine whose sums depend on the batch says False.
    """

    alone_as_together = True

    @pytest.fixture
    def engine(self) -> Engine:
        """The one that is tested."""
        raise NotImplementedError("override the fixture `engine`")

    @pytest.fixture
    def version(self) -> ModelVersion:
        """With its effective config and its graph_grid.json; a context of 32 tokens or more."""
        raise NotImplementedError("override the fixture `version`")

    def provision(self, engine: Engine, version: ModelVersion) -> Provisioned:
        """The version, loaded."""
        provisioned = engine.provision(
            version,
            GraphGrid.from_json(load_graph_grid(version.directory)),
            ProvisionLimits(threads=1, sampler=DefaultSampler()),
            progress=lambda stage, fraction: None,
        )
        assert hasattr(provisioned, "step"), "an engine for a GPU: its tests need one"
        return cast(Provisioned, provisioned)

    def answers(
        self, engine: Engine, version: ModelVersion, *requests: ScriptedRequest
    ) -> list[list[int]]:
        """Greedy answers of requests that are submitted together to a freshly loaded version."""
        with ServedEngine(self.provision(engine, version)) as served:
            return served.answers(requests)

    def prompts(self, version: ModelVersion) -> list[ScriptedRequest]:
        """Requests of several lengths: below, at and above a prefill's chunk."""
        limits = version.config["limits"]
        chunk, context = limits["max_prefill_tokens"], limits["context_length"]
        lengths = {1, 2, 7, chunk, min(chunk + 1, context - 4), context - 4}
        return [
            ScriptedRequest(
                prompt=tuple(5 + (3 * place + length) % 17 for place in range(length)),
                max_tokens=3,
                ignore_eos=True,
            )
            for length in sorted(lengths)
            if 0 < length <= context - 4
        ]

    def test_a_valid_version_has_no_problems(self, engine: Engine, version: ModelVersion) -> None:
        assert list(engine.check(version)) == []

    def test_missing_files_are_problems(
        self, engine: Engine, version: ModelVersion, tmp_path: Path
    ) -> None:
        gone = ModelVersion(version.model, version.version, tmp_path / "gone", version.config)
        try:
            problems = list(engine.check(gone))
        except InvalidModel as error:
            problems = error.problems
        assert all(problem.expected for problem in problems)

    def test_an_estimate_is_a_number_of_bytes(self, engine: Engine, version: ModelVersion) -> None:
        assert isinstance(engine.estimate(version), int)
        assert engine.estimate(version) >= 0

    def test_what_is_provisioned_fits_the_version(
        self, engine: Engine, version: ModelVersion
    ) -> None:
        provisioned = self.provision(engine, version)
        try:
            shape, limits = provisioned.shape, version.config["limits"]
            assert shape.context_length == limits["context_length"]
            assert shape.grid.max_rows == limits["max_rows"]
            assert shape.eos_token_ids == tuple(version.config["eos_token_ids"])
            if not shape.rows_movable:
                assert shape.block_size == shape.context_length
        finally:
            provisioned.close()

    def test_every_request_gets_its_tokens(self, engine: Engine, version: ModelVersion) -> None:
        requests = self.prompts(version)
        found = self.answers(engine, version, *requests)
        assert [len(tokens) for tokens in found] == [request.max_tokens for request in requests]
        with ServedEngine(self.provision(engine, version)) as served:
            size = served.provisioned.shape.vocabulary_size
        assert all(0 <= token < size for tokens in found for token in tokens)

    def test_the_same_question_has_the_same_answer(
        self, engine: Engine, version: ModelVersion
    ) -> None:
        requests = self.prompts(version)
        assert self.answers(engine, version, *requests) == self.answers(engine, version, *requests)

    def test_company_changes_no_answer(self, engine: Engine, version: ModelVersion) -> None:
        if not self.alone_as_together:
            pytest.skip("this engine's sums depend on the batch")
        requests = self.prompts(version)
        alone = [self.answers(engine, version, request)[0] for request in requests]
        assert self.answers(engine, version, *requests) == alone

    def test_a_closed_version_can_be_loaded_again(
        self, engine: Engine, version: ModelVersion
    ) -> None:
        for _ in range(3):
            self.provision(engine, version).close()
