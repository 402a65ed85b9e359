from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink_server.errors import BlinkError
from blink_server.repository.policy import VersionKey
from blink_server.repository.source import SourceModel, read_repositories, wanted_versions
from blink_server.testing.tiny_repository import write_json


def make(repository: Path, *names: str) -> None:
    for name in names:
        (repository / name).mkdir(parents=True)


def only_problem(model: SourceModel) -> tuple[Path, str, str]:
    [problem] = model.problems
    return problem.file, problem.field, problem.expected


def test_finds_models_and_versions_in_order(tmp_path: Path) -> None:
    make(tmp_path, "b/1", "a/10", "a/9", "a/2")
    (tmp_path / "README.md").write_text("not a model")
    models = read_repositories([tmp_path])
    assert list(models) == ["a", "b"]
    assert dict(models["a"].versions) == {n: tmp_path / "a" / str(n) for n in (2, 9, 10)}
    assert wanted_versions(models) == [VersionKey("a", 10), VersionKey("b", 1)]
    assert models["a"].problems == ()


def test_follows_the_version_policy(tmp_path: Path) -> None:
    make(tmp_path, "a/1", "a/2", "a/3")
    write_json(tmp_path / "a" / "model.json", {"version_policy": {"latest": {"num_versions": 2}}})
    assert read_repositories([tmp_path])["a"].wanted == (2, 3)


def test_ignores_what_is_no_model_and_no_version(tmp_path: Path) -> None:
    make(tmp_path, ".git/1", "_old/1", "__pycache__/1", ".import-x/1", "a/1")
    make(
        tmp_path, "a/1.bak", "a/01", "a/0", "a/-1", "a/+1", "a/\u0661", "a/1e3", "a/.tmp", "a/docs"
    )
    (tmp_path / "a" / "7").write_text("a file")
    models = read_repositories([tmp_path])
    assert list(models) == ["a"]
    assert list(models["a"].versions) == [1]


@given(st.text(alphabet="0123456789.+-_ ab", min_size=1, max_size=22))
def test_a_version_is_the_canonical_form_of_a_positive_number(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    repository = tmp_path_factory.mktemp("repository")
    (repository / "a" / name).mkdir(parents=True, exist_ok=True)
    (repository / "a" / "1").mkdir(exist_ok=True)
    canonical = {name} if name.isdecimal() and str(int(name)) == name and int(name) else set()
    canonical = {each for each in canonical if len(each) <= 18}
    found = read_repositories([repository])["a"].versions
    assert {str(number) for number in found} == canonical | {"1"}


@pytest.mark.parametrize("name", ["a b", "a:1", "modèle", "a\nb", "é"])
def test_a_name_that_requests_could_not_use_is_refused(tmp_path: Path, name: str) -> None:
    make(tmp_path, f"{name}/1", "good/1")
    models = read_repositories([tmp_path])
    file, _, expected = only_problem(models[name])
    assert file == tmp_path / name
    assert expected.startswith("is no name for a model")
    assert models[name].wanted == ()
    assert models["good"].wanted == (1,)


def test_a_model_without_versions_says_what_it_has_instead(tmp_path: Path) -> None:
    make(tmp_path, "a/1.bak", "a/01", "b")
    models = read_repositories([tmp_path])
    _, _, expected = only_problem(models["a"])
    assert "has no version" in expected
    assert "'01', '1.bak'" in expected
    assert "has no version" in only_problem(models["b"])[2]


def test_versions_and_models_that_are_links_to_nothing_are_named(tmp_path: Path) -> None:
    make(tmp_path, "a/1", "b")
    (tmp_path / "a" / "2").symlink_to("../store/2")
    (tmp_path / "a" / "latest").symlink_to("gone")  # no version by its name
    (tmp_path / "b" / "3").symlink_to("3")
    (tmp_path / "c").symlink_to("store/c")
    models = read_repositories([tmp_path])
    assert {name: only_problem(model) for name, model in models.items()} == {
        "a": (tmp_path / "a", "2", "is a link to '../store/2', where nothing is"),
        "b": (tmp_path / "b", "3", "is a link to '3', where nothing is"),
        "c": (tmp_path / "c", "", "is a link to 'store/c', where nothing is"),
    }
    assert wanted_versions(models) == [VersionKey("a", 1)]


def test_a_broken_model_json_stops_that_model_alone(tmp_path: Path) -> None:
    make(tmp_path, "a/1", "b/1")
    (tmp_path / "a" / "model.json").write_text('{"version_policy": }')
    models = read_repositories([tmp_path])
    file, _, expected = only_problem(models["a"])
    assert file == tmp_path / "a" / "model.json"
    assert expected.startswith("is not JSON at line 1:20")
    assert (models["a"].wanted, models["b"].wanted) == ((), (1,))


def test_a_specific_version_that_is_not_there_is_named(tmp_path: Path) -> None:
    make(tmp_path, "a/1", "a/2")
    policy = {"version_policy": {"specific": {"versions": [7, 1]}}}
    write_json(tmp_path / "a" / "model.json", policy)
    model = read_repositories([tmp_path])["a"]
    [problem] = model.problems
    assert (problem.field, problem.value) == ("version_policy.specific.versions", 7)
    assert problem.expected == "is not there; there is 1, 2"
    assert model.wanted == (1,)


def test_two_models_of_one_name_are_both_refused_and_named(tmp_path: Path) -> None:
    make(tmp_path / "x", "a/1", "b/1")
    make(tmp_path / "y", "a/2", "c/1")
    models = read_repositories([tmp_path / "x", tmp_path / "y"])
    _, _, expected = only_problem(models["a"])
    assert "'a'" in expected
    assert f"{tmp_path / 'x' / 'a'} and {tmp_path / 'y' / 'a'}" in expected
    assert wanted_versions(models) == [VersionKey("b", 1), VersionKey("c", 1)]


def test_one_repository_given_twice_is_read_once(tmp_path: Path) -> None:
    make(tmp_path, "repository/a/1")
    (tmp_path / "link").symlink_to("repository")
    models = read_repositories([tmp_path / "repository", tmp_path / "link"])
    assert models["a"].problems == ()


def test_aliases_belong_to_one_model(tmp_path: Path) -> None:
    make(tmp_path, "a/1", "b/1")
    write_json(tmp_path / "a" / "model.json", {"aliases": ["b", "shared", "mine"]})
    write_json(tmp_path / "b" / "model.json", {"aliases": ["shared"]})
    models = read_repositories([tmp_path])
    assert models["a"].aliases == ("mine",)
    assert models["b"].aliases == ()
    assert [(p.value, p.field) for p in models["a"].problems] == [
        ("b", "aliases"),
        ("shared", "aliases"),
    ]
    assert str(tmp_path / "b") in models["a"].problems[0].expected
    assert "model 'a'" in only_problem(models["b"])[2]
    assert wanted_versions(models) == [VersionKey("a", 1), VersionKey("b", 1)]


def test_a_repository_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BlinkError, match=r"gone: No such file or directory"):
        read_repositories([tmp_path / "gone"])
    (tmp_path / "file").write_text("")
    with pytest.raises(BlinkError, match=r"file: Not a directory"):
        read_repositories([tmp_path / "file"])


def test_a_model_that_cannot_be_read_stops_that_model_alone(
    short_path: Path, request: pytest.FixtureRequest
) -> None:
    make(short_path, "a/1", "b/1")
    (short_path / "a").chmod(0)
    short_path.chmod(0o755)
    request.getfixturevalue("unprivileged")
    models = read_repositories([short_path])
    assert "Permission denied" in only_problem(models["a"])[2]
    assert models["b"].wanted == (1,)
