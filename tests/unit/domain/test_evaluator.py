"""The evaluation as a whole: the worked example, the order of the lanes, switched off and invalid, and the profiles there are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.domain.decision import Evaluation, Lane, Merge, Rebucket, Refusal, RefusalReason, Split
from controller.domain.evaluation_input import Capabilities, EvaluationInput, History
from controller.domain.evaluator import PROFILES_BY_NAME, decide
from controller.domain.layout import SegmentLayout
from controller.domain.load_record import LoadStats
from controller.domain.policy import PROFILES, AutoScalePolicy, PolicyOverride, UnreadablePolicy, resolve
from tests.unit.domain.situations import NOW, SHARED, ago, topic

STRICT = AutoScalePolicy(strict_pulsar=True)


def example(left: float = 700, right: float = 900, *, consumers: int, **more: object) -> EvaluationInput:
    """Two segments of two buckets, consumers that can share them, defaults otherwise."""
    situation = topic(left, right, buckets=2, consumers=consumers, capabilities=SHARED)
    return replace(situation, **more)  # type: ignore[arg-type]


def test_example_1_pulsar_merges_and_splits_again_and_we_refuse_the_merge() -> None:
    strict = example(consumers=2, policy=STRICT)
    assert decide(strict).decisions == (Merge(0, 1, "cold"),)
    merged = topic(
        1_600, layout=strict.layout.merge(0, 1, NOW), consumers=2, capabilities=SHARED, policy=STRICT
    )
    assert decide(merged).decisions == (Split(2, (), "consumer-count"),)

    for capabilities, figures in (
        (SHARED, ("msg_rate_in", 1_600, 1_000)),
        (Capabilities(), ("consumers", 2, 1)),
    ):
        evaluation = decide(example(consumers=2, capabilities=capabilities))
        again = RefusalReason.WOULD_SPLIT_AGAIN
        assert evaluation == Evaluation(refusals=(Refusal(0, Lane.MERGE, again, *figures, None, 1),))


def test_example_2_a_third_consumer_shares_a_segment() -> None:
    evaluation = decide(example(consumers=3))
    assert evaluation.decisions == ()
    assert [r.reason for r in evaluation.refusals if r.lane is Lane.CONSUMER] == [
        RefusalReason.ENOUGH_BUCKETS
    ]


def test_example_3_a_fifth_consumer_doubles_the_buckets_of_both_segments_in_one_batch() -> None:
    situation = example(consumers=5)
    evaluation = decide(situation)
    reason = "below-split-rate-floor"
    assert evaluation.decisions == (Rebucket(0, 4, reason), Rebucket(1, 4, reason))
    layout = situation.layout.rebucket(0, 4, NOW).rebucket(1, 4, NOW)
    assert layout.epoch == situation.layout.epoch + 2
    assert [segment.segment_id for segment in layout.active] == [2, 3]


def test_example_4_a_segment_above_the_floor_is_split_and_nobody_is_idled() -> None:
    layout = SegmentLayout.initial(2, bucket_budget=8, now=0)
    situation = topic(700, 1_200, layout=layout, consumers=5, capabilities=SHARED)
    assert decide(situation).decisions == (Split(1, (), "consumer-count"),)
    assert sum(segment.bucket_count for segment in layout.split(1, NOW).active) == 8


def test_example_5_a_topic_that_wants_to_grow_may_lose_two_cold_neighbours_while_the_split_cools() -> None:
    situation = topic(20_000, 10, 10, history=History(last_split_at=ago(5)))
    evaluation = decide(situation)
    assert evaluation.decisions == (Merge(1, 2, "cold"),)
    assert [(r.segment_id, r.reason) for r in evaluation.refusals] == [(0, RefusalReason.SPLIT_COOLDOWN)]


@pytest.mark.parametrize("shared", [False, True])
def test_one_act_at_a_time_in_the_order_of_the_lanes(shared: bool) -> None:
    situation = topic(20_000, 5_000, 10, 10, consumers=5, capabilities=Capabilities(shared_buckets=shared))
    evaluation = decide(situation)
    assert evaluation.decisions == (Split(0, (), "consumer-count"),)
    assert decide(situation, [Lane.LOAD, Lane.MERGE]).decisions == (Split(0, (), "msgRateIn"),)
    assert decide(situation, [Lane.LOAD]).decisions == (Split(0, (), "msgRateIn"),)


def test_what_a_later_lane_would_have_done_hears_of_the_other_act() -> None:
    evaluation = decide(topic(20_000, 30_000, 10, 10))
    assert evaluation.decisions == (Split(1, (), "msgRateIn"),)
    assert [(r.lane, r.segment_id, r.other_id, r.reason) for r in evaluation.refusals] == [
        (Lane.LOAD, 0, None, RefusalReason.LOWER_SCORE),
        (Lane.MERGE, 2, 3, RefusalReason.OTHER_ACT),
    ]
    by_consumers = decide(topic(0, LoadStats(20_000, 1e9), LoadStats(5, 1e9), consumers=4))
    assert by_consumers.decisions == (Split(1, (), "consumer-count"),)
    assert [(r.lane, r.segment_id, r.reason) for r in by_consumers.refusals if r.lane is Lane.LOAD] == [
        (Lane.LOAD, 2, RefusalReason.OTHER_ACT)
    ]


def test_disabled_comes_before_everything_else() -> None:
    policy = AutoScalePolicy(enabled=False, max_segments=0)
    evaluation = decide(topic(1_000_000, consumers=100, policy=policy))
    assert evaluation == Evaluation(refusals=(Refusal(None, None, RefusalReason.DISABLED, "enabled"),))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"foreign_controller": True}, RefusalReason.FOREIGN_CONTROLLER),
        ({"is_held": True}, RefusalReason.TOPIC_HELD),
    ],
    ids=["another controller acts", "the topic is held"],
)
def test_nothing_is_decided_where(change: dict[str, bool], reason: RefusalReason) -> None:
    hot = replace(topic(1_000_000, consumers=100), **change)
    assert decide(hot) == Evaluation(refusals=(Refusal(None, None, reason),))


def test_an_invalid_policy_counts_as_disabled_and_names_each_parameter() -> None:
    policy = AutoScalePolicy(max_segments=3, min_segments=4, split_msg_rate_in=float("nan"), profile="odd")
    evaluation = decide(topic(1_000_000, consumers=100, policy=policy))
    assert (evaluation.decisions, evaluation.valid_until) == ((), None)
    assert {r.reason for r in evaluation.refusals} == {RefusalReason.INVALID_POLICY}
    assert [(r.metric, r.needed) for r in evaluation.refusals] == [
        ("max_segments", 4),
        ("split_msg_rate_in", 0),
        ("split_msg_rate_in", 1_000),
        ("profile = odd must be one of adaptive, pip483", None),
    ]


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (AutoScalePolicy(split_msg_rate_in=10**400), "characters) must be a number"),
        (AutoScalePolicy(max_segments="many"), "max_segments = 'many' must be a whole number"),
        (AutoScalePolicy(enabled="no"), "enabled = 'no' must be true or false"),
        (UnreadablePolicy(why="topic: max_segments = '8'"), "unreadable: topic: max_segments = '8'"),
    ],
)
def test_a_parameter_that_cannot_be_read_disables_with_the_reason(policy: AutoScalePolicy, says: str) -> None:
    evaluation = decide(topic(1_000_000, consumers=100, policy=policy))
    [refusal] = evaluation.refusals
    assert (evaluation.decisions, refusal.reason) == ((), RefusalReason.INVALID_POLICY)
    assert says in str(refusal.metric)
    assert says in evaluation.to_json()


def test_a_policy_that_equals_a_valid_one_is_checked_by_itself() -> None:
    valid = AutoScalePolicy()
    mistyped = replace(valid, min_segments=True)
    assert mistyped == valid

    assert RefusalReason.INVALID_POLICY not in {r.reason for r in decide(topic(5, policy=valid)).refusals}
    [refusal] = decide(topic(5, policy=mistyped)).refusals
    assert refusal.reason is RefusalReason.INVALID_POLICY


def test_a_topic_may_scale_inside_a_namespace_that_does_not() -> None:
    policy = resolve(AutoScalePolicy(), PolicyOverride(enabled=False), PolicyOverride(enabled=True))
    assert decide(topic(20_000, policy=policy)).decisions == (Split(0, (), "msgRateIn"),)


def test_a_topic_without_segments_is_left_in_peace() -> None:
    assert decide(topic(layout=SegmentLayout.from_segments(3, 4, ()), consumers=0)) == Evaluation()


def test_each_name_that_a_policy_may_have_is_answered_for() -> None:
    assert set(PROFILES_BY_NAME) == set(PROFILES)
