"""Why an answer of ours is not Pulsar's: a name for every difference that is meant, None for any other.

The numbers are the points of "asked for or obviously missing" in the specification of scalable topics: 5 facts stored
instead of derived anew, 7 normalised coldness, deterministic ties, segments of one hash and the age limit, 13 no merge
that the next evaluation would split. Stale readings and the stored "cold since" are put into the state itself
(`without_stored_facts`), which Pulsar is then asked about; what still differs is told by the figures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from controller.domain.decision import Decision, Evaluation, Merge, RefusalReason, Split
from controller.domain.evaluation_input import EvaluationInput, History
from controller.domain.evaluator import decide
from controller.domain.load_record import LoadRecord, LoadStats
from tests.oracle.pulsar_classes import as_acts
from tests.support.ancestry import merge_depth_by_ancestry

TIE = "7: ties go by range"
WIDTH_ONE = "7: a segment of one hash is left whole"
COLDNESS = "7: coldness is a sum of ratios"
STALE = "7: a stale reading is neither hot nor cold"
COLD_SINCE = "5: cold since when is stored"
DEPTH = "5: merge depth is stored"
SPLIT_AGAIN = "13: no merge that would be split again"
CAPACITY = "PIP-486: no merge that leaves a consumer without a place, which M1 does not look at"
BUCKETS = "the bucket lane, which M1 does not have"

Acts = tuple[Decision, ...]


def buckets_explain(s: EvaluationInput, theirs: Acts, without_consumers: Acts, ours: Evaluation) -> bool:
    """True where the bucket lane was asked instead of splitting, or its guard kept the merge Pulsar makes.

    The lane either adds buckets, or its silence falls through to the lanes below, which do not look at
    consumers: so the answer is then Pulsar's for the same topic without any.
    """
    if refused(ours, RefusalReason.WOULD_IDLE_CONSUMER, theirs):
        return True
    consumers, active = max(s.stream_consumers.values(), default=0), s.layout.active
    if not s.capabilities.shared_buckets or consumers <= len(active):
        return False
    rates = (s.loads[a.segment_id].stats.msg_rate_in for a in active if a.segment_id in s.loads)
    is_slow = max(rates, default=0.0) < s.policy.split_vs_rebucket_min_msg_rate_in
    if len(active) < s.policy.max_segments and not is_slow:
        return False
    acts = as_acts(ours.decisions)
    return {type(act).__name__ for act in acts} == {"Rebucket"} or same_or_tie(s, acts, without_consumers)


def same_or_tie(s: EvaluationInput, ours: Acts, theirs: Acts) -> bool:
    """Equal, or two candidates with one and the same figure."""
    return ours == theirs or is_tie(s, ours, theirs)


def is_tie(s: EvaluationInput, ours: Acts, theirs: Acts) -> bool:
    """Splits of equal score, or merges of equal sum; Pulsar takes what its hash map gives first."""
    match ours, theirs:
        case (Split(reason=mine), *_), (Split(reason=other), *_) if "consumer-count" not in (mine, other):
            return score(s, ours[0].segment_id) == score(s, theirs[0].segment_id)
        case (Merge(), *_), (Merge(), *_):
            return sum_of_rates(s, ours[0]) == sum_of_rates(s, theirs[0])
    return False


def without_stored_facts(s: EvaluationInput) -> EvaluationInput:
    """The state in which Pulsar's rule comes to our answer by itself, as far as readings are concerned.

    A stale reading counts as none. A record is as old as its segment has been cold; one whose coldness was
    forgotten is never old enough.
    """
    return cold_as_stored(without_stale(s))


def without_stale(s: EvaluationInput) -> EvaluationInput:
    """Without the readings older than the policy's limit."""
    limit_ms = s.policy.load_stale_after_seconds * 1000
    return replace(s, loads={i: r for i, r in s.loads.items() if s.now - r.observed_at <= limit_ms})


def cold_as_stored(s: EvaluationInput) -> EvaluationInput:
    """With the age of each record that of its segment's coldness."""

    def aged(record: LoadRecord) -> LoadRecord:
        return replace(record, modified_at=s.now + 1 if record.cold_since is None else record.cold_since)

    return replace(s, loads={i: aged(r) for i, r in s.loads.items()})


def explain(s: EvaluationInput, theirs: Acts, corrected: Acts, ours: Evaluation) -> str | None:
    """The deviation behind a difference between Pulsar's answer and our default one; None: there is none.

    `corrected` is Pulsar's answer to `without_stored_facts`.
    """
    acts = as_acts(ours.decisions)
    if acts == corrected:
        return _stored_fact(s, acts, theirs)
    if is_tie(s, acts, corrected) and _refusals_of(ours, corrected) <= {RefusalReason.LOWER_SCORE}:
        return TIE
    causes: dict[str, Callable[[EvaluationInput, Acts, Acts, Evaluation], bool]] = {
        WIDTH_ONE: _width_one,
        DEPTH: _stored_depth,
        SPLIT_AGAIN: _split_again,
        CAPACITY: _idles_consumer,
        COLDNESS: _coldness,
    }
    return next((name for name, holds in causes.items() if holds(s, acts, corrected, ours)), None)


