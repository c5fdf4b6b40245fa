"""Mutations on a tiny project: one that is noticed, one that is not, and tests that cannot tell."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.mutants.catalogue import Mutation
from tests.mutants.change import Change, Kind
from tests.mutants.trial import Scratch, Verdict

SOURCE = """
def capped(value):
    if value > 10:
        return 10
    return max(value, 0)
"""
TESTS = """
import pytest
from capped import capped

@pytest.mark.parametrize("value", [10, 11, 99])
def test_it_is_capped(value):
    assert capped(value) == 10

def test_what_is_small_stays():
    assert capped(3) == 3

@pytest.fixture
def ten():
    assert capped(11) == 10

def test_of_the_fixture(ten): ...

@pytest.mark.skip
def test_not_today(): ...
"""


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scratch]:
    """A copy of a project with two guards, of which one has a test."""
    root = tmp_path_factory.mktemp("project")
    (root / "capped.py").write_text(SOURCE)
    (root / "test_capped.py").write_text(TESTS)
    (root / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    with Scratch(root, tmp_path_factory.mktemp("scratch") / "checkout") as scratch:
        yield scratch


def no_cap(*tests: str) -> Mutation:
    """The upper bound taken out."""
    named = tuple(f"test_capped.py::{test}" for test in tests)
    change = Change("capped.py:capped", Kind.NEVER, select="if value > 10:")
    return Mutation("sample", "no-cap", change, named, "It grows.")


def test_a_mutation_that_its_test_notices_is_killed_and_taken_out_again(scratch: Scratch) -> None:
    trial = scratch.attempt(no_cap("test_it_is_capped"))

    assert (trial.verdict, trial.why) == (Verdict.KILLED, "")
    assert (scratch.directory / "capped.py").read_text() == SOURCE
    outcomes, _ = scratch.run(["test_capped.py::test_it_is_capped"])
    assert list(outcomes.values()) == ["passed"] * 3


@pytest.mark.parametrize(
    "tests", [("test_what_is_small_stays",), ("test_it_is_capped", "test_what_is_small_stays")]
)
def test_a_mutation_that_one_of_its_tests_does_not_notice_survives(
    scratch: Scratch, tests: tuple[str, ...]
) -> None:
    trial = scratch.attempt(no_cap(*tests))

    assert (trial.verdict, trial.why) == (Verdict.SURVIVED, "test_capped.py::test_what_is_small_stays")


@pytest.mark.parametrize(
    "test", ["test_not_today", "test_of_the_fixture", "test_of_no_name", "test_it_is_capped[12]"]
)
def test_a_test_that_does_not_run_tells_nothing(scratch: Scratch, test: str) -> None:
    assert scratch.attempt(no_cap(test)).verdict is Verdict.BROKEN


def test_a_change_of_the_same_length_within_a_second_is_seen(scratch: Scratch) -> None:
    """Compiled files are told apart by size and whole seconds."""
    verdicts = []
    for by in ("11", "+10", "12"):
        change = Change("capped.py:capped", Kind.REPLACE, select="return 10", by=f"return {by}")
        verdicts.append(
            scratch.attempt(
                Mutation("sample", "x", change, ("test_capped.py::test_it_is_capped",), "x")
            ).verdict
        )

    assert verdicts == [Verdict.KILLED, Verdict.SURVIVED, Verdict.KILLED]
