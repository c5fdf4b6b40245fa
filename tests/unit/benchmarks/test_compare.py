"""Ratios of the figures of two commits."""

from __future__ import annotations

from benchmarks.compare import SHORT, numbers, ratios
from benchmarks.kept import ROOT


def test_the_numbers_of_a_document_go_by_the_names_that_lead_to_them() -> None:
    document = {
        "benchmark": "x",
        "machine": {"cores": 2},
        "rounds": 3,
        "goal_ms": {"p50": 1},
        "split": {"ms": {"p50": 4.5, "goal_p50": 9}},
        "is_met": True,
    }

    assert dict(numbers(document)) == {"split.ms.p50": 4.5}


def test_ratios_are_of_one_round_each_and_of_figures_that_both_have_and_that_differ() -> None:
    base = [{"ms": 10.0, "rate": 5.0, "gone": 1.0, "zero": 0.0}, {"ms": 20.0, "rate": 5.0, "zero": 0.0}]
    present = [{"ms": 5.0, "rate": 5.0, "new": 1.0, "zero": 1.0}, {"ms": 30.0, "rate": 5.0, "zero": 0.0}]

    assert ratios(base, present) == {"ms": [0.5, 1.5]}


def test_a_failed_run_leaves_nothing_to_compare() -> None:
    assert ratios([{"ms": 1.0}], [{}]) == {}


def test_every_short_form_is_of_a_benchmark() -> None:
    assert all((ROOT / "benchmarks" / f"bench_{name}.py").exists() for name in SHORT)
