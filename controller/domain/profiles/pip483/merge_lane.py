"""The merge lane: the coldest pair of neighbours becomes one segment.

A pair is a candidate if both sides are below all four merge thresholds. It must meet the conditions of `MergeConditions`, and of the pairs
that meet them the coldest is merged.

Reasons that do not end by waiting are checked first, so that the reported reason does not change by itself. A pair
that a person keeps apart is always refused. Two other conditions are not Pulsar's and do not apply under
`strict_pulsar`: a stale load record is not cold, and a merge is refused if the next evaluation would split its result
(Pulsar merges and splits such a pair in turn).
"""

from __future__ import annotations

import math
from itertools import pairwise

from controller.domain.decision import Decision, Lane, Merge, Refusal, RefusalReason
from controller.domain.load_record import METRICS, LoadRecord
from controller.domain.profiles.evaluation_context import EvaluationContext, Pause

_LANE = Lane.MERGE


class MergeConditions:
    """The conditions of one evaluation, called gates. A pair is named by the index of its left side. A gate adds a
    refusal of the pair to the context and returns True, or returns False. The context has at least one active segment.
    """

    __slots__ = ("_all_places", "_buckets", "_busiest", "_context", "_depths", "_gates", "_ids", "_window_ms")

    def __init__(self, context: EvaluationContext) -> None:
        """Read the values of the context that the gates compare. Keep only the gates that can refuse a pair of this
        topic. Under `strict_pulsar` the merge depths are counted from the ancestry; otherwise the stored merge depths
        are used.

        No pair is refused here, but the validity of the evaluation may be limited (`_busiest_that_splits`).
        """
        self._context = context
        self._ids = [segment.segment_id for segment in context.active]
        self._buckets = [segment.bucket_count for segment in context.active]
        self._all_places = sum(self._places_of(buckets) for buckets in self._buckets)
        if context.strict:
            by_ancestry = context.situation.layout.merge_depths_by_ancestry()
            self._depths = [by_ancestry[segment_id] for segment_id in self._ids]
        else:
            self._depths = [segment.merge_depth for segment in context.active]
        may_want_split = not context.strict and self._consumers_may_want_split()
        self._busiest = self._busiest_that_splits() if may_want_split and context.shared_buckets else 0.0
        self._window_ms = context.policy.merge_window_seconds * 1000
        gates = (
            (self._is_busy, bool(context.busy)),
            (self._is_at_min, context.segments_low <= context.policy.min_segments),
            (self._is_too_deep, max(self._depths) >= context.policy.max_dag_depth),
            (self._would_split_for_consumers, may_want_split),
            (self._would_split_for_load, not context.strict and self._sums_can_be_hot()),
            (self._would_idle_consumer, self._merges_can_idle()),
            (self._is_kept_apart, bool(context.kept)),
        )
        # A large cold topic has many pairs, so only the gates that can refuse a pair of this topic are kept.
        self._gates = [gate for gate, can_refuse in gates if can_refuse]

    def passing(self, pairs: list[int]) -> list[int]:
        """Return the pairs that may merge, in the order of `pairs`. A pair is given by the index of its left segment.
        Both segments of each pair must be cold.

        Add one refusal of every other pair to the context: the refusal of the first gate that the pair does not pass.
        The age of the load records is checked after the gates, and the merge window and the merge cooldown are
        checked last.
        """
        for gate in self._gates:
            pairs = [i for i in pairs if not gate(i)]
        since = self._cold_since()
        return [i for i in self._fresh(pairs) if not self._is_too_soon(i, since)]

    def _cold_since(self) -> list[int | None]:
        """Return, for each active segment, the time since which it is cold, in milliseconds since the Unix epoch; None if
        the time is unknown. Under `strict_pulsar` this is the time of the last write, as in Pulsar.
        """
        strict = self._context.strict
        return [
            None if record is None else record.modified_at if strict else record.cold_since
            for record in self._context.records
        ]

    def _refuse(
        self, i: int, reason: RefusalReason, metric: str, value: float, needed: float, *, right: bool = False
    ) -> bool:
        """Refuse the pair of the segments at `i` and `i + 1`, and return True. `right`: True if the right side is the
        cause. The other parameters are fields of `Refusal`.
        """
        self._context.refuse(
            Refusal(
                segment_id=self._ids[i + right],
                lane=_LANE,
                reason=reason,
                metric=metric,
                value=value,
                needed=needed,
                other_id=self._ids[i + 1 - right],
            )
        )
        return True

    def _is_busy(self, i: int) -> bool:
        """Refuse the pair and return True if either side is part of a live operation or of a held action."""
        left, right = self._ids[i], self._ids[i + 1]
        return self._context.refuse_busy(_LANE, left, right) or self._context.refuse_busy(_LANE, right, left)

    def _is_at_min(self, i: int) -> bool:
        """Refuse the pair and return True always. Called only if the topic has its minimum number of segments."""
        segments, minimum = self._context.segments_low, self._context.policy.min_segments
        return self._refuse(i, RefusalReason.AT_MIN_SEGMENTS, "segments", segments, minimum)

    def _is_too_deep(self, i: int) -> bool:
        """Refuse the pair and return True if either side has reached the maximum merge depth (`max_dag_depth`). The
        child of two sides below the maximum may exceed it, as in Pulsar.
        """
        limit = self._context.policy.max_dag_depth
        right = self._depths[i] < limit
        depth = self._depths[i + right]
        return depth >= limit and self._refuse(
            i, RefusalReason.MERGE_DEPTH, "merge_depth", depth, limit, right=right
        )

    def _consumers_may_want_split(self) -> bool:
        """Return True if, with one segment less, there would be more consumers than segments, and the topic would
        be below its maximum number of segments.
        """
        context = self._context
        return (
            context.consumers >= context.segments_net and context.segments_high <= context.policy.max_segments
        )

    def _busiest_that_splits(self) -> float:
        """Return the highest incoming rate of a segment that the consumer lane would split instead of adding buckets:
        at least `split_vs_rebucket_min_msg_rate_in`; 0 if no segment has this rate. Segments of one hash and stale
        load records do not count.

        The evaluation is valid only while the load records of these segments are fresh.
        """
        context = self._context
        split_rate = context.policy.split_vs_rebucket_min_msg_rate_in
        busiest = 0.0
        for segment, record in zip(context.active, context.records, strict=True):
            if record is None or not record.stats.msg_rate_in >= split_rate or context.is_stale(record):
                continue
            context.wake_when_stale(record)
            if segment.hash_range.width > 1:
                busiest = max(busiest, record.stats.msg_rate_in)
        return busiest

    def _would_split_for_consumers(self, i: int) -> bool:
        """Return True, and add a refusal of the pair, if the consumer lane would split a segment after the merge. One
        of three conditions suffices: consumers cannot share segments; there are more consumers than the remaining
        segments can serve; or the incoming rate of the busiest segment after the merge is at least
        `split_vs_rebucket_min_msg_rate_in`. The busiest segment may be the merged one. Called only if
        `_consumers_may_want_split`.
        """
        context = self._context
        reason = RefusalReason.WOULD_SPLIT_AGAIN
        if not context.shared_buckets:
            return self._refuse(i, reason, "consumers", context.consumers, context.segments_net - 1)
        served = self._most_places * (context.segments_net - 1)
        if context.consumers > served:
            return self._refuse(i, reason, "consumers", context.consumers, served)
        split_rate = context.policy.split_vs_rebucket_min_msg_rate_in
        # If one side is the busiest segment, the merged segment is busier still.
        busiest = max(self._busiest, self._msg_rate_in(i) + self._msg_rate_in(i + 1))
        return busiest >= split_rate and self._refuse(i, reason, "msg_rate_in", busiest, split_rate)

    def _msg_rate_in(self, index: int) -> float:
        """Return the incoming messages per second of the segment at `index`; 0 without a load record."""
        record = self._context.records[index]
        return 0.0 if record is None else record.stats.msg_rate_in

    def _sums_can_be_hot(self) -> bool:
        """Return True if the load lane could split the segment that results from the merge of two cold segments. This
        is possible if, for at least one metric, the split threshold is less than twice the merge threshold.

        Return False also if the topic still has the maximum number of segments, or more, after a merge, because the
        load lane then splits no segment.
        """
        if self._context.segments_high > self._context.policy.max_segments:
            return False
        thresholds = self._context.thresholds
        pairs = zip(thresholds.merge.rates, thresholds.split.rates, strict=True)
        return any(2 * merge > split for merge, split in pairs)

    def _would_split_for_load(self, i: int) -> bool:
        """Refuse the pair and return True if the sum of the rates of its sides exceeds a split threshold. The refusal
        names the first metric, in the order of `METRICS`, whose sum exceeds its threshold. A pair of which a side has
        no load record is not refused.
        """
        left, right = self._context.records[i : i + 2]
        if left is None or right is None:
            return False
        sums = map(sum, zip(left.stats.rates, right.stats.rates, strict=True))
        limits = self._context.thresholds.split.rates
        for metric, total, limit in zip(METRICS, sums, limits, strict=True):
            if total > limit:
                return self._refuse(i, RefusalReason.WOULD_SPLIT_AGAIN, metric, total, limit)
        return False

    def _merges_can_idle(self) -> bool:
        """Return True if the merge of some pair can leave a consumer without a place, so that `_would_idle_consumer`
        has to check each pair.
        """
        context = self._context
        if not self._counts_buckets:
            return context.consumers >= context.segments_net
        return context.consumers > 0 and 2 * max(self._buckets) > self._most_places

    @property
    def _most_places(self) -> int:
        """Maximum number of consumers that one segment can serve after a merge or a rebucket."""
        return min(self._context.policy.entry_bucket_max_per_segment, self._context.most_readers)

    def _places_of(self, buckets: int) -> int:
        """Return how many consumers can share `buckets` entry buckets of one segment."""
        return min(buckets, self._context.most_readers)

    @property
    def _counts_buckets(self) -> bool:
        """True if the places of a segment are counted by its entry buckets, False if every segment has one place.
        Under `strict_pulsar` always True.
        """
        return self._context.shared_buckets or self._context.strict

    def _would_idle_consumer(self, i: int) -> bool:
        """Return True, and add a refusal of the pair, if a consumer that has a place would have no place after the
        merge. Consumers that have no place before the merge do not count.

        If places are counted by entry buckets (`_counts_buckets`), the merged segment has the buckets of both sides,
        at most the policy's limit. Otherwise every segment has one place.
        """
        context = self._context
        if self._counts_buckets:
            before = self._all_places
            sides = self._buckets[i], self._buckets[i + 1]
            after = before - sum(map(self._places_of, sides)) + min(sum(sides), self._most_places)
        else:
            before = context.segments_net
            after = before - 1
        served = min(context.consumers, before)
        return after < served and self._refuse(i, RefusalReason.WOULD_IDLE_CONSUMER, "places", after, served)

    def _is_kept_apart(self, i: int) -> bool:
        """Refuse the pair and return True while a person excludes one of its sides from merges. The refusal names the
        side that is excluded for longer as the cause.
        """
        pair_ids = self._ids[i], self._ids[i + 1]
        kept_id = self._context.kept_longest(pair_ids)
        if kept_id is None:
            return False
        other_id = pair_ids[kept_id == pair_ids[0]]
        return self._context.refuse_during(self._context.kept[kept_id], _LANE, kept_id, other_id)

    def _fresh(self, pairs: list[int]) -> list[int]:
        """Return the pairs of which no side has a stale load record, in the order of `pairs`, and add a refusal of
        every other pair. Limit the validity of the evaluation to the time at which the first of the fresh load
        records that were checked becomes stale. Under `strict_pulsar` all pairs are returned, and the validity is not
        limited.
        """
        context = self._context
        if context.strict or not pairs:
            return pairs
        sides = {*pairs, *(i + 1 for i in pairs)}
        oldest = min((r for r in map(context.records.__getitem__, sides) if r), key=_observed_at)
        if not context.is_stale(oldest):
            context.wake_when_stale(oldest)
            return pairs
        return [i for i in pairs if not self._is_stale(i)]

    def _is_stale(self, i: int) -> bool:
        """Refuse the pair and return True if the load record of either side is stale. A side without a load record is
        not stale. A fresh load record limits the validity of the evaluation to the time at which it becomes stale.
        """
        left, right = self._ids[i], self._ids[i + 1]
        return self._context.refuse_stale(_LANE, i, right) or self._context.refuse_stale(_LANE, i + 1, left)

    def _is_too_soon(self, i: int, since: list[int | None]) -> bool:
        """Return True, and add a refusal of the pair, if the pair must wait: the merge window of a side or the merge
        cooldown of the topic lasts. If both last, the refusal names the one that ends later. A pair of which a side
        has no known time since which it is cold is refused as well, with the reason COLD_WINDOW and without an end.

        `since`: for each active segment, the time since which the segment is cold, in milliseconds since the Unix
        epoch; None if the time is unknown. The merge window of a side is `merge_window_seconds` from this time.
        """
        context, ids = self._context, self._ids
        left, right = since[i], since[i + 1]
        if left is None or right is None:
            warm, other = (i, i + 1) if left is None else (i + 1, i)
            context.refuse(
                Refusal(ids[warm], _LANE, RefusalReason.COLD_WINDOW, "cold_since", other_id=ids[other])
            )
            return True
        latest, later, other = (right, i + 1, i) if right > left else (left, i, i + 1)
        window = Pause(RefusalReason.COLD_WINDOW, "cold_since", latest, latest + self._window_ms)
        cooldown = context.cooldowns.merge
        if cooldown is not None and cooldown.ends_at > window.ends_at:
            return context.refuse_during(cooldown, _LANE, ids[i], ids[i + 1])
        return context.refuse_during(window, _LANE, ids[later], ids[other])


