"""The gates a pair of cold neighbours passes before it may merge.

Reasons that do not end by waiting come first, so that the reason given does not change by itself. A pair that a person
keeps apart is refused in any case. Two other gates are not Pulsar's and are off under `strict_pulsar`: a stale reading is
not cold, and a merge whose result the next evaluation would split is refused (Pulsar merges and splits such a pair in turn).
"""

from __future__ import annotations

from controller.domain.decision import Lane, Refusal, RefusalReason
from controller.domain.lanes.cooldowns import Pause
from controller.domain.lanes.ground import Ground
from controller.domain.load import METRICS, LoadRecord

_LANE = Lane.MERGE


class MergeGates:
    """The gates of one evaluation. A pair is named by the index of its left side; a gate answers True when it refuses
    the pair.
    """

    __slots__ = ("_all_places", "_buckets", "_busiest", "_depths", "_gates", "_ground", "_ids", "_window_ms")

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._ids = [segment.segment_id for segment in ground.active]
        self._buckets = [segment.bucket_count for segment in ground.active]
        self._all_places = sum(self._places(buckets) for buckets in self._buckets)
        if ground.strict:
            by_ancestry = ground.situation.layout.merge_depths_by_ancestry()
            self._depths = [by_ancestry[segment_id] for segment_id in self._ids]
        else:
            self._depths = [segment.merge_depth for segment in ground.active]
        may_want_split = not ground.strict and self._consumers_may_want_split()
        self._busiest = self._busiest_that_splits() if may_want_split and ground.shared_buckets else 0.0
        self._window_ms = ground.policy.merge_window_seconds * 1000
        gates = (
            (self._busy, bool(ground.busy)),
            (self._at_min, ground.segments_low <= ground.policy.min_segments),
            (self._too_deep, max(self._depths) >= ground.policy.max_dag_depth),
            (self._splits_for_consumers, may_want_split),
            (self._splits_for_load, not ground.strict and self._sums_can_be_hot()),
            (self._idles_consumer, self._merges_can_idle()),
            (self._kept_apart, bool(ground.kept)),
        )
        # A big cold topic has many pairs: only gates that can refuse something here are asked.
        self._gates = [gate for gate, is_asked in gates if is_asked]

    def passing(self, pairs: list[int]) -> list[int]:
        """The pairs no gate refuses; every other one has its refusal."""
        for gate in self._gates:
            pairs = [i for i in pairs if not gate(i)]
        since = self._cold_since()
        return [i for i in self._fresh(pairs) if not self._too_soon(i, since)]

    def _cold_since(self) -> list[int | None]:
        """Since when each segment is cold. Pulsar takes the time of the last write for it."""
        strict = self._ground.strict
        return [
            None if record is None else record.modified_at if strict else record.cold_since
            for record in self._ground.records
        ]

    def _refuse(
        self, i: int, reason: RefusalReason, metric: str, value: float, needed: float, *, right: bool = False
    ) -> bool:
        self._ground.refuse(
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

    def _busy(self, i: int) -> bool:
        left, right = self._ids[i], self._ids[i + 1]
        return self._ground.refuse_busy(_LANE, left, right) or self._ground.refuse_busy(_LANE, right, left)

    def _at_min(self, i: int) -> bool:
        low, least = self._ground.segments_low, self._ground.policy.min_segments
        return self._refuse(i, RefusalReason.AT_MIN_SEGMENTS, "segments", low, least)

    def _too_deep(self, i: int) -> bool:
        """Whether either side is at the cap. The child of two sides below it may exceed it, as in Pulsar."""
        cap = self._ground.policy.max_dag_depth
        right = self._depths[i] < cap
        depth = self._depths[i + right]
        return depth >= cap and self._refuse(
            i, RefusalReason.MERGE_DEPTH, "merge_depth", depth, cap, right=right
        )

    def _consumers_may_want_split(self) -> bool:
        """Whether with one segment less the consumer lane would split, if the busiest segment is fast enough."""
        ground = self._ground
        return ground.consumers >= ground.segments_net and ground.segments_high <= ground.policy.max_segments

    def _busiest_that_splits(self) -> float:
        """The highest rate that is split where buckets can be shared; 0 if no segment is fast enough.

        The answer rests on the readings of the fast ones as long as they are fresh.
        """
        ground = self._ground
        floor = ground.policy.split_vs_rebucket_min_msg_rate_in
        busiest = 0.0
        for segment, record in zip(ground.active, ground.records, strict=True):
            if record is None or not record.stats.msg_rate_in >= floor or ground.is_stale(record):
                continue
            ground.wake_when_stale(record)
            if segment.hash_range.width > 1:
                busiest = max(busiest, record.stats.msg_rate_in)
        return busiest

    def _splits_for_consumers(self, i: int) -> bool:
        ground = self._ground
        again = RefusalReason.WOULD_SPLIT_AGAIN
        if not ground.shared_buckets:
            return self._refuse(i, again, "consumers", ground.consumers, ground.segments_net - 1)
        served = self._most_places * (ground.segments_net - 1)
        if ground.consumers > served:
            return self._refuse(i, again, "consumers", ground.consumers, served)
        floor = ground.policy.split_vs_rebucket_min_msg_rate_in
        # If one side is the busiest, the two together are busier still.
        busiest = max(self._busiest, self._msg_rate_in(i) + self._msg_rate_in(i + 1))
        return busiest >= floor and self._refuse(i, again, "msg_rate_in", busiest, floor)

    def _msg_rate_in(self, index: int) -> float:
        record = self._ground.records[index]
        return 0.0 if record is None else record.stats.msg_rate_in

    def _sums_can_be_hot(self) -> bool:
        """Two rates below merge thresholds pass a split threshold only if it is less than their double.

        Where the topic is at its cap even after the merge, the load lane would not split it.
        """
        if self._ground.segments_high > self._ground.policy.max_segments:
            return False
        thresholds = self._ground.thresholds
        pairs = zip(thresholds.merge.rates, thresholds.split.rates, strict=True)
        return any(2 * merge > split for merge, split in pairs)

    def _splits_for_load(self, i: int) -> bool:
        left, right = self._ground.records[i : i + 2]
        if left is None or right is None:
            return False
        sums = map(sum, zip(left.stats.rates, right.stats.rates, strict=True))
        limits = self._ground.thresholds.split.rates
        for metric, total, limit in zip(METRICS, sums, limits, strict=True):
            if total > limit:
                return self._refuse(i, RefusalReason.WOULD_SPLIT_AGAIN, metric, total, limit)
        return False

    def _merges_can_idle(self) -> bool:
        """A segment serves as many consumers as `_places` of its buckets, or one where buckets cannot be shared."""
        ground = self._ground
        if not self._counts_buckets:
            return ground.consumers >= ground.segments_net
        return ground.consumers > 0 and 2 * max(self._buckets) > self._most_places

    @property
    def _most_places(self) -> int:
        return min(self._ground.policy.entry_bucket_max_per_segment, self._ground.most_readers)

    def _places(self, buckets: int) -> int:
        """How many consumers can share so many buckets of one segment."""
        return min(buckets, self._ground.most_readers)

    @property
    def _counts_buckets(self) -> bool:
        return self._ground.shared_buckets or self._ground.strict

    def _idles_consumer(self, i: int) -> bool:
        """A merge may not idle a consumer that is served today; those idle already do not count."""
        ground = self._ground
        if self._counts_buckets:
            before = self._all_places
            sides = self._buckets[i], self._buckets[i + 1]
            after = before - sum(map(self._places, sides)) + min(sum(sides), self._most_places)
        else:
            before = ground.segments_net
            after = before - 1
        served = min(ground.consumers, before)
        return after < served and self._refuse(i, RefusalReason.WOULD_IDLE_CONSUMER, "places", after, served)

    def _kept_apart(self, i: int) -> bool:
        sides = self._ids[i], self._ids[i + 1]
        kept = self._ground.kept_longest(sides)
        if kept is None:
            return False
        other = sides[kept == sides[0]]
        return self._ground.refuse_during(self._ground.kept[kept], _LANE, kept, other)

    def _fresh(self, pairs: list[int]) -> list[int]:
        """The pairs whose two readings are fresh; the answer rests on the oldest of them."""
        ground = self._ground
        if ground.strict or not pairs:
            return pairs
        sides = {*pairs, *(i + 1 for i in pairs)}
        oldest = min((r for r in map(ground.records.__getitem__, sides) if r), key=_observed_at)
        if not ground.is_stale(oldest):
            ground.wake_when_stale(oldest)
            return pairs
        return [i for i in pairs if not self._stale(i)]

    def _stale(self, i: int) -> bool:
        left, right = self._ids[i], self._ids[i + 1]
        refuse = self._ground.refuse_stale
        return refuse(_LANE, i, right) or refuse(_LANE, i + 1, left)

    def _too_soon(self, i: int, since: list[int | None]) -> bool:
        """The merge window of both sides and the merge cooldown; the one that ends last is the reason."""
        ground, ids = self._ground, self._ids
        left, right = since[i], since[i + 1]
        if left is None or right is None:
            warm, other = (i, i + 1) if left is None else (i + 1, i)
            ground.refuse(
                Refusal(ids[warm], _LANE, RefusalReason.COLD_WINDOW, "cold_since", other_id=ids[other])
            )
            return True
        latest, later, other = (right, i + 1, i) if right > left else (left, i, i + 1)
        window = Pause(RefusalReason.COLD_WINDOW, "cold_since", latest, latest + self._window_ms)
        cooldown = ground.cooldowns.merge
        if cooldown is not None and cooldown.ends_at > window.ends_at:
            return ground.refuse_during(cooldown, _LANE, ids[i], ids[i + 1])
        return ground.refuse_during(window, _LANE, ids[later], ids[other])


def _observed_at(record: LoadRecord) -> int:
    return record.observed_at
