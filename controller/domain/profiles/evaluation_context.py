"""The inputs that the lanes of one evaluation share, their refusals and wake-up times, and the cooldowns of the topic.

The context exists for one call of `decide` and is not passed on, so it may be mutable. It decides nothing itself.

Cooldowns are the time after an action in which no other action of the same kind begins. There are three: for splits, merges and
rebuckets. A cooldown counts from the start of the last action, which may still be running. Each lane checks its own cooldown, and a
refusal names the instant at which the cooldown ends. The load plan of the profile `adaptive` has no cooldowns, because it prices actions
instead (`adaptive`), and a merge also waits after a split (`pip483.merge_lane`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple, Self

from controller.domain.approval_rule import HeldAction
from controller.domain.decision import Lane, Refusal, RefusalReason, Split
from controller.domain.entry_buckets import MOST_UNITS
from controller.domain.evaluation_input import EvaluationInput, LiveReshape
from controller.domain.hash_range import RING_SIZE
from controller.domain.load_record import LoadRecord, LoadStats
from controller.domain.reshape import ReshapeKind
from controller.domain.whole_numbers import LARGEST_FLOAT

# A recut both divides and joins, so it counts for two cooldowns. A repair changes no range and counts for none.
_SPLITTING = (ReshapeKind.SPLIT, ReshapeKind.RECUT)
_MERGING = (ReshapeKind.MERGE, ReshapeKind.RECUT)
_REBUCKETING = (ReshapeKind.REBUCKET,)


class Pause(NamedTuple):
    """A period in which an action is refused: its start and its end, in milliseconds since the Unix epoch, and the reason
    and the metric of the refusal.
    """

    reason: RefusalReason
    metric: str
    began: int
    ends_at: int

    def refusal(self, lane: Lane, segment_id: int | None, other_id: int | None = None) -> Refusal:
        """Return the refusal to report during the pause. The caller checks that the pause lasts. The ids are fields of
        `Refusal`.
        """
        return Refusal(
            segment_id=segment_id,
            lane=lane,
            reason=self.reason,
            metric=self.metric,
            value=self.began,
            needed=self.ends_at,
            not_before=self.ends_at,
            other_id=other_id,
        )


class Cooldowns(NamedTuple):
    """The cooldowns of a topic; None if there was no action of the kind. A cooldown may have ended already. A recut
    counts as a split and as a merge.
    """

    split: Pause | None
    merge: Pause | None
    rebucket: Pause | None

    @classmethod
    def of(cls, situation: EvaluationInput) -> Self:
        """Return the cooldowns under the policy, from the last actions and the running reshapes."""
        policy, last = situation.policy, situation.history
        split_at = _latest(situation, _SPLITTING, last.last_split_at)
        merge_at = _latest(situation, _MERGING, last.last_merge_at)
        rebucket_at = _latest(situation, _REBUCKETING, last.last_rebucket_at)
        reason = RefusalReason
        return cls(
            _pause(reason.SPLIT_COOLDOWN, "last_split_at", split_at, policy.split_cooldown_seconds),
            _pause(reason.MERGE_COOLDOWN, "last_merge_at", merge_at, policy.merge_cooldown_seconds),
            _pause(
                reason.REBUCKET_COOLDOWN, "last_rebucket_at", rebucket_at, policy.rebucket_cooldown_seconds
            ),
        )


def _latest(situation: EvaluationInput, kinds: tuple[ReshapeKind, ...], last: int | None) -> int | None:
    """Return the start of the latest operation of these kinds, `last` or a running reshape, in milliseconds since
    the Unix epoch; None if there was none.
    """
    if not situation.in_flight:
        return last
    starts = [reshape.started_at for reshape in situation.in_flight if reshape.kind in kinds]
    return max(starts if last is None else [last, *starts], default=None)


def _pause(reason: RefusalReason, metric: str, began: int | None, seconds: int) -> Pause | None:
    """Return the pause of this length that began at `began`, in milliseconds since the Unix epoch; None if `began` is
    None.
    """
    return None if began is None else Pause(reason, metric, began, began + seconds * 1000)


class EvaluationContext:
    """Active segments in the order of their ranges, with their records at the same index, limits, cooldowns and
    refusals. `consumers`: number of consumers of the subscription that has the most. `strict`: True under
    `strict_pulsar`.

    A rate that is negative or not finite was never measured: it is NaN here, which is neither hot nor cold.

    While reshapes are running, segments are counted in three ways: `segments_net` if all reshapes commit,
    `segments_high` if only those that add segments commit, `segments_low` if only those that remove segments commit.
    The maximum is checked against the highest count and the minimum against the lowest, so neither limit is exceeded,
    whichever reshapes fail.

    `held` are actions that await approval or were rejected, by the segments that they would seal; these segments are in
    no other action. Other decisions may not rely on a held action, so the segments are counted without it. Actions of
    the consumer lane are never held (`approval_rule.is_marked`).

    `busy`: the id of the operation that seals a segment, by segment id; 0 for a held action. `in_flight`: the running
    reshapes that are not yet part of the layout. `stale_ms`: age in milliseconds above which a load record is stale.
    `valid_until`: the earliest time at which the result may change without a change of the input, in milliseconds since
    the Unix epoch; None if there is none.

    `kept`: the pauses in which a person excludes a segment from merges, by segment id; pauses that have ended are left
    out.

    `most_readers`: maximum number of consumers of one segment, whatever its number of buckets; `most_places`: maximum
    number of consumers that a segment can serve after a rebucket; 1 if consumers cannot share a segment. `records` has
    None for a segment without a load record.
    """

    __slots__ = (
        "active",
        "busy",
        "consumers",
        "cooldowns",
        "held",
        "in_flight",
        "kept",
        "most_places",
        "most_readers",
        "now",
        "policy",
        "records",
        "refusals",
        "segments_high",
        "segments_low",
        "segments_net",
        "shared_buckets",
        "situation",
        "stale_ms",
        "strict",
        "thresholds",
        "valid_until",
    )

    def __init__(
        self, situation: EvaluationInput, held: Mapping[int, HeldAction] = MappingProxyType({})
    ) -> None:
        """Compute the inputs of the evaluation of `situation`; there are no refusals at first. `held`: the held
        actions, by the id of each segment that they would seal.
        """
        policy = situation.policy
        self.held = held
        self.situation = situation
        self.policy = policy
        self.thresholds = policy.thresholds
        self.now = situation.now
        self.strict = policy.strict_pulsar
        self.most_readers = RING_SIZE if self.strict else MOST_UNITS
        self.shared_buckets = situation.capabilities.shared_buckets
        self.most_places = (
            min(policy.entry_bucket_max_per_segment, self.most_readers) if self.shared_buckets else 1
        )
        self.active = situation.layout.active
        self.records = [_measured(situation.loads.get(s.segment_id)) for s in self.active]
        self.consumers = max(situation.stream_consumers.values(), default=0)
        self.stale_ms = policy.load_stale_after_seconds * 1000
        self.refusals: list[Refusal] = []
        self.valid_until: int | None = None
        self.busy: dict[int, int] = {}
        self.in_flight: list[LiveReshape] = []
        self.segments_net = self.segments_high = self.segments_low = len(self.active)
        if situation.in_flight:
            self._count_in_flight()
        self.busy.update(dict.fromkeys(held, 0))
        self.cooldowns = Cooldowns.of(situation)
        self.kept = {
            segment_id: Pause(RefusalReason.KEPT_APART, "kept_since", began, ends_at)
            for segment_id, (began, ends_at) in situation.kept.items()
            if ends_at > situation.now
        }

    def _count_in_flight(self) -> None:
        """Add the running reshapes to `in_flight`, their parents to `busy`, and the segments that they will add or
        remove to the three counts of segments. A reshape of which no parent is active does not count: the layout shows
        it as committed.
        """
        active_ids = {segment.segment_id for segment in self.active}
        for reshape in self.situation.in_flight:
            if active_ids.isdisjoint(reshape.parent_ids):
                continue  # committed already: the layout holds its children
            self.in_flight.append(reshape)
            self.busy.update(dict.fromkeys(reshape.parent_ids, reshape.operation_id))
            added = reshape.child_count - len(reshape.parent_ids)
            self.segments_net += added
            self.segments_high += max(0, added)
            self.segments_low += min(0, added)

    def places_of(self, buckets: int) -> int:
        """Return how many consumers a segment with `buckets` entry buckets can serve; 1 if consumers cannot share a
        segment.
        """
        return min(buckets, self.most_readers) if self.shared_buckets else 1

    def count_places(self) -> int:
        """Return how many consumers the segments can serve after all running reshapes have committed. A reshape whose
        `child_places` is unknown counts one consumer for each child, and so does every reshape if consumers cannot
        share a segment.
        """
        sealed = {parent for reshape in self.in_flight for parent in reshape.parent_ids}
        remaining = sum(self.places_of(s.bucket_count) for s in self.active if s.segment_id not in sealed)
        created = (
            reshape.child_places if self.shared_buckets and reshape.child_places else reshape.child_count
            for reshape in self.in_flight
        )
        return remaining + sum(created)

    def wake_at(self, instant: int) -> None:
        """Limit the validity of the evaluation to `instant` (milliseconds since the Unix epoch), at which the
        result may change without a change of the input. An instant that is not after `now`, or later than the limit
        so far, changes nothing.
        """
        if instant > self.now and (self.valid_until is None or instant < self.valid_until):
            self.valid_until = instant

    def refuse(self, refusal: Refusal) -> None:
        """Add a refusal, and limit the validity of the evaluation to the end of the refusal, if it ends by itself."""
        if refusal.not_before is not None:
            self.wake_at(refusal.not_before)
        self.refusals.append(refusal)

    def split(self, index: int, reason: str) -> Split:
        """Return a split at the midpoint of the segment at `index`; the caller has checked that the segment can be
        split.

        If the data plane can cut at the midpoint only, `Split.otherwise` records the cut that would have been made
        without this limit.
        """
        segment = self.active[index]
        has_no_choice = self.situation.capabilities.midpoint_only and segment.hash_range.width > 1
        return Split(
            segment.segment_id, (), reason, segment.hash_range.equal_cuts(2) if has_no_choice else None
        )

    def refuse_busy(self, lane: Lane, segment_id: int, other_id: int | None = None) -> bool:
        """Return True, and add a refusal of the segment, if a held action would seal the segment or a live operation
        seals the segment. A held action awaits approval or was rejected. If both apply, the refusal names the held
        action. The end of a rejection also limits `valid_until`.

        Return False, and add nothing, if neither applies. `other_id` is the neighbour of a pair; the refusal names
        the neighbour, which is not checked.
        """
        if segment_id not in self.busy:
            return False
        if segment_id in self.held:
            self.refuse(self.held[segment_id].refusal(lane, segment_id, other_id))
            return True
        self.refuse(
            Refusal(
                segment_id=segment_id,
                lane=lane,
                reason=RefusalReason.IN_FLIGHT,
                metric="operation_id",
                value=self.busy[segment_id],
                other_id=other_id,
            )
        )
        return True

    def kept_longest(self, segment_ids: Iterable[int]) -> int | None:
        """Return the id of the segment whose exclusion from merges ends last; None if all of them may merge."""
        return max(
            (i for i in segment_ids if i in self.kept), key=lambda i: self.kept[i].ends_at, default=None
        )

    def refuse_during(
        self, pause: Pause | None, lane: Lane, segment_id: int | None, other_id: int | None = None
    ) -> bool:
        """Return True, and add the refusal of `pause`, if the pause has not ended. The refusal concerns the segment,
        or the whole topic if `segment_id` is None; its end limits the validity of the evaluation. Return False, and
        add nothing, if `pause` is None or has ended. `other_id` is the neighbour of a pair and is only named in the
        refusal.
        """
        if pause is None or self.now >= pause.ends_at:
            return False
        self.refuse(pause.refusal(lane, segment_id, other_id))
        return True

    def is_stale(self, record: LoadRecord) -> bool:
        """Return True if the load record is older than the policy's `load_stale_after_seconds`, so that nothing is decided on it. Pulsar
        has no such rule, so no load record is stale under `strict_pulsar`.
        """
        return not self.strict and self.now - record.observed_at > self.stale_ms

    def wake_when_stale(self, record: LoadRecord | None) -> None:
        """Limit the validity of the evaluation to the time until which this load record is fresh. Does nothing without a
        record, under `strict_pulsar`, or for a load record that is stale already.
        """
        if record is not None and not self.strict:
            self.wake_at(record.observed_at + self.stale_ms + 1)

    def refuse_stale(self, lane: Lane, index: int, other_id: int | None = None) -> bool:
        """Add a refusal of the segment at `index` and return True if its load record is stale. Otherwise limit the
        validity of the evaluation to the time at which the load record becomes stale, and return False. Without a
        record, and under `strict_pulsar`, only return False. `other_id`, the neighbour of a pair, is only named in the
        refusal.
        """
        record = self.records[index]
        if record is None:
            return False
        if not self.is_stale(record):
            self.wake_when_stale(record)
            return False
        observed_at = record.observed_at
        self.refuse(
            Refusal(
                segment_id=self.active[index].segment_id,
                lane=lane,
                reason=RefusalReason.STALE_LOAD,
                metric="observed_at",
                value=observed_at,
                needed=observed_at + self.stale_ms,
                other_id=other_id,
            )
        )
        return True


def _measured(record: LoadRecord | None) -> LoadRecord | None:
    """Return the record with NaN in place of each rate that is negative or not finite; None without a record."""
    if record is None or record.stats.are_rates:
        return record
    rates = (rate if 0 <= rate <= LARGEST_FLOAT else math.nan for rate in record.stats.rates)
    return replace(record, stats=LoadStats(*rates))