def _observed_at(record: LoadRecord) -> int:
    return record.observed_at


def answer(context: EvaluationContext, earlier_actions: tuple[Decision, ...]) -> tuple[Decision, ...]:
    """Return the merge of one pair of neighbours, or no action. A segment is cold if all four rates of its load
    record are below their merge thresholds. A pair may merge if both sides are cold and the pair meets the conditions
    of `MergeConditions`. Of these pairs, the pair with the lowest sum of warmth (`_warmth`) merges; of equal sums,
    the lowest range.

    Every other pair of cold neighbours gets a refusal in the context. If the topic has more than its minimum number
    of segments, each cold segment without a cold neighbour gets a refusal as well (`_refuse_lone`).

    `earlier_actions` are the actions of earlier lanes in this evaluation. If there are any, nothing is merged, and
    each pair that may merge gets the refusal OTHER_ACT.
    """
    cold = _cold(context)
    touching = [
        low.hash_range.end + 1 == high.hash_range.start for low, high in pairwise(context.active)
    ]  # all pairs touch, unless a layout has a gap
    pairs = [i for i, is_touching in enumerate(touching) if is_touching and cold[i] and cold[i + 1]]
    if len(cold) > 1 and context.segments_low > context.policy.min_segments:
        _refuse_lone(context, cold, touching)
    mergeable = MergeConditions(context).passing(pairs) if pairs else []
    ids = [segment.segment_id for segment in context.active]
    if earlier_actions:
        for i in mergeable:
            context.refuse(Refusal(ids[i], _LANE, RefusalReason.OTHER_ACT, other_id=ids[i + 1]))
        return ()
    if not mergeable:
        return ()
    warmth = _warmth(context)
    best = min(mergeable, key=lambda i: warmth[i] + warmth[i + 1])
    lowest = warmth[best] + warmth[best + 1]
    for i in mergeable:
        if i != best:
            context.refuse(
                Refusal(
                    segment_id=ids[i],
                    lane=_LANE,
                    reason=RefusalReason.LOWER_SCORE,
                    metric="warmth",
                    value=warmth[i] + warmth[i + 1],
                    needed=lowest,
                    other_id=ids[i + 1],
                )
            )
    return (Merge(ids[best], ids[best + 1], "cold"),)


