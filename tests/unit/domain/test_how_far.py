"""Each refusal with figures says in one sentence how far it was from acting."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from controller.domain.decision import RefusalReason
from controller.domain.evaluator import decide
from controller.domain.how_far import how_far
from controller.domain.situation import Situation
from tests.unit.domain.situations import situations

NOON = 1_763_812_800_000  # 2025-11-22 12:00:00Z


def of(reason: str, now: int | None = NOON, **figures: Any) -> str:
    return how_far({"reason": reason, **figures}, now)


@pytest.mark.parametrize(
    ("reason", "figures", "sentence"),
    [
        (
            "not-cold",
            {"metric": "msg_rate_in", "value": 1500.0, "needed": 1000},
            "msg_rate_in 1,500, needs below 1,000 (500 too high, 1.50 times that)",
        ),
        (
            "lower-score",
            {"metric": "msg_rate_in", "value": 1.2, "needed": 2.5},
            "msg_rate_in 1.2, needs above 2.5 (1.3 too low, 0.48 times that)",
        ),
        (
            "lower-score",
            {"metric": "warmth", "value": 0.5, "needed": 0.25},
            "warmth 0.5, needs below 0.25 (0.25 too high, 2.00 times that)",
        ),
        (
            "at-max-segments",
            {"metric": "segments", "value": 64, "needed": 64},
            "segments 64, needs below 64 (is at it)",
        ),
        (
            "at-min-segments",
            {"metric": "segments", "value": 1, "needed": 2},
            "segments 1, needs above 2 (1 too low, 0.50 times that)",
        ),
        (
            "width-one",
            {"metric": "width", "value": 1, "needed": 2},
            "width 1, needs at least 2 (1 too low, 0.50 times that)",
        ),
        (
            "no-load-record",
            {"metric": "segments_without_record", "value": 3, "needed": 0},
            "segments_without_record 3, needs at most 0 (3 too high)",
        ),
        ("in-flight", {"metric": "operation_id", "value": 12}, "operation 12 holds it"),
        (
            "split-cooldown",
            {
                "metric": "last_split_at",
                "value": NOON - 20_000,
                "needed": NOON + 40_000,
                "not_before": NOON + 40_000,
            },
            "last_split_at 2025-11-22 11:59:40Z, needs 2025-11-22 12:00:40Z (40 s left of 60 s)",
        ),
        (
            "stale-load",
            {"metric": "observed_at", "value": NOON - 600_000, "needed": NOON - 300_000},
            "observed_at 2025-11-22 11:50:00Z, counted until 2025-11-22 11:55:00Z (5 min too old)",
        ),
        ("cold-window", {"metric": "cold_since"}, "cold_since is not known"),
        (
            "invalid-policy",
            {"metric": "max_segments", "value": 0, "needed": 1},
            "max_segments 0, needs 1 (1 too low, 0.00 times that)",
        ),
        (
            "invalid-policy",
            {"metric": "split_msg_rate_in", "value": "NaN", "needed": 0},
            "split_msg_rate_in NaN, needs 0",
        ),
        ("other-act", {}, ""),
        (
            "a-reason-of-a-newer-program",
            {"metric": "regret", "value": 3600.0, "needed": 7200, "not_before": NOON + 60_000},
            "regret 3,600, needs 7,200 (3,600 too low, 0.50 times that); 60 s left",
        ),
    ],
)
def test_the_sentence_has_value_bound_distance_and_what_time_is_left(
    reason: str, figures: dict[str, Any], sentence: str
) -> None:
    assert of(reason, **figures) == sentence


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
def test_every_refusal_with_a_figure_has_a_sentence_with_it(situation: Situation) -> None:
    for refusal in decide(situation).refusals:
        said = how_far(refusal.to_document(), situation.now)

        assert (refusal.value is None and refusal.metric is None) == (said == "")
        if refusal.needed is not None and refusal.reason is not RefusalReason.STALE_LOAD:
            assert "needs" in said
        if refusal.not_before is not None:
            assert " left" in said
