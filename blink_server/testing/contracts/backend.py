"""What every backend must do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blink_server.backend import Backend, Endpoint, ModelVersion, Session
from blink_server.testing.contracts.session import SessionContract
from blink_server.testing.started_runner import started_runner


class BackendContract(SessionContract):
    """Override `backend` and `version`: one that is valid and small.

    A backend with a runner has it started for the tests of its sessions, as a server does.
    """

    @pytest.fixture
    def backend(self) -> Backend:
        """The one that is tested."""
        raise NotImplementedError("override the fixture `backend`")

    @pytest.fixture
    def version(self) -> ModelVersion:
        """A version as the repository gives it, with its effective config."""
        raise NotImplementedError("override the fixture `version`")

    @pytest.fixture
    async def endpoint(self, backend: Backend, version: ModelVersion) -> AsyncIterator[Endpoint]:
        """Where the version is served."""
        async with started_runner(backend, version) as endpoint:
            yield endpoint

    @pytest.fixture
    async def session(
        self, backend: Backend, version: ModelVersion, endpoint: Endpoint
    ) -> AsyncIterator[Session]:
        session = await backend.connect(version, endpoint)
        session.configure(version.config)
        yield session
        await session.close()

    def test_it_is_a_backend_with_a_name(self, backend: Backend) -> None:
        assert isinstance(backend, Backend)
        assert backend.name.isprintable()
        assert backend.name

    def test_a_valid_version_has_no_problems(self, backend: Backend, version: ModelVersion) -> None:
        assert list(backend.check(version)) == []

    def test_a_check_of_missing_files_raises_nothing_but_problems(
        self, backend: Backend, version: ModelVersion, tmp_path: Path
    ) -> None:
        from blink_server.errors import InvalidModel

        gone = ModelVersion(version.model, version.version, tmp_path / "gone", version.config)
        try:
            problems = list(backend.check(gone))
        except InvalidModel as error:
            problems = error.problems
        assert all(problem.expected for problem in problems)

    def test_an_estimate_is_a_number_of_bytes_that_stays(
        self, backend: Backend, version: ModelVersion
    ) -> None:
        estimate = backend.estimate(version)
        assert isinstance(estimate, int)
        assert estimate >= 0
        assert backend.estimate(version) == estimate

    def test_a_command_is_words(self, backend: Backend, version: ModelVersion) -> None:
        command = backend.runner_command(version, threads=1)
        assert not isinstance(command, str)
        assert all(isinstance(word, str) for word in command)
