"""The catalogue cannot become outdated unnoticed: each change applies to exactly one place, and each named test exists."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.catalogue import Mutation, problems, read

ROOT = Path(__file__).parents[3]
LISTED = """
[[mutant]]
id = "lost-guard"
at = "thing.py:stored"
change = "never"
select = "if full:"
tests = ["test_thing.py::TestThing::test_it_is_refused"]
harm = "It runs over."
"""


def test_every_mutation_applies_to_one_place_and_its_tests_exist() -> None:
    listed = read()

    assert 100 <= len(listed) <= 180
    assert problems(listed, ROOT) == []


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """One file with one guard, and a test of it."""
    (tmp_path / "thing.py").write_text("def stored(full):\n    if full:\n        raise ValueError\n")
    (tmp_path / "test_thing.py").write_text("class TestThing:\n    def test_it_is_refused(self): ...\n")
    (tmp_path / "subject.toml").write_text(LISTED)
    return tmp_path


def test_a_listed_mutation_is_read_with_its_subject(project: Path) -> None:
    [one] = read(project)

    assert (one.subject, one.id, one.tests) == (
        "subject",
        "lost-guard",
        ("test_thing.py::TestThing::test_it_is_refused",),
    )
    assert problems([one], project) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"select": "if half_full:"}, "lost-guard: 'if half_full:' is there 0 times"),
        ({"at": "thing.py:kept"}, "lost-guard: there is no kept"),
        ({"at": "other.py:stored"}, "lost-guard: no file other.py"),
    ],
)
def test_a_change_that_does_not_apply_is_named(project: Path, change: dict[str, str], says: str) -> None:
    [one] = read(project)
    outdated = replace(one, change=replace(one.change, **change))  # type: ignore[arg-type]

    assert problems([outdated], project) == [says]


@pytest.mark.parametrize(
    ("tests", "says"),
    [
        (("test_thing.py::test_it_is_refused",), "lost-guard: no test test_thing.py::test_it_is_refused"),
        (("test_other.py::test_x",), "lost-guard: no test test_other.py::test_x"),
        ((), "lost-guard: tests or harm is empty"),
    ],
)
def test_a_test_that_does_not_exist_is_named(project: Path, tests: tuple[str, ...], says: str) -> None:
    [one] = read(project)

    assert problems([replace(one, tests=tests)], project) == [says]


def test_an_id_is_used_once(project: Path) -> None:
    listed: list[Mutation] = read(project) * 2

    assert problems(listed, project) == ["lost-guard: listed twice"]


def test_an_entry_with_another_key_is_refused(project: Path) -> None:
    (project / "subject.toml").write_text(LISTED + 'because = "x"\n')

    with pytest.raises(TypeError, match="because"):
        read(project)