def refused(ours: Evaluation, reason: RefusalReason, act: Acts) -> bool:
    """True when exactly this act of Pulsar's was refused for that reason."""
    return reason in _refusals_of(ours, act)


def score(s: EvaluationInput, segment_id: int) -> float:
    """The largest of the four rates divided by their split thresholds."""
    record = s.loads.get(segment_id)
    rates = (record.stats if record else LoadStats()).rates
    return max(rate / limit for rate, limit in zip(rates, s.policy.thresholds.split.rates, strict=True))


def sum_of_rates(s: EvaluationInput, merge: Merge) -> float:
    """All eight rates of a pair, added as Pulsar adds them."""
    left, right = (_added(s.loads[i].stats.rates) for i in (merge.left_id, merge.right_id))
    return left + right


def sum_of_ratios(s: EvaluationInput, merge: Merge) -> float:
    """The same, each divided by its merge threshold."""
    limits = s.policy.thresholds.merge.rates
    ratios = [
        _added(tuple(rate / limit for rate, limit in zip(s.loads[i].stats.rates, limits, strict=True)))
        for i in (merge.left_id, merge.right_id)
    ]
    return ratios[0] + ratios[1]


def _added(figures: tuple[float, ...]) -> float:
    """From left to right, without the compensation that `sum` has had since Python 3.12."""
    total = 0.0
    for figure in figures:
        total += figure
    return total


def _stored_fact(s: EvaluationInput, acts: Acts, theirs: Acts) -> str:
    """Which of the two corrections made the difference; the strict profile is Pulsar's own rule."""
    alone = as_acts(decide(without_stale(s)).decisions)
    return STALE if alone == acts and not is_tie(s, alone, theirs) else COLD_SINCE


def _refusals_of(ours: Evaluation, act: Acts) -> set[RefusalReason]:
    if not act:
        return set()
    ids = {act[0].left_id, act[0].right_id} if isinstance(act[0], Merge) else {act[0].segment_id, None}
    return {r.reason for r in ours.refusals if {r.segment_id, r.other_id} == ids}


def _width_one(s: EvaluationInput, acts: Acts, theirs: Acts, ours: Evaluation) -> bool:
    if not theirs or not isinstance(theirs[0], Split):
        return False
    width = s.layout.segment(theirs[0].segment_id).hash_range.width
    return width == 1 and refused(ours, RefusalReason.WIDTH_ONE, theirs)


def _stored_depth(s: EvaluationInput, acts: Acts, theirs: Acts, ours: Evaluation) -> bool:
    if not refused(ours, RefusalReason.MERGE_DEPTH, theirs):
        return False
    assert isinstance(theirs[0], Merge)
    pair = theirs[0].left_id, theirs[0].right_id
    cap = s.policy.max_dag_depth
    return (
        max(merge_depth_by_ancestry(s.layout, i) for i in pair)
        < cap
        <= max(s.layout.segment(i).merge_depth for i in pair)
    )


def _split_again(s: EvaluationInput, acts: Acts, theirs: Acts, ours: Evaluation) -> bool:
    """Demands that Pulsar's rule would split in the topic as it is after the merge, cooldowns over."""
    if not refused(ours, RefusalReason.WOULD_SPLIT_AGAIN, theirs):
        return False
    assert isinstance(theirs[0], Merge)
    fresh = without_stale(s)
    left, right = (fresh.loads[i] for i in (theirs[0].left_id, theirs[0].right_id))
    added = LoadStats(*(a + b for a, b in zip(left.stats.rates, right.stats.rates, strict=True)))
    merged = s.layout.merge(theirs[0].left_id, theirs[0].right_id, s.now)
    loads = {**fresh.loads, s.layout.next_segment_id: replace(left, stats=added)}
    after = replace(fresh, layout=merged, loads=loads, history=History())
    return any(isinstance(act, Split) for act in decide(after).decisions)


def _idles_consumer(s: EvaluationInput, acts: Acts, theirs: Acts, ours: Evaluation) -> bool:
    """Where consumers share no segment, as many as there are segments are served: one less after a merge."""
    consumers = max(s.stream_consumers.values(), default=0)
    return consumers >= len(s.layout.active) and refused(ours, RefusalReason.WOULD_IDLE_CONSUMER, theirs)


def _coldness(s: EvaluationInput, acts: Acts, theirs: Acts, ours: Evaluation) -> bool:
    """Ours has the smaller sum of ratios, Pulsar's the smaller sum of rates."""
    match acts, theirs:
        case (Merge() as mine,), (Merge() as other,):
            return (
                sum_of_ratios(s, mine) <= sum_of_ratios(s, other)
                and sum_of_rates(s, other) <= sum_of_rates(s, mine)
                and refused(ours, RefusalReason.LOWER_SCORE, theirs)
            )
    return False
