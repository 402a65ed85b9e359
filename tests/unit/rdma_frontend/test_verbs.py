from __future__ import annotations

import pytest

from blink_server.errors import Unavailable
from rdma_frontend.verbs import NEWEST, OLDEST, check_version


@pytest.mark.parametrize(
    ("pyverbs", "rdma_core"),
    [(None, None), (OLDEST, OLDEST), (NEWEST, None), (None, OLDEST), (NEWEST, NEWEST)],
)
def test_versions_that_match_are_taken(pyverbs: int | None, rdma_core: int | None) -> None:
    check_version(pyverbs, rdma_core)


@pytest.mark.parametrize(
    ("pyverbs", "rdma_core", "complaint"),
    [
        (OLDEST - 1, None, f"44 to 59 .*: version {OLDEST - 1} was found"),
        (NEWEST + 1, NEWEST + 1, f"version {NEWEST + 1} was found"),
        (None, OLDEST - 1, f"version {OLDEST - 1} was found"),
        (59, 44, "exactly 44, as rdma-core here: pyverbs 59 was found"),
    ],
)
def test_others_are_refused_by_name(
    pyverbs: int | None, rdma_core: int | None, complaint: str
) -> None:
    with pytest.raises(Unavailable, match=f"the package pyverbs .*{complaint}"):
        check_version(pyverbs, rdma_core)
