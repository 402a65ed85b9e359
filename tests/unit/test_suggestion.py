from __future__ import annotations

from blink_server.suggestion import suggestion


def test_the_nearest_name_is_asked_for() -> None:
    known = ["smollm2", "qwen3", "x" * 80]
    assert suggestion("smolm2", known, "serve") == "did you mean 'smollm2'?"
    assert suggestion("x" * 79, known, "serve") == f"did you mean '{'x' * 80}'?"


def test_where_none_is_near_the_first_are_told() -> None:
    assert suggestion("other", [], "serve") == "none serves"
    assert suggestion("other", ["tiny"], "serve") == "tiny serves"
    known = [f"model-{number}" for number in range(300)]
    told = suggestion("zzz", known, "serve")
    assert told == f"{', '.join(known[:10])} and 290 more serve"
