"""Spec tables of the load lane: how hot is hot, which segment, and what stands in the way."""

from __future__ import annotations

import pytest

from controller.domain.decision import Evaluation, Lane, Refusal, RefusalReason, Split
from controller.domain.evaluation_input import Capabilities, EvaluationInput, History, LiveReshape
from controller.domain.evaluator import decide
from controller.domain.hash_range import HashRange
from controller.domain.layout import SegmentLayout
from controller.domain.load_record import LoadStats
from controller.domain.policy import AutoScalePolicy
from controller.domain.reshape import ReshapeKind
from controller.domain.segment import Segment
from tests.unit.domain.situations import NOW, ago, record, topic


def ask(situation: EvaluationInput) -> Evaluation:
    return decide(situation, {Lane.LOAD})


@pytest.mark.parametrize(
    ("stats", "reason"),
    [
        (LoadStats(10_001, 0, 0, 0), "msgRateIn"),
        (LoadStats(0, 50_000_001, 0, 0), "byteRateIn"),
        (LoadStats(0, 0, 50_001, 0), "msgRateOut"),
        (LoadStats(0, 0, 0, 250_000_001), "byteRateOut"),
        (LoadStats(20_000, 100_000_001, 0, 0), "byteRateIn"),
        (LoadStats(20_000, 100_000_000, 100_000, 500_000_000), "msgRateIn"),
        (LoadStats(0, 100_000_000, 100_000, 500_000_000), "byteRateIn"),
    ],
)
def test_the_metric_furthest_above_its_threshold_is_the_reason_the_first_on_ties(
    stats: LoadStats, reason: str
) -> None:
    assert ask(topic(stats)).decisions == (Split(0, (), reason),)


@pytest.mark.parametrize(
    "loads",
    [
        [LoadStats(10_000, 50_000_000, 50_000, 250_000_000)],
        [LoadStats(9_000, 45_000_000, 45_000, 225_000_000)],
        [5_000] * 64,
    ],
    ids=["rates at their thresholds", "ratios that add up to more", "a quiet topic"],
)
def test_nothing_is_said_where_no_rate_is_above_its_threshold(loads: list[LoadStats | int]) -> None:
    assert ask(topic(*loads)) == Evaluation()


def test_the_hottest_is_split_and_the_others_hear_how_far_behind_they_were() -> None:
    evaluation = ask(topic(12_000, 30_000, 11_000))
    assert evaluation.decisions == (Split(1, (), "msgRateIn"),)
    assert evaluation.refusals == (
        Refusal(0, Lane.LOAD, RefusalReason.LOWER_SCORE, "msg_rate_in", 1.2, 3.0),
        Refusal(2, Lane.LOAD, RefusalReason.LOWER_SCORE, "msg_rate_in", 1.1, 3.0),
    )


def test_where_only_midpoints_can_be_cut_the_act_tells_what_would_have_been_chosen() -> None:
    broker = Capabilities(midpoint_only=True)
    [act] = ask(topic(9, 20_000, capabilities=broker)).decisions
    assert act == Split(1, (), "msgRateIn", otherwise=(0xC000,))
    assert ask(topic(20_000, capabilities=broker)).to_document()["decisions"] == [
        {"kind": "split", "segment_id": 0, "at": (), "reason": "msgRateIn", "otherwise": (0x8000,)}
    ]


def test_equal_scores_go_by_range_and_not_by_id() -> None:
    layout = SegmentLayout.initial(2, now=0).split(0, 1).merge(2, 3, 2)  # range order is 4, 1
    assert ask(topic(20_000, 20_000, layout=layout)).decisions == (Split(4, (), "msgRateIn"),)


def test_the_start_of_a_split_in_flight_is_a_cooldown_instant() -> None:
    live = LiveReshape(7, ReshapeKind.SPLIT, (1,), 2, ago(10))
    evaluation = ask(topic(20_000, 20_000, history=History(last_split_at=ago(500)), in_flight=(live,)))
    assert [(r.segment_id, r.reason) for r in evaluation.refusals] == [
        (0, RefusalReason.SPLIT_COOLDOWN),
        (1, RefusalReason.IN_FLIGHT),
    ]
    assert evaluation.valid_until == ago(-50)


@pytest.mark.parametrize("kind", [ReshapeKind.MERGE, ReshapeKind.REBUCKET, ReshapeKind.HEAL])
def test_other_acts_in_flight_do_not_cool_a_split(kind: ReshapeKind) -> None:
    live = LiveReshape(7, kind, (1,), 1, ago(10))
    assert ask(topic(20_000, 10, in_flight=(live,))).decisions == (Split(0, (), "msgRateIn"),)


