"""Spec tables of the merge lane: how cold is cold, which pair, and what stands in the way."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from controller.domain.decision import Evaluation, Lane, Merge, Refusal, RefusalReason, Split
from controller.domain.evaluation_input import EvaluationInput, History, LiveReshape
from controller.domain.evaluator import decide
from controller.domain.hash_range import FULL_RANGE
from controller.domain.layout import SegmentLayout
from controller.domain.load_record import LoadRecord, LoadStats
from controller.domain.policy import AutoScalePolicy
from controller.domain.reshape import ReshapeKind
from controller.domain.segment import Segment
from tests.unit.domain.situations import LONG_AGO, NOW, SHARED, ago, record, topic

STRICT = AutoScalePolicy(strict_pulsar=True)


def ask(situation: EvaluationInput) -> Evaluation:
    return decide(situation, {Lane.MERGE})


def reasons(evaluation: Evaluation) -> list[tuple[int | None, int | None, str]]:
    return [(r.segment_id, r.other_id, r.reason.value) for r in evaluation.refusals]


@pytest.mark.parametrize(
    ("rates", "decisions"),
    [((10, 20), (Merge(0, 1, "cold"),)), ((10, 5_000, 10), ())],
    ids=["neighbours", "the ring does not wrap"],
)
def test_two_cold_neighbours_merge(rates: tuple[float, ...], decisions: tuple[Merge, ...]) -> None:
    assert ask(topic(*rates)).decisions == decisions


@pytest.mark.parametrize(
    "stats",
    [
        LoadStats(1_000, 0, 0, 0),
        LoadStats(0, 5_000_000, 0, 0),
        LoadStats(0, 0, 5_000, 0),
        LoadStats(0, 0, 0, 25_000_000),
    ],
)
def test_every_rate_must_be_strictly_below_its_threshold(stats: LoadStats) -> None:
    evaluation = ask(topic(10, stats))
    assert evaluation.decisions == ()
    assert reasons(evaluation) == [(1, 0, "not-cold")]
    (refusal,) = evaluation.refusals
    assert refusal.value == refusal.needed == max(stats.rates)


def test_a_threshold_of_zero_means_never() -> None:
    assert ask(topic(0, 0, policy=AutoScalePolicy(merge_msg_rate_in=0.0))) == Evaluation()


def test_a_cold_segment_alone_hears_of_the_neighbour_nearest_to_cold() -> None:
    evaluation = ask(topic(9_000, 10, 2_000, 9_000))
    assert evaluation.refusals == (
        Refusal(2, Lane.MERGE, RefusalReason.NOT_COLD, "msg_rate_in", 2_000, 1_000, other_id=1),
    )
    assert reasons(ask(topic(None, 10))) == [(0, 1, "no-load-record")]


def test_the_merge_window_counts_from_the_later_side_and_the_answer_ends_with_it() -> None:
    young = record(10, since=ago(299))
    evaluation = ask(topic(10, young, 10))
    gate = ("cold_since", ago(299), ago(-1), ago(-1))
    assert evaluation == Evaluation(
        refusals=(
            Refusal(1, Lane.MERGE, RefusalReason.COLD_WINDOW, *gate, 0),
            Refusal(1, Lane.MERGE, RefusalReason.COLD_WINDOW, *gate, 2),
        ),
        valid_until=ago(-1),
    )
    assert ask(topic(10, record(10, since=ago(300)), 10)).decisions


def test_cold_since_decides_and_not_the_last_write_except_as_pulsar_does() -> None:
    jittering = LoadRecord(LoadStats(2.0), ago(10), LONG_AGO, NOW)
    assert ask(topic(jittering, jittering)).decisions == (Merge(0, 1, "cold"),)
    assert reasons(ask(topic(jittering, jittering, policy=STRICT))) == [(0, 1, "cold-window")]
    steady = LoadRecord(LoadStats(2.0), LONG_AGO, None, NOW)
    assert reasons(ask(topic(10, steady))) == [(1, 0, "cold-window")]
    assert ask(topic(10, steady, policy=STRICT)).decisions == (Merge(0, 1, "cold"),)


def test_a_stale_reading_is_not_cold_except_as_pulsar_does() -> None:
    silent = record(10, observed_at=ago(400))
    evaluation = ask(topic(10, silent))
    assert evaluation == Evaluation(
        refusals=(
            Refusal(1, Lane.MERGE, RefusalReason.STALE_LOAD, "observed_at", ago(400), ago(100), None, 0),
        ),
        valid_until=NOW + 300_001,
    )
    assert ask(topic(10, silent, policy=STRICT)) == Evaluation((Merge(0, 1, "cold"),))


def test_a_merge_holds_until_the_older_of_its_readings_is_stale() -> None:
    assert ask(topic(10, record(10, observed_at=ago(20)))).valid_until == ago(20) + 300_001


def test_the_merge_cooldown_refuses_and_the_later_of_window_and_cooldown_is_the_reason() -> None:
    history = History(last_merge_at=ago(100))
    evaluation = ask(topic(10, 10, history=history))
    gate = ("last_merge_at", ago(100), ago(-200), ago(-200))
    assert evaluation == Evaluation(
        refusals=(Refusal(0, Lane.MERGE, RefusalReason.MERGE_COOLDOWN, *gate, 1),), valid_until=ago(-200)
    )
    assert reasons(ask(topic(10, record(10, since=ago(50)), history=history))) == [(1, 0, "cold-window")]


@pytest.mark.parametrize(("seconds", "merges"), [(299.999, False), (300, True), (-3600, False)])
def test_a_merge_cooldown_exactly_elapsed_is_over(seconds: float, merges: bool) -> None:
    assert bool(ask(topic(10, 10, history=History(last_merge_at=ago(seconds)))).decisions) is merges


@pytest.mark.parametrize("kind", [ReshapeKind.MERGE, ReshapeKind.RECUT])
def test_the_start_of_a_merge_or_a_recut_in_flight_is_a_cooldown_instant(kind: ReshapeKind) -> None:
    live = LiveReshape(7, kind, (2, 3), 1, ago(10))
    evaluation = ask(topic(10, 10, 5_000, 5_000, history=History(last_merge_at=ago(900)), in_flight=(live,)))
    assert reasons(evaluation) == [(0, 1, "merge-cooldown")]
    assert evaluation.valid_until == ago(-290)


@pytest.mark.parametrize("history", [History(last_split_at=ago(1)), History(last_rebucket_at=ago(1))])
def test_other_cooldowns_do_not_hold_a_merge_back(history: History) -> None:
    assert ask(topic(10, 10, history=history)).decisions


def test_the_floor_on_segments_is_kept_with_figures() -> None:
    evaluation = ask(topic(10, 10, policy=AutoScalePolicy(min_segments=2)))
    assert evaluation == Evaluation(
        refusals=(Refusal(0, Lane.MERGE, RefusalReason.AT_MIN_SEGMENTS, "segments", 2, 2, None, 1),)
    )


@pytest.mark.parametrize(
    ("rates", "live"),
    [
        ((10, 10, 5_000, 5_000), LiveReshape(7, ReshapeKind.MERGE, (2, 3), 1, ago(400))),
        ((10, 10, 5_000), LiveReshape(7, ReshapeKind.SPLIT, (2,), 2, ago(400))),
    ],
    ids=["a merge counts", "a split does not before it is done"],
)
def test_of_reshapes_in_flight_the_floor_counts_merges(rates: tuple[float, ...], live: LiveReshape) -> None:
    evaluation = ask(topic(*rates, policy=AutoScalePolicy(min_segments=3), in_flight=(live,)))
    assert reasons(evaluation) == [(0, 1, "at-min-segments")]


def test_a_busy_side_is_the_reason() -> None:
    live = LiveReshape(7, ReshapeKind.REBUCKET, (1,), 1, ago(10))
    evaluation = ask(topic(10, 10, 10, in_flight=(live,)))
    assert evaluation.refusals == (
        Refusal(1, Lane.MERGE, RefusalReason.IN_FLIGHT, "operation_id", 7, None, None, 0),
        Refusal(1, Lane.MERGE, RefusalReason.IN_FLIGHT, "operation_id", 7, None, None, 2),
    )


def deep_topic(policy: AutoScalePolicy, *, pruned: bool = False) -> EvaluationInput:
    """Two halves, the left one a merge of two (depth 1)."""
    layout = SegmentLayout.initial(2, now=0).split(0, 1).merge(2, 3, 2)
    if pruned:
        layout = layout.prune(0).prune(2).prune(3)
    return topic(10, 10, layout=layout, policy=policy)


def test_the_right_side_at_the_cap_on_merges_is_the_reason_too() -> None:
    layout = SegmentLayout.initial(2, now=0).split(1, 1).merge(2, 3, 2)
    evaluation = ask(topic(10, 10, layout=layout, policy=AutoScalePolicy(max_dag_depth=1)))
    assert reasons(evaluation) == [(4, 0, "merge-depth")]


def test_a_child_may_exceed_the_cap_on_merges_by_what_both_sides_bring() -> None:
    layout = SegmentLayout.initial(2, now=0).split(0, 1).merge(2, 3, 2).split(1, 3).merge(5, 6, 4)
    situation = topic(10, 10, layout=layout, policy=AutoScalePolicy(max_dag_depth=2))
    (act,) = ask(situation).decisions
    assert act == Merge(4, 7, "cold")
    assert layout.merge(4, 7, 5).segment(8).merge_depth == 3


@pytest.mark.parametrize("strict", [False, True])
def test_pruning_does_not_erode_the_cap_on_merges_except_as_pulsar_does(strict: bool) -> None:
    policy = AutoScalePolicy(max_dag_depth=1, strict_pulsar=strict)
    assert bool(ask(deep_topic(policy, pruned=True)).decisions) is strict


@pytest.mark.parametrize("strict", [False, True])
def test_the_coldest_pair_is_coldest_relative_to_the_thresholds_except_as_pulsar_does(strict: bool) -> None:
    """900 messages/s of one byte each are close to the threshold; 1 message of 10,000 bytes is idle."""
    chatty, idle = LoadStats(900, 900, 0, 0), LoadStats(1, 10_000, 0, 0)
    policy = AutoScalePolicy(strict_pulsar=strict)
    evaluation = ask(topic(chatty, chatty, 5_000, idle, idle, policy=policy))
    assert evaluation.decisions == (Merge(0, 1, "cold") if strict else Merge(3, 4, "cold"),)
    (refusal,) = evaluation.refusals
    assert refusal.reason is RefusalReason.LOWER_SCORE
    assert refusal.value is not None
    assert refusal.needed is not None
    assert refusal.value > refusal.needed


def test_equal_pairs_go_by_range() -> None:
    evaluation = ask(topic(10, 10, 10))
    assert evaluation.decisions == (Merge(0, 1, "cold"),)
    assert reasons(evaluation) == [(1, 2, "lower-score")]


@pytest.mark.parametrize(
    ("consumers", "buckets", "most", "merges"), [(20, 4, 1024, True), (12, 8, 8, False), (8, 8, 8, True)]
)
def test_a_merge_idles_no_consumer_that_is_served_but_does_not_count_the_idle(
    consumers: int, buckets: int, most: int, merges: bool
) -> None:
    policy = AutoScalePolicy(entry_bucket_max_per_segment=most)
    for variant in (policy, replace(policy, strict_pulsar=True)):
        evaluation = ask(
            topic(10, 10, buckets=buckets, consumers=consumers, capabilities=SHARED, policy=variant)
        )
        assert bool(evaluation.decisions) is merges
        if not merges:
            served = min(consumers, 2 * buckets)
            idles = (RefusalReason.WOULD_IDLE_CONSUMER, "places", most, served)
            splits_again = (RefusalReason.WOULD_SPLIT_AGAIN, "consumers", consumers, most)
            expected = idles if variant.strict_pulsar else splits_again
            assert evaluation.refusals == (Refusal(0, Lane.MERGE, *expected, None, 1),)


def test_a_pair_that_loses_no_bucket_may_merge_though_consumers_are_idle() -> None:
    """Eight, two and two buckets, at most eight a segment, sixteen consumers."""
    layout = SegmentLayout.initial(3, bucket_budget=6, now=0).rebucket(0, 8, 1)
    policy = AutoScalePolicy(entry_bucket_max_per_segment=8)
    evaluation = ask(topic(10, 10, 10, layout=layout, consumers=16, capabilities=SHARED, policy=policy))
    assert evaluation.decisions == (Merge(1, 2, "cold"),)
    assert [(r.reason, r.value, r.needed) for r in evaluation.refusals] == [
        (RefusalReason.WOULD_IDLE_CONSUMER, 10, 12)
    ]


def test_buckets_that_let_nobody_in_are_no_places() -> None:
    """The child has 128 buckets, and 64 readers at most."""
    policy = AutoScalePolicy(max_segments=1)
    crowded = topic(10, 10, buckets=64, consumers=65, capabilities=SHARED, policy=policy)
    assert [(r.reason, r.value, r.needed) for r in ask(crowded).refusals] == [
        (RefusalReason.WOULD_IDLE_CONSUMER, 64, 65)
    ]
    finer = topic(10, 10, 10, buckets=128, consumers=130, capabilities=SHARED, policy=policy)
    assert {(r.reason, r.value, r.needed) for r in ask(finer).refusals} == {
        (RefusalReason.WOULD_IDLE_CONSUMER, 128, 130)
    }
    for easy in (
        topic(10, 10, buckets=64, consumers=64, capabilities=SHARED),
        replace(crowded, policy=replace(policy, strict_pulsar=True)),
    ):
        assert ask(easy).decisions == (Merge(0, 1, "cold"),)


def test_a_merge_that_leaves_more_consumers_than_one_segment_can_have_is_refused() -> None:
    for consumers, refused in ((64, False), (65, True)):
        asked = ask(topic(10, 10, buckets=4, consumers=consumers, capabilities=SHARED))
        assert (RefusalReason.WOULD_SPLIT_AGAIN in {r.reason for r in asked.refusals}) is refused
        assert bool(asked.decisions) is not refused


@pytest.mark.parametrize(
    ("situation", "reason"),
    [
        (
            topic(10, 10, 10, consumers=3, policy=AutoScalePolicy(max_segments=1)),
            RefusalReason.WOULD_IDLE_CONSUMER,
        ),
        (
            topic(10, 10, consumers=2, policy=AutoScalePolicy(max_segments=2)),
            RefusalReason.WOULD_SPLIT_AGAIN,
        ),
    ],
    ids=["above a lowered cap it idles a consumer", "at the cap it makes room for the split that undoes it"],
)
def test_without_buckets_a_merge_is_refused_because(
    situation: EvaluationInput, reason: RefusalReason
) -> None:
    assert {r.reason for r in ask(situation).refusals} == {reason}


@pytest.mark.parametrize(
    ("refused", "refusal", "merged", "merge"),
    [
        (
            deep_topic(AutoScalePolicy(max_dag_depth=1)),
            Refusal(4, Lane.MERGE, RefusalReason.MERGE_DEPTH, "merge_depth", 1, 1, None, 1),
            deep_topic(AutoScalePolicy(max_dag_depth=2)),
            Merge(4, 1, "cold"),
        ),
        (
            topic(10, 10, consumers=2),
            Refusal(0, Lane.MERGE, RefusalReason.WOULD_SPLIT_AGAIN, "consumers", 2, 1, None, 1),
            topic(10, 10, consumers=1),
            Merge(0, 1, "cold"),
        ),
    ],
    ids=["a side at the cap on merges", "consumers for which it would be split again"],
)
def test_a_merge_is_refused_for(
    refused: EvaluationInput, refusal: Refusal, merged: EvaluationInput, merge: Merge
) -> None:
    assert ask(refused) == Evaluation(refusals=(refusal,))
    assert ask(merged).decisions == (merge,)


@pytest.mark.parametrize(("rate", "merges"), [(499.9, True), (500, False)])
def test_where_buckets_are_shared_the_sum_must_stay_below_the_floor(rate: float, merges: bool) -> None:
    situation = topic(500, rate, buckets=4, consumers=2, capabilities=SHARED)
    assert bool(ask(situation).decisions) is merges


def test_a_merge_that_makes_another_segment_the_one_to_split_is_refused_while_that_is_known() -> None:
    """Three segments and three consumers: with two left, the fast third one would be split."""
    fast = record(5_000, observed_at=ago(20))
    evaluation = ask(topic(10, 10, fast, buckets=4, consumers=3, capabilities=SHARED))
    assert [(r.reason, r.value, r.needed) for r in evaluation.refusals] == [
        (RefusalReason.WOULD_SPLIT_AGAIN, 5_000, 1_000)
    ]
    assert evaluation.valid_until == ago(20) + 300_001
    silent = record(5_000, observed_at=ago(301))
    assert ask(topic(10, 10, silent, buckets=4, consumers=3, capabilities=SHARED)).decisions


def test_a_merge_whose_sum_is_above_a_split_threshold_is_refused_except_as_pulsar_does() -> None:
    policy = AutoScalePolicy(split_msg_rate_in=1_500.0)
    evaluation = ask(topic(900, 700, policy=policy))
    assert [(r.metric, r.value, r.needed) for r in evaluation.refusals] == [("msg_rate_in", 1_600, 1_500)]
    assert ask(topic(900, 600, policy=policy)).decisions
    assert ask(topic(900, 700, policy=replace(policy, strict_pulsar=True))).decisions


def test_above_a_lowered_cap_nothing_is_split_again_so_a_sum_above_the_threshold_may_merge() -> None:
    """Three segments: with two left the load lane is at a cap of two and silent, below a cap of three it is not."""
    hot_sum = {"split_msg_rate_in": 1_500.0}
    lowered, reached = (AutoScalePolicy(max_segments=cap, **hot_sum) for cap in (2, 3))
    assert ask(topic(900, 700, 950, policy=lowered)).decisions == (Merge(0, 1, "cold"),)
    assert not ask(topic(900, 700, 950, policy=reached)).decisions


@dataclass(frozen=True, slots=True)
class CountedSegment(Segment):
    """Counts how often its number of buckets is added to others."""

    @property
    def bucket_count(self) -> int:
        return Added(1)


class Added(int):
    """A number that counts how often it is added."""

    count = 0

    def __radd__(self, other: int) -> int:
        Added.count += 1
        return int(self) + other

    __add__ = __radd__


def test_many_pairs_add_up_the_topics_buckets_once() -> None:
    """A topic may be created with 65,536 segments."""
    layout = SegmentLayout.from_segments(
        0, 200, [CountedSegment(i, r) for i, r in enumerate(FULL_RANGE.divide(200))]
    )
    policy = replace(STRICT, entry_bucket_max_per_segment=1)
    situation = topic(*[1.0] * 200, layout=layout, consumers=200, policy=policy)

    evaluation = ask(situation)

    assert {refusal.reason for refusal in evaluation.refusals} == {RefusalReason.WOULD_IDLE_CONSUMER}
    assert Added.count < 10 * 200


@pytest.mark.parametrize("policy", [AutoScalePolicy(), STRICT], ids=["cleave", "strict"])
def test_segments_that_a_person_keeps_apart_are_merged_when_the_time_is_over(policy: AutoScalePolicy) -> None:
    kept = {1: (ago(60), ago(-60)), 2: (ago(60), ago(-7_140))}
    situation = replace(topic(10, 10, 10, 5_000, policy=policy), kept=kept)
    gate = ("kept_since", ago(60))

    assert ask(situation) == Evaluation(
        refusals=(
            Refusal(1, Lane.MERGE, RefusalReason.KEPT_APART, *gate, ago(-60), ago(-60), 0),
            Refusal(2, Lane.MERGE, RefusalReason.KEPT_APART, *gate, ago(-7_140), ago(-7_140), 1),
        ),
        valid_until=ago(-60),
    )
    later = replace(topic(10, 10, 10, 5_000, policy=policy, now=ago(-60)), kept=kept)
    assert ask(later).decisions == (Merge(0, 1, "cold"),)


def test_a_kept_segment_is_split_and_hinders_no_other_merge() -> None:
    kept = {0: (ago(60), ago(-60))}
    hot = replace(topic(90_000, 10), kept=kept)
    calm = replace(topic(10, 10, 10), kept=kept)

    assert [type(act) for act in decide(hot).decisions] == [Split]
    assert ask(calm).decisions == (Merge(1, 2, "cold"),)
