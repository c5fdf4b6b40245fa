"""The profile `adaptive`: one plan a tick for the whole ring, in which what was lost by waiting pays for a reshape.

A segment's load is the largest of its four rates as shares of their split thresholds, so 1 is its capacity. A segment
is relieved at once above the tolerance, and below it when its overload so far has cost as much as a reshape. Capacity is
given back when fewer segments would have saved more, within the memory, than sealing them costs. `ring_plan` weighs all
of it at once and several acts may come of it, on disjoint segments.

Consumers are served first (`consumer_plan`), and the segments of those acts are in no other act; no other act takes a place that a
consumer needs. Of the plan the load lane gives the reliefs and the merge lane the rest. Cooldowns and the cap on merges in a segment's ancestry play no part: the price
of a reseal takes their place, and the budget of reconnections. A segment that nobody has reported lately is in no act.
A segment that a person keeps apart may be split, and is in no act together with others.

Cuts are of equal width, or by the sketches of all segments in a run where each has one: then into the fewest parts that
carry the load, with what is hot in itself standing alone. What is left after that no cut can relieve, and it is said so.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from controller.domain.approvals import parts_of
from controller.domain.decision import (
    COLD,
    Decision,
    Lane,
    Merge,
    Rebucket,
    Recut,
    Refusal,
    RefusalReason,
    Split,
)
from controller.domain.hash_range import RING_SIZE, HashRange
from controller.domain.key_sketch import as_bins
from controller.domain.lanes import idle_buckets
from controller.domain.lanes.ground import Ground
from controller.domain.load import METRICS, LoadStats
from controller.domain.profiles import consumer_plan
from controller.domain.profiles.ring_plan import (
    MAX_RUN,
    OVERLOAD_WEIGHT,
    Candidate,
    Member,
    Prices,
    RingPlan,
    Run,
    plan_ring,
)
from controller.domain.situation import TICKS_OF_MEMORY
from controller.domain.split_points.fewest import fewest_cuts

CODE_VERSION = "adaptive-5"

SETTLE_TICKS = 1
"""A segment made so recently that is above its capacity was made too large: it is relieved without tolerance."""

MOST_STRIKES = 2
STOP_TICKS = 60
"""After so many cuts in a row that left nearly all of the load in one part, a segment is left alone for so long."""

ON_ONE_HASH = 0.95
"""A segment with this part of its load on one hash is as good as that hash."""

TICKS_BETWEEN_LOOKS = 5
"""A topic of several segments with nothing to weigh is looked at again after so many ticks."""

TARGET_AT_THE_CAP = 1.05
"""What a segment may carry when the topic may have no more of them."""

_MOST_LOAD = float(RING_SIZE)
"""More parts than hashes there cannot be, and infinity is no number of parts."""

_METRIC_NAMES = ("msgRateIn", "byteRateIn", "msgRateOut", "byteRateOut")


def answer(ground: Ground, lanes: Collection[Lane]) -> tuple[Decision, ...]:
    """Acts on disjoint segments, those of consumers first; a lane that is not asked adds nothing."""
    served = consumer_plan.answer(ground) if Lane.CONSUMER in lanes else ()
    planned: tuple[Decision, ...] = ()
    if Lane.LOAD in lanes or Lane.MERGE in lanes:
        planned = _Planner(ground, lanes, served).answer()
    if Lane.CONSUMER in lanes and not served and not planned:
        return idle_buckets.answer(ground)
    return (*served, *planned)


def _touched(acts: Sequence[Decision]) -> frozenset[int]:
    return frozenset(act.segment_id for act in acts if isinstance(act, Split | Rebucket))


@dataclass(slots=True)
class _Act:
    """A run as an act: which members, where they are cut, and how many clients have to reconnect. `buckets`: entry buckets of each
    child, where its share of the parents' would leave a consumer without one.
    """

    run: Run
    cuts: tuple[int, ...]
    reconnections: float
    buckets: int | None = None


class _Planner:
    """One plan of one topic. Lives for one call of `answer`."""

    def __init__(self, ground: Ground, lanes: Collection[Lane], served: Sequence[Decision]) -> None:
        """`served`: what consumers are given in this tick."""
        self._ground = ground
        self._lanes = lanes
        self._segments_high = ground.segments_high + sum(
            parts_of(act) - 1 for act in served if isinstance(act, Split)
        )
        policy, situation = ground.policy, ground.situation
        self._scale = tuple(1 / limit for limit in ground.thresholds.split.rates)
        self._tick_seconds = max(policy.load_memory_seconds, TICKS_OF_MEMORY) / TICKS_OF_MEMORY
        self._clients = situation.reconnections
        can = situation.capabilities
        whole_ring = can.recut and not can.midpoint_only
        self._prices = Prices(
            target=policy.target_use,
            reseal=policy.reseal_price_segment_seconds,
            reconnections=policy.reconnection_price_segment_seconds * situation.reconnections,
            tick_seconds=self._tick_seconds,
            memory_ticks=TICKS_OF_MEMORY,
            most_parts=2 if can.midpoint_only else max(2, can.max_children),
            most_spared=max(0, ground.segments_low - self._fewest()),
            recut=whole_ring,
            longest_run=MAX_RUN if whole_ring else 2,
        )
        self._told: set[int] = set()
        taken = _touched(served)
        self._members = [self._member(i, taken) for i in range(len(ground.active))]

    def answer(self) -> tuple[Decision, ...]:
        """The acts of the lanes asked, the most urgent first, and a refusal for all that is hot or to spare beside."""
        plan = self._plan(self._prices)
        room = self._ground.policy.max_segments - self._segments_high
        if sum(max(0, run.parts - run.length) for run in plan.runs) > room:
            crowded = replace(self._prices, target=max(TARGET_AT_THE_CAP, self._prices.target))
            plan = self._plan(crowded)
        acts = self._affordable(self._keeping_places(self._fitting(self._as_acts(plan))))
        self._explain(plan, acts)
        return tuple(self._decision(act) for act in acts)

    def _plan(self, prices: Prices) -> RingPlan:
        edges = [segment.hash_range for segment in self._ground.active]
        meets = [low.end + 1 == high.start for low, high in pairwise(edges)]
        return plan_ring(self._members, prices, meets.__getitem__)

    # What the plan is made of

    def _member(self, i: int, taken: frozenset[int]) -> Member:
        ground = self._ground
        segment, record = ground.active[i], ground.records[i]
        width = segment.hash_range.width / RING_SIZE
        load = math.nan if record is None else self._load_of(record.stats)
        if math.isnan(load) or record is None:
            self._refuse(i, RefusalReason.NO_LOAD_RECORD)
            return Member(0.0, width, (0.0,), fixed=True)
        if segment.segment_id in taken:
            return Member(load, width, (load,), fixed=True)
        ticks = self._ticks(segment.segment_id, load)
        load = ticks[0]
        if ground.is_stale(record):
            ground.refuse_stale(self._lane(load), i)
            return Member(load, width, ticks, fixed=True)
        ground.wake_when_stale(record)
        if segment.segment_id in ground.busy:
            if load > 1:
                ground.refuse_busy(self._lane(load), segment.segment_id)
            return Member(load, width, ticks, fixed=True)
        if load > self._prices.target and self._is_unsplittable(i, load):
            return Member(load, width, ticks, fixed=True)
        hot = load > 1 and self._is_hot(i, load, width, ticks)
        kept = ground.kept.get(segment.segment_id)
        if kept is not None:
            ground.wake_at(kept.ends_at)
        bends = segment.segment_id in ground.situation.sketches
        return Member(load, width, ticks, hot=hot, bends=bends, kept=kept is not None)

    def _load_of(self, stats: LoadStats) -> float:
        """As a share of the capacity; NaN where nothing was measured."""
        a, b, c, d = self._scale
        shares = (
            stats.msg_rate_in * a,
            stats.byte_rate_in * b,
            stats.msg_rate_out * c,
            stats.byte_rate_out * d,
        )
        load = max(shares)
        if math.isnan(load):
            load = max((share for share in shares if not math.isnan(share)), default=math.nan)
        return min(load, _MOST_LOAD)

    def _ticks(self, segment_id: int, load: float) -> list[float]:
        """The loads remembered, newest first; a segment without memory has its present one."""
        remembered = self._ground.situation.recent_loads.get(segment_id)
        if not remembered:
            return [load]
        a, b, c, d = self._scale
        ticks = []
        for stats in reversed(remembered[-TICKS_OF_MEMORY:]):
            most = stats.msg_rate_in * a
            share = stats.byte_rate_in * b
            if share > most:
                most = share
            share = stats.msg_rate_out * c
            if share > most:
                most = share
            share = stats.byte_rate_out * d
            if share > most:
                most = share
            ticks.append(most if 0 <= most < RING_SIZE else min(max(load, 0.0), _MOST_LOAD))
        return ticks

    def _is_unsplittable(self, i: int, load: float) -> bool:
        """One hash cannot be divided, nor a segment in which it has all the load. One whose cuts were in vain is left alone for a
        while.
        """
        ground = self._ground
        segment = ground.active[i]
        sketch = ground.situation.sketches.get(segment.segment_id, ())
        is_by_hash = len(sketch) == segment.hash_range.width  # a wider bin is cut out and looked at again
        if is_by_hash and max(sketch) >= ON_ONE_HASH * sum(sketch) > 0:
            self._refuse(i, RefusalReason.UNSPLITTABLE, "load", load, 1.0)
            return True
        stopped_until = segment.created_at_ms + self._ms(STOP_TICKS)
        struck = ground.situation.strikes.get(segment.segment_id, 0) >= MOST_STRIKES
        if segment.hash_range.width > 1 and not (struck and ground.now < stopped_until):
            return False
        until = None if segment.hash_range.width == 1 else stopped_until
        self._refuse(i, RefusalReason.UNSPLITTABLE, "load", load, 1.0, until)
        return True

    def _is_hot(self, i: int, load: float, width: float, ticks: Sequence[float]) -> bool:
        """Above the tolerance, just made too large, or above capacity for so long that a reseal is worth it."""
        ground = self._ground
        created_at = ground.active[i].created_at_ms
        if load > 1 + ground.policy.overload_tolerance:
            return True
        if (
            created_at > 0
            and ground.active[i].parent_ids
            and ground.now - created_at <= self._ms(SETTLE_TICKS)
        ):
            ground.wake_at(created_at + self._ms(SETTLE_TICKS) + 1)
            return True
        return self._overload_cost(ticks) >= self._prices.of_reseal(width, 1) + self._prices.segment

    def _overload_cost(self, ticks: Sequence[float]) -> float:
        """What the overload that still lasts has cost, in segment-seconds."""
        beyond = 0.0
        for load in ticks:
            if load <= 1:
                break
            beyond += load - 1
        return OVERLOAD_WEIGHT * self._tick_seconds * beyond

    # What of it may be done

    def _as_acts(self, plan: RingPlan) -> list[_Act]:
        """Those of the lanes asked, reliefs first."""
        acts = []
        for run in plan.runs:
            if (Lane.LOAD if run.is_relief else Lane.MERGE) not in self._lanes:
                continue
            cuts = self._cuts(run)
            if cuts is not None and not self._would_split_again(run, cuts):
                acts.append(_Act(run, cuts, self._clients * run.length))
        return sorted(acts, key=lambda act: (not act.run.is_relief, -self._urgency(act)))

    def _cuts(self, run: Run, most_parts: int | None = None) -> tuple[int, ...] | None:
        """Where the run is cut; None where its sketches show that this would bring nothing."""
        union = self._union(run)
        parts = min(run.parts, union.width, most_parts or run.parts)
        members = range(run.first, run.first + run.length)
        if not all(self._members[i].bends for i in members):
            return union.equal_cuts(parts)
        sketches, active = self._ground.situation.sketches, self._ground.active
        bins = [
            one
            for i in members
            for one in as_bins(active[i].hash_range, sketches[active[i].segment_id], self._members[i].load)
        ]
        cuts = fewest_cuts(
            bins,
            self._prices.target,
            at_least=2 if run.length == 1 else 1,
            at_most=most_parts or self._prices.most_parts,
        )
        unchanged = list(cuts) == [active[i].hash_range.start for i in members[1:]]
        if (
            (not run.is_relief and len(cuts) + 1 >= run.length)
            or (unchanged and run.length > 1)
            or not (cuts or run.length > 1)
        ):
            self._refuse_in_vain(run)
            return None
        return cuts

    def _would_split_again(self, run: Run, cuts: tuple[int, ...]) -> bool:
        """Whether a saving would make a segment above its capacity, as far as the loads of the members tell where the load lies."""
        if run.is_relief or not cuts:
            return False
        members = self._members[run.first : run.first + run.length]
        ranges = [one.hash_range for one in self._ground.active[run.first : run.first + run.length]]
        for child in self._union(run).cut_many(cuts):
            load = sum(
                member.load * max(0, min(child.end, held.end) - max(child.start, held.start) + 1) / held.width
                for member, held in zip(members, ranges, strict=True)
            )
            if load > 1:
                self._refuse_run(run, RefusalReason.WOULD_SPLIT_AGAIN, "load", load, 1.0)
                return True
        return False

    def _refuse_in_vain(self, run: Run) -> None:
        """What cuts by the sketches would not change: a relief would relieve nobody, a saving overload somebody."""
        members = range(run.first, run.first + run.length)
        hottest = max(members, key=lambda i: self._members[i].load)
        load = self._members[hottest].load
        if run.is_relief:
            self._told.add(hottest)
            self._refuse(hottest, RefusalReason.UNSPLITTABLE, "load", load, 1.0)
        else:
            self._refuse_run(run, RefusalReason.WOULD_SPLIT_AGAIN, "segments", run.length, run.parts)

    def _urgency(self, act: _Act) -> float:
        """Of a relief the load beyond capacity, of a saving what it saves; for each client disturbed."""
        run = act.run
        gain = run.saved or sum(
            max(0.0, m.load - 1) for m in self._members[run.first : run.first + run.length]
        )
        return gain / (1 + act.reconnections)

    def _union(self, run: Run) -> HashRange:
        active = self._ground.active
        return HashRange(
            active[run.first].hash_range.start, active[run.first + run.length - 1].hash_range.end
        )

    def _fitting(self, acts: Sequence[_Act]) -> list[_Act]:
        """Within the cap and the floor, whichever of the acts under way and of these may fail."""
        ground = self._ground
        room = ground.policy.max_segments - self._segments_high
        spare = ground.segments_low - self._fewest()
        fitting = []
        for act in acts:
            run = act.run
            added = len(act.cuts) + 1 - run.length
            if added > room:
                if run.length + room < 2 or room < 1 or not run.is_relief:
                    self._refuse_run(
                        run,
                        RefusalReason.AT_MAX_SEGMENTS,
                        "segments",
                        self._segments_high,
                        ground.policy.max_segments,
                    )
                    continue
                act.cuts = self._cuts(run, run.length + room) or ()
                added = len(act.cuts) + 1 - run.length
            if -added > spare:
                self._refuse_run(run, *self._why_not_fewer(self._fewest() + spare, -added))
                continue
            room -= max(0, added)
            spare += min(0, added)
            fitting.append(act)
        return fitting

    def _keeping_places(self, acts: Sequence[_Act]) -> list[_Act]:
        """Acts after which every consumer that has a place still has one: children get more entry buckets for it, and a relief makes
        as many of them as it needs for it.
        """
        ground = self._ground
        if not ground.shared_buckets or not ground.consumers:
            return list(acts)
        there, most = ground.count_places(), ground.most_places
        served = min(ground.consumers, there)
        spare, kept = there - served, []
        for act in acts:
            before, share = self._places_of(act)
            lost = before - (len(act.cuts) + 1) * share
            if lost > spare:
                parts = max(len(act.cuts) + 1, math.ceil((before - spare) / most))
                if parts > len(act.cuts) + 1:
                    if not act.run.is_relief:
                        self._refuse_run(
                            act.run, RefusalReason.WOULD_IDLE_CONSUMER, "places", there - lost, served
                        )
                        continue
                    act.cuts = self._union(act.run).equal_cuts(parts)
                act.buckets = math.ceil((before - spare) / parts)
                lost = before - parts * act.buckets
            spare -= max(0, lost)
            kept.append(act)
        return kept

    def _places_of(self, act: _Act) -> tuple[int, int]:
        """Consumers that the segments of the act can serve, and that each child could with its share of their entry buckets."""
        ground, run = self._ground, act.run
        counts = [one.bucket_count for one in ground.active[run.first : run.first + run.length]]
        share = min(sum(counts) // (len(act.cuts) + 1), ground.policy.entry_bucket_max_per_segment)
        before = sum(map(ground.places_of, counts))
        return before, ground.places_of(max(1, share))

    def _fewest(self) -> int:
        """Segments there must be; consumers keep those that they are to have, as far as they have them now."""
        ground = self._ground
        return max(
            ground.policy.min_segments, min(consumer_plan.segments_wanted(ground), ground.segments_net)
        )

    def _affordable(self, acts: Sequence[_Act]) -> list[_Act]:
        """Within the budget of reconnections. An act beyond the whole budget may be made when that is full."""
        left = self._ground.situation.reconnections_left
        if left is None:
            return list(acts)
        full = self._ground.policy.reconnections_per_minute
        made = []
        for act in acts:
            needed = min(act.reconnections, full)
            if needed <= left:
                left -= act.reconnections
                made.append(act)
                continue
            wait_ms = math.ceil((needed - left) / full * 60_000)
            self._refuse_run(
                act.run,
                RefusalReason.RECONNECTION_BUDGET,
                "reconnections",
                act.reconnections,
                max(0.0, left),
                self._ground.now + wait_ms,
            )
        return made

    # What it says

    def _decision(self, act: _Act) -> Decision:
        run, active = act.run, self._ground.active
        ids = tuple(segment.segment_id for segment in active[run.first : run.first + run.length])
        reason = self._hottest_metric(run) if run.is_relief else COLD
        if len(ids) == 1:
            at = () if self._ground.situation.capabilities.midpoint_only else act.cuts
            return Split(ids[0], at, reason, buckets=act.buckets)
        if len(ids) == 2 and not act.cuts:
            return Merge(*ids, reason)
        return Recut(ids, act.cuts, reason, act.buckets)

    def _hottest_metric(self, run: Run) -> str:
        records = self._ground.records[run.first : run.first + run.length]
        shares = [
            max((r.stats.rates[i] * scale for r in records if r is not None), default=0.0)
            for i, scale in enumerate(self._scale)
        ]
        return _METRIC_NAMES[max(range(len(METRICS)), key=shares.__getitem__)]

    def _explain(self, plan: RingPlan, acts: Sequence[_Act]) -> None:
        """A reason for each segment above its capacity, and for each that could be spared, in no act; and when to look
        again.
        """
        acted = {i for act in acts for i in range(act.run.first, act.run.first + act.run.length)}
        pending = bool(acts or self._told)
        explained: set[tuple[int, int]] = set()
        for i, member in enumerate(self._members):
            if i in acted or i in self._told or member.fixed:
                continue
            if member.load > 1:
                pending = True
                self._refuse(i, RefusalReason.TOLERATED_OVERLOAD, "segment_seconds", self._overload_cost(member.ticks),
                             self._prices.of_reseal(member.width, 1) + self._prices.segment)  # fmt: skip
            elif (near := plan.nearest.get(i)) is not None:
                pending = True
                if (near.first, near.length) not in explained:
                    explained.add((near.first, near.length))
                    self._refuse_saving(near)
        if self._refuses_fewer() or pending:
            self._wake_after(1)
        elif len(self._members) > 1:  # a load that falls little by little is no news to anybody
            self._wake_after(TICKS_BETWEEN_LOOKS)

    def _wake_after(self, ticks: int) -> None:
        self._ground.wake_at(self._ground.now + self._ms(ticks))

    def _ms(self, ticks: int) -> int:
        return math.ceil(ticks * self._tick_seconds * 1000)

    def _refuse_saving(self, near: Candidate) -> None:
        if Lane.MERGE not in self._lanes:
            return
        active = self._ground.active
        pays = near.saved > near.price  # and yet another act was worth more
        if pays and near.kept:
            self._refuse_kept(
                [segment.segment_id for segment in active[near.first : near.first + near.length]]
            )
            return
        self._ground.refuse(
            Refusal(
                segment_id=active[near.first].segment_id,
                lane=Lane.MERGE,
                reason=RefusalReason.OTHER_ACT if pays else RefusalReason.SAVING_BELOW_PRICE,
                metric=None if pays else "segment_seconds",
                value=None if pays else round(near.saved, 3),
                needed=None if pays else round(near.price, 3),
                other_id=active[near.first + near.length - 1].segment_id,
            )
        )

    def _refuse_kept(self, ids: Sequence[int]) -> None:
        kept = self._ground.kept_longest(ids)
        if kept is not None:
            other = ids[0] if kept != ids[0] else ids[-1]
            self._ground.refuse_during(self._ground.kept[kept], Lane.MERGE, kept, other)

    def _refuses_fewer(self) -> bool:
        """At the floor nothing is weighed; that fewer would do is said of the whole topic."""
        ground = self._ground
        would_do = math.ceil(sum(member.load for member in self._members) / self._prices.target)
        if self._prices.most_spared or would_do >= len(self._members) or Lane.MERGE not in self._lanes:
            return False
        ground.refuse(Refusal(None, Lane.MERGE, *self._why_not_fewer(ground.segments_low, 1)))
        return True

    def _why_not_fewer(self, segments: int, taken: int) -> tuple[RefusalReason, str, int, int]:
        """Why so many cannot be taken of the segments there are, in a refusal's figures: the places that would be left for consumers
        that cannot share one, else the segments, and the most there may be of them for that to be refused.
        """
        fewest = self._fewest()
        if fewest > self._ground.policy.min_segments:
            return RefusalReason.WOULD_IDLE_CONSUMER, "places", segments - taken, fewest
        return RefusalReason.AT_MIN_SEGMENTS, "segments", segments, fewest + taken - 1

    def _lane(self, load: float) -> Lane:
        hot = load > 1
        return (
            Lane.LOAD if (hot and Lane.LOAD in self._lanes) or Lane.MERGE not in self._lanes else Lane.MERGE
        )

    def _refuse_run(
        self,
        run: Run,
        reason: RefusalReason,
        metric: str,
        value: float,
        needed: float,
        not_before: int | None = None,
    ) -> None:
        active = self._ground.active
        self._told.update(range(run.first, run.first + run.length))
        self._ground.refuse(
            Refusal(
                segment_id=active[run.first].segment_id,
                lane=Lane.LOAD if run.is_relief else Lane.MERGE,
                reason=reason,
                metric=metric,
                value=value,
                needed=needed,
                not_before=not_before,
                other_id=active[run.first + run.length - 1].segment_id if run.length > 1 else None,
            )
        )

    def _refuse(
        self,
        i: int,
        reason: RefusalReason,
        metric: str | None = None,
        value: float | None = None,
        needed: float | None = None,
        not_before: int | None = None,
    ) -> None:
        if Lane.LOAD in self._lanes:
            self._ground.refuse(
                Refusal(
                    self._ground.active[i].segment_id, Lane.LOAD, reason, metric, value, needed, not_before
                )
            )
