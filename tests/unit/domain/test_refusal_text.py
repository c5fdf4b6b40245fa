"""Each refusal with figures says in one sentence how far it was from acting."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from controller.domain.decision import RefusalReason
from controller.domain.evaluation_input import EvaluationInput
from controller.domain.evaluator import decide
from controller.domain.refusal_text import how_far
from tests.unit.domain.situations import situations

NOON = 1_763_812_800_000  # 2025-11-22 12:00:00Z


def of(reason: str, now: int | None = NOON, **figures: Any) -> str:
    return how_far({"reason": reason, **figures}, now)


@pytest.mark.parametrize(
    ("reason", "metric", "value", "needed", "sentence"),
    [
        ("not-cold", "msg_rate_in", 1500.0, 1000, "1,500, needs below 1,000 (500 too high, 1.50 times that)"),
        ("lower-score", "msg_rate_in", 1.2, 2.5, "1.2, needs above 2.5 (1.3 too low, 0.48 times that)"),
        ("lower-score", "warmth", 0.5, 0.25, "0.5, needs below 0.25 (0.25 too high, 2.00 times that)"),
        ("at-max-segments", "segments", 64, 64, "64, needs below 64 (is at it)"),
        ("at-min-segments", "segments", 1, 2, "1, needs above 2 (1 too low, 0.50 times that)"),
        ("width-one", "width", 1, 2, "1, needs at least 2 (1 too low, 0.50 times that)"),
        ("no-load-record", "segments_without_record", 3, 0, "3, needs at most 0 (3 too high)"),
        ("invalid-policy", "max_segments", 0, 1, "0, needs 1 (1 too low, 0.00 times that)"),
        ("invalid-policy", "split_msg_rate_in", "NaN", 0, "NaN, needs 0"),
    ],
)
def test_the_sentence_has_value_bound_and_distance(
    reason: str, metric: str, value: float | str, needed: float, sentence: str
) -> None:
    assert of(reason, metric=metric, value=value, needed=needed) == f"{metric} {sentence}"


def test_of_instants_it_has_what_time_is_left() -> None:
    began, ends = NOON - 20_000, NOON + 40_000
    gate = {"metric": "last_split_at", "value": began, "needed": ends, "not_before": ends}
    stale = {"metric": "observed_at", "value": NOON - 600_000, "needed": NOON - 300_000}

    assert of("split-cooldown", **gate) == (
        "last_split_at 2025-11-22 11:59:40Z, needs 2025-11-22 12:00:40Z (40 s left of 60 s)"
    )
    assert of("stale-load", **stale) == (
        "observed_at 2025-11-22 11:50:00Z, counted until 2025-11-22 11:55:00Z (5 min too old)"
    )
    assert of("cold-window", metric="cold_since") == "cold_since is unknown"


def test_what_has_no_bound_or_is_of_a_newer_program_is_told_as_well() -> None:
    newer = {"metric": "regret", "value": 3600.0, "needed": 7200, "not_before": NOON + 60_000}

    assert of("in-flight", metric="operation_id", value=12) == "busy in operation 12"
    assert of("other-act") == ""
    assert of("a-reason-of-a-newer-program", **newer) == (
        "regret 3,600, needs 7,200 (3,600 too low, 0.50 times that); 60 s left"
    )


def test_without_a_moment_only_the_instants_are_told() -> None:
    gate = {"metric": "last_split_at", "value": NOON, "needed": NOON + 1000, "not_before": NOON + 1000}

    assert of("split-cooldown", None, **gate) == (
        "last_split_at 2025-11-22 12:00:00Z, needs 2025-11-22 12:00:01Z"
    )


def test_a_gate_that_has_opened_has_no_time_left() -> None:
    gate = {"metric": "last_split_at", "value": NOON - 60_000, "needed": NOON - 1}

    assert of("split-cooldown", **gate).endswith("(0 s left of 60 s)")


def test_an_instant_beyond_the_calendar_stays_a_number() -> None:
    assert of("split-cooldown", metric="last_split_at", value=10**18) == f"last_split_at {10**18}"


@given(situations())
def test_every_refusal_with_a_figure_has_a_sentence_with_it(situation: EvaluationInput) -> None:
    for refusal in decide(situation).refusals:
        said = how_far(refusal.to_document(), situation.now)

        assert (refusal.value is None and refusal.metric is None) == (said == "")
        if refusal.needed is not None and refusal.reason is not RefusalReason.STALE_LOAD:
            assert "needs" in said
        if refusal.not_before is not None:
            assert " left" in said