def _cold(context: EvaluationContext) -> list[LoadRecord | None]:
    """Return, for each active segment, its load record if all four rates are below their merge thresholds, otherwise
    None. The age of a record has no effect.
    """
    msg_in, byte_in, msg_out, byte_out = context.thresholds.merge.rates
    return [
        record
        if record is not None
        and (stats := record.stats).msg_rate_in < msg_in
        and stats.byte_rate_in < byte_in
        and stats.msg_rate_out < msg_out
        and stats.byte_rate_out < byte_out
        else None
        for record in context.records
    ]


def _refuse_lone(context: EvaluationContext, cold: list[LoadRecord | None], touching: list[bool]) -> None:
    """Add to the context a refusal of each cold segment that has neighbours, none of which is cold. The refusal names
    the neighbour that is closest to cold as `segment_id`, and the cold segment as `other_id`.

    The reason is NOT_COLD, with the metric of the neighbour that exceeds its merge threshold by the largest factor,
    the neighbour's rate in this metric (None if the rate was never measured) and the threshold. If the neighbour has
    no load record, the reason is NO_LOAD_RECORD.

    `cold` is the result of `_cold`. `touching[i]`: True if no gap separates the segments i and i + 1.
    """
    limits = context.thresholds.merge.rates
    touches_left = [False, *touching, False]
    for index, record in enumerate(cold):
        if record is None:
            continue
        neighbours = [i for i in (index - 1, index + 1) if touches_left[max(index, i)]]
        if not neighbours or any(cold[i] for i in neighbours):
            continue
        ratios = {i: _ratios(context.records[i], limits) for i in neighbours}
        nearest = min(neighbours, key=lambda i: max(ratios[i]))
        segment_id, other_id = context.active[nearest].segment_id, context.active[index].segment_id
        warm = context.records[nearest]
        if warm is None:
            context.refuse(Refusal(segment_id, _LANE, RefusalReason.NO_LOAD_RECORD, other_id=other_id))
            continue
        metric = ratios[nearest].index(max(ratios[nearest]))
        context.refuse(
            Refusal(
                segment_id=segment_id,
                lane=_LANE,
                reason=RefusalReason.NOT_COLD,
                metric=METRICS[metric],
                value=None if math.isnan(warm.stats.rates[metric]) else warm.stats.rates[metric],
                needed=limits[metric],
                other_id=other_id,
            )
        )


