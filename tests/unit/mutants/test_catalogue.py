"""The list of mutations cannot rot: each old text is there once, and each named test exists."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.catalogue import Mutation, problems, read

ROOT = Path(__file__).parents[3]
LISTED = """
[[mutation]]
id = "lost-guard"
file = "thing.py"
old = "if full:"
new = "if False:"
tests = ["test_thing.py::TestThing::test_it_is_refused"]
harm = "It runs over."
"""


def test_every_mutation_can_still_be_made_and_its_tests_exist() -> None:
    listed = read()

    assert len(listed) >= 100
    assert problems(listed, ROOT) == []


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """One file with one guard, and a test of it."""
    (tmp_path / "thing.py").write_text("if full:\n    raise ValueError\n")
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
    ("changes", "says"),
    [
        ({"old": "if half full:"}, "lost-guard: the old text occurs 0 times in thing.py, not once"),
        ({"old": "f"}, "lost-guard: the old text occurs 2 times in thing.py, not once"),
        ({"new": "if full:"}, "lost-guard: nothing is changed"),
        ({"new": "if:"}, "lost-guard: the new text is no Python"),
        ({"file": "other.py"}, "lost-guard: no file other.py"),
        (
            {"tests": ("test_thing.py::test_it_is_refused",)},
            "lost-guard: no test test_thing.py::test_it_is_refused",
        ),
        ({"tests": ("test_other.py::test_x",)}, "lost-guard: no test test_other.py::test_x"),
        ({"tests": (), "harm": ""}, "lost-guard: empty tests, harm"),
    ],
)
def test_what_is_stale_is_named(project: Path, changes: dict[str, str], says: str) -> None:
    [one] = read(project)

    assert problems([replace(one, **changes)], project) == [says]  # type: ignore[arg-type]


def test_an_id_is_used_once(project: Path) -> None:
    listed: list[Mutation] = read(project) * 2

    assert problems(listed, project) == ["lost-guard: listed twice"]


def test_an_entry_with_another_key_is_refused(project: Path) -> None:
    (project / "subject.toml").write_text(LISTED + 'because = "x"\n')

    with pytest.raises(TypeError, match="because"):
        read(project)