@pytest.mark.parametrize(
    ("live", "policy", "reason"),
    [
        (
            LiveReshape(7, ReshapeKind.RECUT, (1, 2), 2, ago(10)),
            AutoScalePolicy(),
            RefusalReason.SPLIT_COOLDOWN,
        ),
        (
            LiveReshape(7, ReshapeKind.MERGE, (1, 2), 1, ago(100)),
            AutoScalePolicy(max_segments=3),
            RefusalReason.AT_MAX_SEGMENTS,
        ),
    ],
    ids=["a recut cools splits", "a merge makes no room under the cap before it is done"],
)
def test_a_reshape_in_flight_holds_a_split_back(
    live: LiveReshape, policy: AutoScalePolicy, reason: RefusalReason
) -> None:
    evaluation = ask(topic(20_000, 10, 10, policy=policy, in_flight=(live,)))
    assert [r.reason for r in evaluation.refusals] == [reason]


FROZEN = record(20_000, observed_at=ago(301))
SPLIT_AT = ("last_split_at", ago(20), ago(-40), ago(-40))
REFUSED = {
    "each hot segment by the cooldown": (
        topic(20_000, 10, 20_000, history=History(last_split_at=ago(20))),
        Evaluation(
            refusals=tuple(Refusal(i, Lane.LOAD, RefusalReason.SPLIT_COOLDOWN, *SPLIT_AT) for i in (0, 2)),
            valid_until=ago(-40),
        ),
    ),
    "each hot segment at the cap": (
        topic(20_000, 10, policy=AutoScalePolicy(max_segments=2)),
        Evaluation(refusals=(Refusal(0, Lane.LOAD, RefusalReason.AT_MAX_SEGMENTS, "segments", 2, 2),)),
    ),
    # Consequence 3 of writing load on change only: the last high number of a dead broker stays.
    "the last number of a dead owner": (
        topic(FROZEN, 20),
        Evaluation(
            refusals=(Refusal(0, Lane.LOAD, RefusalReason.STALE_LOAD, "observed_at", ago(301), ago(1)),)
        ),
    ),
    "segments without a record once for the topic": (
        topic(None, 10, None),
        Evaluation(
            refusals=(
                Refusal(None, Lane.LOAD, RefusalReason.NO_LOAD_RECORD, "segments_without_record", 2, 0),
            )
        ),
    ),
}


@pytest.mark.parametrize(("situation", "evaluation"), REFUSED.values(), ids=REFUSED)
def test_a_split_is_refused(situation: EvaluationInput, evaluation: Evaluation) -> None:
    assert ask(situation) == evaluation


def test_the_last_number_of_a_dead_owner_is_split_as_pulsar_does() -> None:
    strict = AutoScalePolicy(strict_pulsar=True)
    assert ask(topic(FROZEN, 20, policy=strict)).decisions == (Split(0, (), "msgRateIn"),)


def test_children_in_flight_count_for_the_cap_until_they_are_in_the_layout() -> None:
    policy = AutoScalePolicy(max_segments=3)
    live = LiveReshape(7, ReshapeKind.SPLIT, (1,), 2, ago(100))
    evaluation = ask(topic(20_000, 10, policy=policy, in_flight=(live,)))
    assert evaluation.refusals == (Refusal(0, Lane.LOAD, RefusalReason.AT_MAX_SEGMENTS, "segments", 3, 3),)
    committed = LiveReshape(7, ReshapeKind.SPLIT, (99,), 2, ago(100))
    assert ask(topic(20_000, 10, policy=policy, in_flight=(committed,))).decisions


@pytest.mark.parametrize("strict", [False, True])
def test_a_hot_segment_of_width_one_is_refused_and_the_next_one_split(strict: bool) -> None:
    """Pulsar chooses it again and again, and its executor fails each time."""
    layout = SegmentLayout.from_segments(0, 2, (Segment(0, HashRange(0, 0)), Segment(1, HashRange(1, 65535))))
    policy = AutoScalePolicy(strict_pulsar=strict)
    evaluation = ask(topic(30_000, 20_000, layout=layout, policy=policy))
    if strict:
        assert evaluation.decisions == (Split(0, (), "msgRateIn"),)
    else:
        assert evaluation.decisions == (Split(1, (), "msgRateIn"),)
        assert evaluation.refusals == (Refusal(0, Lane.LOAD, RefusalReason.WIDTH_ONE, "width", 1, 2),)


def test_a_reading_counts_up_to_and_including_the_limit_and_the_answer_until_then() -> None:
    evaluation = ask(topic(record(20_000, observed_at=ago(300))))
    assert evaluation.decisions == (Split(0, (), "msgRateIn"),)
    assert evaluation.valid_until == NOW + 1