def _ratios(record: LoadRecord | None, limits: tuple[float, ...]) -> list[float]:
    """Return the four rates, each divided by its limit; infinity for a rate that was never measured. Without a record,
    return a single infinity.
    """
    if record is None:
        return [math.inf]
    return [
        math.inf if math.isnan(rate) else rate / limit
        for rate, limit in zip(record.stats.rates, limits, strict=True)
    ]


def _warmth(context: EvaluationContext) -> list[float]:
    """Return the warmth of each active segment: the sum of its four rates, each divided by its merge threshold; 0 without
    a record.

    Pulsar adds the raw rates instead, so that bytes outweigh messages, and so does this function under `strict_pulsar`.
    The warmth is used for cold segments only, whose thresholds are above 0.
    """
    if context.strict:  # The rates are added in sequence as Pulsar does, because `sum` rounds better than Java since Python 3.12.
        return [
            0.0
            if record is None
            else (stats := record.stats).msg_rate_in
            + stats.byte_rate_in
            + stats.msg_rate_out
            + stats.byte_rate_out
            for record in context.records
        ]
    msg_in, byte_in, msg_out, byte_out = (limit or 1.0 for limit in context.thresholds.merge.rates)
    return [
        0.0
        if record is None
        else (stats := record.stats).msg_rate_in / msg_in
        + stats.byte_rate_in / byte_in
        + stats.msg_rate_out / msg_out
        + stats.byte_rate_out / byte_out
        for record in context.records
    ]
