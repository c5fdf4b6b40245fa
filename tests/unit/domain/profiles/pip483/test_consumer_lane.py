"""Spec tables of the consumer lane: who counts, which segment, a split or buckets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.domain.decision import Decision, Evaluation, Lane, Rebucket, Refusal, RefusalReason, Split
from controller.domain.evaluation_input import Capabilities, EvaluationInput, History, LiveReshape
from controller.domain.evaluator import decide
from controller.domain.hash_range import HashRange
from controller.domain.layout import SegmentLayout
from controller.domain.policy import AutoScalePolicy
from controller.domain.reshape import ReshapeKind
from controller.domain.segment import Segment
from tests.unit.domain.situations import NOW, SHARED, ago, record, topic


def ask(situation: EvaluationInput) -> Evaluation:
    return decide(situation, {Lane.CONSUMER})


@pytest.mark.parametrize("consumers", [0, 1, 2, {"a": 2, "b": 2}])
def test_as_many_segments_as_one_subscription_has_consumers_are_enough(
    consumers: int | dict[str, int],
) -> None:
    assert ask(topic(2000, 2000, consumers=consumers)) == Evaluation()


def test_the_busiest_by_messages_in_is_split_and_bytes_play_no_part() -> None:
    heavy = record(900.0)
    heavy = replace(heavy, stats=replace(heavy.stats, byte_rate_in=4e9))
    assert ask(topic(heavy, 1200, 1100, consumers=4)).decisions == (Split(1, (), "consumer-count"),)


def test_equal_rates_and_missing_records_go_to_the_lowest_id() -> None:
    layout = SegmentLayout.initial(2, now=0).split(0, 1).merge(2, 3, 2)  # range order is now 4, 1
    assert ask(topic(2000, 2000, layout=layout, consumers=3)).decisions == (Split(1, (), "consumer-count"),)
    assert ask(topic(None, None, layout=layout, consumers=3)).decisions == (Split(1, (), "consumer-count"),)


def test_the_split_cooldown_holds_it_back_and_says_until_when() -> None:
    evaluation = ask(topic(2000, consumers=2, history=History(last_split_at=ago(59))))
    opens = ago(-1)
    assert evaluation.refusals == (
        Refusal(0, Lane.CONSUMER, RefusalReason.SPLIT_COOLDOWN, "last_split_at", ago(59), opens, opens),
    )
    assert evaluation.decisions == ()
    assert evaluation.valid_until == opens


@pytest.mark.parametrize(("seconds", "blocked"), [(59.999, True), (60, False), (61, False), (-3600, True)])
def test_a_cooldown_exactly_elapsed_is_over_and_a_future_instant_keeps_blocking(
    seconds: float, blocked: bool
) -> None:
    decisions = ask(topic(2000, consumers=2, history=History(last_split_at=ago(seconds)))).decisions
    assert (decisions == ()) is blocked


def test_at_the_cap_there_is_no_split_where_buckets_cannot_be_shared() -> None:
    policy = AutoScalePolicy(max_segments=2)
    evaluation = ask(topic(9000, 9000, buckets=4, consumers=5, policy=policy))
    assert evaluation == Evaluation(
        refusals=(Refusal(None, Lane.CONSUMER, RefusalReason.AT_MAX_SEGMENTS, "segments", 2, 2),)
    )


DECIDED = {
    "a slow topic is split all the same where buckets cannot be shared": (
        topic(5, buckets=4, consumers=2),
        (Split(0, (), "consumer-count"),),
    ),
    "a floor of zero switches the preference for buckets off below the cap": (
        topic(
            None,
            consumers=2,
            capabilities=SHARED,
            policy=AutoScalePolicy(split_vs_rebucket_min_msg_rate_in=0.0),
        ),
        (Split(0, (), "consumer-count"),),
    ),
    "at the cap a hot topic gets buckets in one batch of ascending ids": (
        topic(
            9000,
            9000,
            9000,
            layout=SegmentLayout.initial(2, bucket_budget=2, now=0).split(0, 1),  # range order is 2, 3, 1
            consumers=10,
            capabilities=SHARED,
            policy=AutoScalePolicy(max_segments=3),
        ),
        tuple(Rebucket(i, 4, "at-max-segments") for i in (1, 2, 3)),
    ),
    "an uneven layout is raised only in part": (
        topic(
            10,
            10,
            10,
            10,
            layout=SegmentLayout.initial(4, bucket_budget=4, now=0).rebucket(0, 4, 1),
            consumers=13,
            capabilities=SHARED,
            policy=AutoScalePolicy(max_segments=4),
        ),
        tuple(Rebucket(i, 4, "at-max-segments") for i in (1, 2, 3)),
    ),
}


@pytest.mark.parametrize(("situation", "decisions"), DECIDED.values(), ids=DECIDED)
def test_a_topic_with_too_few_places_is_split_or_gets_buckets(
    situation: EvaluationInput, decisions: tuple[Decision, ...]
) -> None:
    assert ask(situation).decisions == decisions


@pytest.mark.parametrize(("rate", "splits"), [(999.9, False), (1000, True)])
def test_the_floor_between_buckets_and_splits_counts_equal_as_hot(rate: float, splits: bool) -> None:
    decisions = ask(topic(rate, consumers=2, capabilities=SHARED)).decisions
    expected = Split(0, (), "consumer-count") if splits else Rebucket(0, 2, "below-split-rate-floor")
    assert decisions == (expected,)


@pytest.mark.parametrize(
    ("situation", "refusal"),
    [
        (
            topic(700, 900, buckets=2, consumers=4, capabilities=SHARED),
            Refusal(None, Lane.CONSUMER, RefusalReason.ENOUGH_BUCKETS, "buckets", 4, 4),
        ),
        (
            topic(
                2000,
                10,
                10,
                consumers=3,
                policy=AutoScalePolicy(max_segments=3),
                in_flight=(LiveReshape(7, ReshapeKind.MERGE, (1, 2), 1, ago(120)),),
            ),
            Refusal(None, Lane.CONSUMER, RefusalReason.AT_MAX_SEGMENTS, "segments", 3, 3),
        ),
    ],
    ids=["buckets suffice", "a merge in flight makes no room under the cap before it is done"],
)
def test_nothing_is_done_where(situation: EvaluationInput, refusal: Refusal) -> None:
    evaluation = ask(situation)
    assert evaluation.decisions == ()
    assert evaluation.refusals == (refusal,)


def test_the_cap_on_buckets_may_leave_a_target_that_is_no_power_of_two_and_then_nothing() -> None:
    policy = AutoScalePolicy(entry_bucket_max_per_segment=3, max_segments=1)
    first = topic(10, buckets=1, consumers=9, capabilities=SHARED, policy=policy)
    assert ask(first).decisions == (Rebucket(0, 3, "at-max-segments"),)
    second = topic(10, buckets=3, consumers=9, capabilities=SHARED, policy=policy)
    assert ask(second).refusals == (
        Refusal(None, Lane.CONSUMER, RefusalReason.AT_MAX_BUCKETS, "buckets", 3, 9),
    )


def test_a_slow_segment_is_split_where_its_buckets_cannot_serve_all() -> None:
    policy = AutoScalePolicy(entry_bucket_max_per_segment=8)
    assert ask(topic(10, buckets=8, consumers=8, capabilities=SHARED, policy=policy)).decisions == ()
    crowded = topic(10, buckets=8, consumers=9, capabilities=SHARED, policy=policy)
    assert ask(crowded).decisions == (Split(0, (), "consumer-count"),)


@pytest.mark.parametrize(
    ("history", "blocked"),
    [(History(last_rebucket_at=ago(30)), True), (History(last_split_at=ago(30)), False)],
)
def test_only_the_rebucket_cooldown_holds_buckets_back(history: History, blocked: bool) -> None:
    evaluation = ask(topic(10, consumers=2, capabilities=SHARED, history=history))
    assert (evaluation.decisions == ()) is blocked
    if blocked:
        assert evaluation.refusals == (
            Refusal(
                None,
                Lane.CONSUMER,
                RefusalReason.REBUCKET_COOLDOWN,
                "last_rebucket_at",
                ago(30),
                ago(-30),
                ago(-30),
            ),
        )


def test_children_in_flight_count_as_segments() -> None:
    live = LiveReshape(7, ReshapeKind.SPLIT, (0,), 2, ago(120))
    assert ask(topic(2000, 2000, consumers=3, in_flight=(live,))) == Evaluation()


def test_a_busy_segment_is_passed_over_for_the_next() -> None:
    live = LiveReshape(7, ReshapeKind.SPLIT, (0,), 2, ago(120))
    evaluation = ask(topic(9000, 2000, consumers=4, in_flight=(live,)))
    assert evaluation.decisions == (Split(1, (), "consumer-count"),)
    assert evaluation.refusals == (Refusal(0, Lane.CONSUMER, RefusalReason.IN_FLIGHT, "operation_id", 7),)


@pytest.mark.parametrize(("strict", "chosen"), [(False, 1), (True, 0)])
def test_a_segment_of_width_one_is_passed_over_except_as_pulsar_does(strict: bool, chosen: int) -> None:
    layout = SegmentLayout.from_segments(0, 2, (Segment(0, HashRange(0, 0)), Segment(1, HashRange(1, 65535))))
    policy = AutoScalePolicy(strict_pulsar=strict)
    evaluation = ask(topic(9000, 2000, layout=layout, consumers=3, policy=policy))
    assert evaluation.decisions == (Split(chosen, (), "consumer-count"),)
    expected = () if strict else (Refusal(0, Lane.CONSUMER, RefusalReason.WIDTH_ONE, "width", 1, 2),)
    assert evaluation.refusals == expected


@pytest.mark.parametrize(("strict", "chosen"), [(False, 1), (True, 0)])
def test_a_stale_reading_makes_no_segment_the_busiest_except_as_pulsar_does(
    strict: bool, chosen: int
) -> None:
    policy = AutoScalePolicy(strict_pulsar=strict)
    silent = record(9000, observed_at=NOW - 300_001)
    evaluation = ask(topic(silent, 2000, consumers=3, policy=policy))
    assert evaluation.decisions == (Split(chosen, (), "consumer-count"),)


def test_the_choice_holds_until_its_reading_is_stale() -> None:
    evaluation = ask(topic(record(9000, observed_at=ago(100)), 2000, consumers=3))
    assert evaluation.valid_until == ago(100) + 300_001


# Buckets that nobody needs


def idle(
    *loads: float, buckets: int, consumers: int, since: int = ago(3600), **options: Any
) -> EvaluationInput:
    """A quiet topic of shared buckets, whose consumers have been the same since then."""
    return topic(
        *loads,
        buckets=buckets,
        consumers=consumers,
        capabilities=SHARED,
        consumers_changed_at=since,
        **options,
    )


@pytest.mark.parametrize(
    ("buckets", "consumers", "left"),
    [
        (16, 1, 4),  # the topic's budget
        (16, 5, 8),
        (16, 8, 8),
        (16, 9, None),
        (7, 1, None),
        (8, 0, 4),
    ],
)
def test_buckets_are_given_up_down_to_what_consumers_use_and_the_budget(
    buckets: int, consumers: int, left: int | None
) -> None:
    expected = () if left is None else (Rebucket(0, left, "idle-buckets"),)
    assert ask(idle(10, buckets=buckets, consumers=consumers)).decisions == expected


def test_a_split_is_no_reason_to_give_up_the_buckets_of_its_neighbour() -> None:
    layout = SegmentLayout.initial(2, bucket_budget=4, now=0).split(1, 1)
    assert [segment.bucket_count for segment in layout.active] == [2, 1, 1]
    assert ask(idle(10, 10, 10, buckets=1, consumers=1, layout=layout)) == Evaluation()


@pytest.mark.parametrize(("consumers", "left"), [(20, None), (4, 4)])
def test_no_more_buckets_are_kept_than_a_segment_may_have(consumers: int, left: int | None) -> None:
    """A segment may have more since before the limit was lowered; it keeps them while the consumers need them."""
    lowered = AutoScalePolicy(max_segments=1, entry_bucket_max_per_segment=8)
    expected = () if left is None else (Rebucket(0, left, "idle-buckets"),)

    assert ask(idle(10, buckets=64, consumers=consumers, policy=lowered)).decisions == expected


def test_what_is_given_up_is_not_asked_for_again() -> None:
    at_cap = AutoScalePolicy(max_segments=1)
    for buckets, consumers in ((64, 3), (64, 17), (1024, 200)):
        [act] = ask(idle(10, buckets=buckets, consumers=consumers, policy=at_cap)).decisions
        assert isinstance(act, Rebucket)
        assert ask(idle(10, buckets=act.bucket_count, consumers=consumers, policy=at_cap)).decisions == ()


# Buckets that would let nobody in


@pytest.mark.parametrize(
    ("buckets", "consumers", "expected"),
    [
        (4, 64, (Rebucket(0, 64, "below-split-rate-floor"),)),
        (4, 65, (Split(0, (), "consumer-count"),)),  # a segment has 64 readers at most
        (1024, 65, (Split(0, (), "consumer-count"),)),
        (1024, 64, ()),
    ],
)
def test_a_slow_segment_is_split_for_consumers_that_more_buckets_would_not_let_in(
    buckets: int, consumers: int, expected: tuple[Decision, ...]
) -> None:
    asked = topic(10, buckets=buckets, consumers=consumers, capabilities=SHARED)
    assert ask(asked).decisions == expected


def test_at_the_cap_buckets_are_raised_as_far_as_they_let_consumers_in() -> None:
    policy = AutoScalePolicy(max_segments=2)

    def asked(buckets: int, **options: bool) -> Evaluation:
        given = replace(policy, **options)
        return ask(topic(10, 10, buckets=buckets, consumers=400, capabilities=SHARED, policy=given))

    assert asked(4).decisions == tuple(Rebucket(i, 64, "at-max-segments") for i in (0, 1))
    assert asked(256).refusals == (
        Refusal(None, Lane.CONSUMER, RefusalReason.AT_MAX_BUCKETS, "buckets", 128, 400),
    )
    assert asked(4, strict_pulsar=True).decisions == tuple(
        Rebucket(i, 256, "at-max-segments") for i in (0, 1)
    )


@pytest.mark.parametrize(("seconds", "gives_up"), [(3599.9, False), (3600, True)])
def test_consumers_have_to_be_the_same_for_the_idle_window(seconds: float, gives_up: bool) -> None:
    evaluation = ask(idle(10, buckets=16, consumers=1, since=ago(seconds)))
    assert bool(evaluation.decisions) is gives_up
    if not gives_up:
        [refusal] = evaluation.refusals
        assert refusal.reason is RefusalReason.BUCKET_IDLE_WINDOW
        assert evaluation.valid_until == refusal.not_before == NOW + 100


def test_buckets_that_were_asked_for_by_hand_have_the_window_too() -> None:
    history = History(last_rebucket_at=ago(60))
    assert ask(idle(10, buckets=16, consumers=1, history=history)).decisions == ()


def test_nothing_is_given_up_where_pulsar_would_not_or_nobody_knows_since_when() -> None:
    strict = AutoScalePolicy(strict_pulsar=True)
    assert ask(idle(10, buckets=16, consumers=1, policy=strict)).decisions == ()
    assert ask(topic(10, buckets=16, consumers=1, capabilities=SHARED)).decisions == ()
    plain = replace(idle(10, buckets=16, consumers=1), capabilities=Capabilities())
    assert ask(plain).decisions == ()


def test_a_busy_segment_keeps_its_buckets_and_others_go_first() -> None:
    busy = idle(
        10, 10, buckets=16, consumers=1, in_flight=(LiveReshape(7, ReshapeKind.HEAL, (0,), 1, ago(5), 16),)
    )
    assert ask(busy).decisions == (Rebucket(1, 2, "idle-buckets"),)
    hot = idle(99_999, buckets=16, consumers=1)
    assert [type(act) for act in decide(hot).decisions] == [Split]
