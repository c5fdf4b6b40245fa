"""What the lanes of one evaluation share: inputs unpacked once, refusals and wake-up instants gathered.

Lives for one call of `decide` and never leaves it, so it may be mutable. Decides nothing itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from controller.domain.approvals import HeldAct
from controller.domain.decision import Lane, Refusal, RefusalReason, Split, lane_of
from controller.domain.entry_buckets import MOST_UNITS
from controller.domain.hash_range import RING_SIZE
from controller.domain.lanes.cooldowns import Cooldowns, Pause
from controller.domain.load import LoadRecord, LoadStats
from controller.domain.situation import LiveReshape, Situation
from controller.domain.whole_numbers import LARGEST_FLOAT


class Ground:
    """Active segments in range order with their records at the same index, caps, cooldowns and verdicts.

    In a record a rate that is negative or not finite was never measured: it is NaN here, which is neither hot nor cold.

    Segments are counted three ways while reshapes are in flight: `segments_net` when all have committed,
    `segments_high` if only those that add have, `segments_low` if only those that remove have. The cap is held against
    the highest and the floor against the lowest, so neither is passed, whichever of them fail.

    `held` are acts that wait for a person, or that one refused, by the segments they would seal: those are in no other
    act. Nobody may count on such an act, so the segments are counted without it. `held_places`: segments that held splits
    would add for consumers; no other split is made in their stead.

    `kept`: the pauses in which a person wants a segment in no merge, by its id; those that have ended are left out.

    `most_readers`: consumers that one segment can have at most, however many buckets it has; `most_places`: that it can be made to serve.
    """

    __slots__ = (
        "active",
        "busy",
        "consumers",
        "cooldowns",
        "held",
        "held_places",
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

    def __init__(self, situation: Situation, held: Mapping[int, HeldAct] = MappingProxyType({})) -> None:
        policy = situation.policy
        self.held = held
        acts = (one.act for one in held.values())
        self.held_places = sum(isinstance(act, Split) and lane_of(act) is Lane.CONSUMER for act in acts)
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
        """Return how many consumers a segment with so many entry buckets can serve."""
        return min(buckets, self.most_readers) if self.shared_buckets else 1

    def count_places(self) -> int:
        """Return how many consumers the segments can serve, once everything under way has committed."""
        sealed = {parent for reshape in self.in_flight for parent in reshape.parent_ids}
        kept = sum(self.places_of(one.bucket_count) for one in self.active if one.segment_id not in sealed)
        made = (
            reshape.child_places if self.shared_buckets and reshape.child_places else reshape.child_count
            for reshape in self.in_flight
        )
        return kept + sum(made)

    def is_stale(self, record: LoadRecord) -> bool:
        """Whether the reading is too old to go by. Pulsar has no such rule, so under `strict_pulsar` none is."""
        return not self.strict and self.now - record.observed_at > self.stale_ms

    def wake_when_stale(self, record: LoadRecord | None) -> None:
        """The answer rests on this reading as long as it is fresh."""
        if record is not None and not self.strict:
            self.wake_at(record.observed_at + self.stale_ms + 1)

    def wake_at(self, instant: int) -> None:
        """The answer may change at `instant` with no new input."""
        if instant > self.now and (self.valid_until is None or instant < self.valid_until):
            self.valid_until = instant

    def refuse(self, refusal: Refusal) -> None:
        """Notes a refusal, and when it ends."""
        if refusal.not_before is not None:
            self.wake_at(refusal.not_before)
        self.refusals.append(refusal)

    def split(self, index: int, reason: str) -> Split:
        """A split of the segment at `index` where the profile cuts, which is the midpoint.

        Where the data plane can cut nowhere else, the ledger is told where the cut would have been.
        """
        segment = self.active[index]
        has_no_choice = self.situation.capabilities.midpoint_only and segment.hash_range.width > 1
        return Split(
            segment.segment_id, (), reason, segment.hash_range.equal_cuts(2) if has_no_choice else None
        )

    def refuse_stale(self, lane: Lane, index: int, other_id: int | None = None) -> bool:
        """Refuses the segment at `index` if its reading is stale, else notes when it becomes so."""
        record = self.records[index]
        if record is None:
            return False
        if not self.is_stale(record):
            self.wake_when_stale(record)
            return False
        heard = record.observed_at
        self.refuse(
            Refusal(
                segment_id=self.active[index].segment_id,
                lane=lane,
                reason=RefusalReason.STALE_LOAD,
                metric="observed_at",
                value=heard,
                needed=heard + self.stale_ms,
                other_id=other_id,
            )
        )
        return True

    def refuse_busy(self, lane: Lane, segment_id: int, other_id: int | None = None) -> bool:
        """Refuses the segment if a live operation holds it, or an act that waits for a person."""
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
        """Return the id of the segment that is to be in no merge for the longest time; None if all of them may be."""
        return max(
            (i for i in segment_ids if i in self.kept), key=lambda i: self.kept[i].ends_at, default=None
        )

    def refuse_during(
        self, pause: Pause | None, lane: Lane, segment_id: int | None, other_id: int | None = None
    ) -> bool:
        """Refuses the segment, or (None) the whole topic, while the pause lasts."""
        if pause is None or self.now >= pause.ends_at:
            return False
        self.refuse(pause.refusal(lane, segment_id, other_id))
        return True


def _measured(record: LoadRecord | None) -> LoadRecord | None:
    if record is None or record.stats.are_rates:
        return record
    rates = (rate if 0 <= rate <= LARGEST_FLOAT else math.nan for rate in record.stats.rates)
    return replace(record, stats=LoadStats(*rates))
