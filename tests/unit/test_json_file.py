from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink_server.errors import InvalidModel
from blink_server.json_file import MAX_BYTES, read_json


def problems(path: Path, data: bytes) -> list[str]:
    path.write_bytes(data)
    with pytest.raises(InvalidModel) as caught:
        read_json(path)
    assert {problem.file for problem in caught.value.problems} == {path}
    return [problem.expected for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "is empty"),
        (b'{"a": 1,\n "b" 2}', "is not JSON at line 2:6: expecting ':' delimiter"),
        (b"{'a': 1}", "is not JSON at line 1:2: "),
        (b'{"a": 1} x', "is not JSON at line 1:10: extra data"),
        (b'\xef\xbb\xbf{"a": 1}', "begins with a byte order mark at line 1:1"),
        ('{"a": 1}'.encode("utf-16"), "begins with a byte order mark at line 1:1"),
        (b'{\n"a\xff": 1}', "is not UTF-8 at line 2:3"),
        (b'{"a": [1, NaN]}', "has NaN at line 1:11; numbers must be finite"),
        (b'{"a": -Infinity}', "has -Infinity at line 1:7; numbers must be finite"),
        (b'{"a": 1e999}', "has 1e999 at line 1:7; numbers must be finite"),
        (b'{"a": 1,\n  "a": 2}', "has the key 'a' twice, at line 2:3"),
        (b'{"b": {"\\u0061": 1, "a": 2}}', "has the key 'a' twice, at line 1:21"),
        (b"[" * 100_000, "nests too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "holds a number that cannot be read"),
        (b" " * (MAX_BYTES + 1), f"is larger than {MAX_BYTES} bytes"),
    ],
)
def test_says_what_is_wrong_and_where(tmp_path: Path, data: bytes, expected: str) -> None:
    [found] = problems(tmp_path / "config.json", data)
    assert found.startswith(expected)


def test_reports_all_doubtful_places(tmp_path: Path) -> None:
    data = b'{"a": NaN, "b": {"c": 1, "c": 2}, "a": Infinity}'
    assert problems(tmp_path / "config.json", data) == [
        "has NaN at line 1:7; numbers must be finite",
        "has the key 'c' twice, at line 1:26",
        "has the key 'a' twice, at line 1:35",
        "has Infinity at line 1:40; numbers must be finite",
    ]


def test_names_a_missing_file_and_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match=r"gone\.json: is missing"):
        read_json(tmp_path / "gone.json")
    with pytest.raises(InvalidModel, match="must be a regular file"):
        read_json(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(InvalidModel, match="must be a regular file"):
        read_json(tmp_path / "fifo")


keys = st.text() | st.sampled_from(['"', "{", "}", ":", ",", "\\", "a:"])
finite = st.floats(allow_nan=False, allow_infinity=False)
documents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | keys,
    lambda inner: st.lists(inner) | st.dictionaries(keys, inner),
)


@given(document=documents, ascii_only=st.booleans(), indent=st.none() | st.integers(0, 2))
def test_reads_what_is_not_doubtful(
    tmp_path_factory: pytest.TempPathFactory, document: Any, ascii_only: bool, indent: int | None
) -> None:
    path = tmp_path_factory.mktemp("json") / "x.json"
    path.write_text(json.dumps(document, ensure_ascii=ascii_only, indent=indent), encoding="utf-8")
    assert read_json(path) == document
