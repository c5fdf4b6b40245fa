"""The profile `adaptive`: one plan per tick for the whole ring; a reshape is made when waiting has cost as much as
the reshape costs.

A segment's load is the largest of its four rates as shares of their split thresholds, so 1 is its capacity. A
segment above the tolerance is scaled out immediately, and a segment between capacity and tolerance when its
overload so far has cost as much as a reshape. Segments are scaled in when fewer segments would have saved more,
within the remembered ticks, than sealing them costs. `ring_plan` weighs all runs of segments together and may
choose several actions, on disjoint segments.

Consumers are served first (`consumer_plan`): the segments of these actions are in no other action, and no other
action takes a place that a consumer needs. Of the plan, the load lane contributes the scale-outs and the merge lane
the rest. Cooldowns and the limit of merges in a segment's ancestry have no effect: the reshape cost and the budget
of reconnections replace them. A segment without a recent load report is in no action. A segment that a person keeps
apart may be split, but is in no action together with other segments.

Cuts have equal width, or follow the key histograms if all segments of a run have one. Cuts by histograms make the
fewest parts that carry the load, and a hash that is hot by itself gets its own part. The load that remains above
capacity cannot be relieved by a cut; a refusal reports this.

Costs are in segment-seconds: the cost of one segment for one second.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

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
    parts_of,
)
from controller.domain.evaluation_input import TICKS_OF_MEMORY
from controller.domain.hash_range import RING_SIZE, HashRange
from controller.domain.key_sketch import as_bins
from controller.domain.load_record import METRICS, LoadStats
from controller.domain.profiles import consumer_plan, idle_buckets, unsplittable
from controller.domain.profiles.evaluation_context import EvaluationContext
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
from controller.domain.profiles.unsplittable import STOP_TICKS
from controller.domain.split_points.fewest_parts import fewest_cuts

CODE_VERSION = "adaptive-14"

SETTLE_TICKS = 1
"""Ticks after its creation in which a segment above its capacity was made too large: it is scaled out without tolerance.
"""

TICKS_BETWEEN_LOOKS = 5
"""Ticks until the next evaluation of a topic with several segments and nothing to weigh."""

TARGET_AT_THE_CAP = 1.05
"""Load that a segment may carry when the topic may have no more segments."""

_MOST_LOAD = float(RING_SIZE)
"""Maximum load: there cannot be more parts than hashes, and infinity is not a number of parts."""

_METRIC_NAMES = ("msgRateIn", "byteRateIn", "msgRateOut", "byteRateOut")


def answer(context: EvaluationContext, lanes: Collection[Lane]) -> tuple[Decision, ...]:
    """Return the actions of the evaluated `lanes` on disjoint segments: the actions for consumers first, then the
    actions of the load plan. If there is no action and the consumer lane is evaluated, return the rebuckets that give
    up entry buckets which no consumer needs.

    Refusals are added to `context`, and the validity of the evaluation (`valid_until`) is limited there.
    """
    for_consumers = consumer_plan.answer(context) if Lane.CONSUMER in lanes else ()
    planned: tuple[Decision, ...] = ()
    if Lane.LOAD in lanes or Lane.MERGE in lanes:
        planned = _Planner(context, lanes, for_consumers).answer()
    if Lane.CONSUMER in lanes and not for_consumers and not planned:
        return idle_buckets.answer(context)
    return (*for_consumers, *planned)


def _changed_segments(actions: Sequence[Decision]) -> frozenset[int]:
    """Return the ids of the segments that the splits and rebuckets among the actions seal."""
    return frozenset(action.segment_id for action in actions if isinstance(action, Split | Rebucket))


@dataclass(slots=True)
class _PlannedAction:
    """A run as an action: its members, its cuts (the first hash of each child except the first), and the number of
    clients that have to reconnect. `buckets`: entry buckets of each child, if the child's share of the parents'
    buckets would leave a consumer without one; otherwise None.
    """

    run: Run
    cuts: tuple[int, ...]
    reconnections: float
    buckets: int | None = None

    @property
    def added(self) -> int:
        """Number of segments that the action adds; below 0 if the action removes segments."""
        return len(self.cuts) + 1 - self.run.length


class _Planner:
    """One plan of one topic. Used for one call of `answer`. To refuse a segment, a run or the topic means to add a
    refusal to the context; a refusal in a lane that is not evaluated is left out.
    """

    def __init__(
        self, context: EvaluationContext, lanes: Collection[Lane], served: Sequence[Decision]
    ) -> None:
        """Compute the inputs of the plan from `context`. `lanes`: the evaluated lanes. `served`: the actions that
        this evaluation takes for consumers; the plan leaves the segments of these actions unchanged.

        Add a refusal to the context for each segment without a load record. For segments that are in none of the
        `served` actions, also add a refusal for each stale load record, for each busy segment above its capacity, and
        for each segment above the target load whose load no cut can divide.
        """
        self._context = context
        self._lanes = lanes
        self._segments_high = context.segments_high + sum(
            parts_of(action) - 1 for action in served if isinstance(action, Split)
        )
        policy, situation = context.policy, context.situation
        self._scale = tuple(1 / limit for limit in context.thresholds.split.rates)
        self._tick_seconds = max(policy.load_memory_seconds, TICKS_OF_MEMORY) / TICKS_OF_MEMORY
        self._clients = situation.reconnections
        capabilities = situation.capabilities
        whole_ring = capabilities.recut and not capabilities.midpoint_only
        self._prices = Prices(
            target=policy.target_use,
            reseal=policy.reseal_price_segment_seconds,
            reconnections=policy.reconnection_price_segment_seconds * situation.reconnections,
            tick_seconds=self._tick_seconds,
            memory_ticks=TICKS_OF_MEMORY,
            most_parts=2 if capabilities.midpoint_only else max(2, capabilities.max_children),
            most_spared=max(0, context.segments_low - self._fewest()),
            recut=whole_ring,
            longest_run=MAX_RUN if whole_ring else 2,
            most_places=context.most_places,
            spare_places=max(0, context.count_places() - context.consumers),
        )
        self._reported: set[int] = set()
        excluded = _changed_segments(served)
        self._members = [self._member(i, excluded) for i in range(len(context.active))]

    def answer(self) -> tuple[Decision, ...]:
        """Return the actions of the evaluated lanes on disjoint segments: scale-outs first, then scale-ins, each
        group by descending urgency. Add to the context a refusal of every other segment that is above its capacity or
        could be spared, and limit the validity of the evaluation.

        If the plan exceeds the maximum number of segments, the plan is computed again with a target load of at least
        `TARGET_AT_THE_CAP` for each segment, and with a price at which hot segments get additional segments only if
        no other recut is sure to relieve them. The limits of segments, the places of consumers and the budget of
        reconnections then exclude or change actions, in this order.
        """
        plan = self._plan(self._prices)
        capacity = self._context.policy.max_segments - self._segments_high
        if sum(max(0, run.parts - run.length) for run in plan.runs) > capacity:
            target = max(TARGET_AT_THE_CAP, self._prices.target)
            scarcity = self._prices.reshape_cost(1.0, MAX_RUN)
            plan = self._plan(replace(self._prices, target=target, scarcity=scarcity))
        actions = self._within_segment_limits(self._planned_actions(plan))
        actions = self._within_reconnection_budget(self._with_places_kept(actions))
        self._explain(plan, actions)
        return tuple(self._decision(action) for action in actions)

    def _plan(self, prices: Prices) -> RingPlan:
        """Return the plan with the lowest cost under these prices."""
        edges = [segment.hash_range for segment in self._context.active]
        is_touching = [low.end + 1 == high.start for low, high in pairwise(edges)]
        return plan_ring(self._members, prices, is_touching.__getitem__)

    # The inputs of the plan

    def _member(self, i: int, excluded: frozenset[int]) -> Member:
        """Return the segment at index `i` as an input of the plan.

        The segment is excluded from all runs in five cases, which are checked in this order. First, the segment has
        no load record, or the record has no rate that was measured; then the segment is refused. Second, its id is in
        `excluded`. Third, the load record is stale; then the segment is refused. Fourth, the segment is busy; then
        the segment is refused if its load exceeds the capacity. Fifth, the load is above the target load and no cut
        can divide the load; then the segment is refused.

        The present load is the newest remembered load. If nothing is remembered, or the segment is in `excluded`, the
        present load is that of the load record; without a load record the present load is 0.

        The evaluation is valid at most until the fresh load record becomes stale. If the segment may be in a run but
        a person keeps the segment apart, the evaluation is also valid at most until that time ends.
        """
        context = self._context
        segment, record = context.active[i], context.records[i]
        context.wake_when_stale(record)
        width = segment.hash_range.width / RING_SIZE
        load = math.nan if record is None else self._load_of(record.stats)
        if math.isnan(load) or record is None:
            self._refuse(i, RefusalReason.NO_LOAD_RECORD)
            return Member(0.0, width, (0.0,), is_excluded=True)
        if segment.segment_id in excluded:
            return Member(load, width, (load,), is_excluded=True)
        ticks = self._ticks(segment.segment_id, load)
        load = ticks[0]
        if context.is_stale(record):
            context.refuse_stale(self._lane(load), i)
            return Member(load, width, ticks, is_excluded=True)
        if segment.segment_id in context.busy:
            if load > 1:
                context.refuse_busy(self._lane(load), segment.segment_id)
            return Member(load, width, ticks, is_excluded=True)
        if load > self._prices.target and self._is_unsplittable(i, load):
            return Member(load, width, ticks, is_excluded=True)
        hot = load > 1 and self._is_hot(i, load, width, ticks)
        pause = context.kept.get(segment.segment_id)
        if pause is not None:
            context.wake_at(pause.ends_at)
        return Member(
            load,
            width,
            ticks,
            hot=hot,
            has_histogram=segment.segment_id in context.situation.sketches,
            is_kept_apart=pause is not None,
            places=context.places_of(segment.bucket_count),
        )

    def _load_of(self, stats: LoadStats) -> float:
        """Return the load as a share of the capacity: the largest of the measured rates as shares of their split
        thresholds, at most `_MOST_LOAD`. NaN if nothing was measured.
        """
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
        """Return the remembered loads, newest first, as shares of the capacity, of at most `TICKS_OF_MEMORY` ticks; for
        a segment without memory only `load`, that of its load record. A tick counts as `load` if its incoming message
        rate is NaN, if none of its rates is 0 or more, or if its load is `RING_SIZE` or more.
        """
        remembered = self._context.situation.recent_loads.get(segment_id)
        if not remembered:
            return [load]
        a, b, c, d = self._scale
        ticks = []
        for stats in reversed(remembered[-TICKS_OF_MEMORY:]):
            highest = stats.msg_rate_in * a
            share = stats.byte_rate_in * b
            if share > highest:
                highest = share
            share = stats.msg_rate_out * c
            if share > highest:
                highest = share
            share = stats.byte_rate_out * d
            if share > highest:
                highest = share
            ticks.append(highest if 0 <= highest < RING_SIZE else min(max(load, 0.0), _MOST_LOAD))
        return ticks

    def _is_unsplittable(self, i: int, load: float) -> bool:
        """Return True if no cut can divide the segment's load: the load is on one hash, or the segment has no key
        histogram, consecutive cuts left nearly all of the load in one part and the next attempt is not due. In both
        cases add a refusal of the segment to the context. In the second case the refusal, and the validity of the
        evaluation, end when the next attempt is due. `load` is the segment's load as a share of the capacity.
        """
        context = self._context
        segment = context.active[i]
        if unsplittable.is_on_one_hash(context, segment):
            self._refuse(i, RefusalReason.UNSPLITTABLE, "load", load, 1.0)
            return True
        next_cut_at = unsplittable.next_cut_at(context, segment, self._ms(STOP_TICKS))
        if next_cut_at is not None:
            self._refuse(i, RefusalReason.UNSPLITTABLE, "load", load, 1.0, next_cut_at)
        return next_cut_at is not None

    def _is_hot(self, i: int, load: float, width: float, ticks: Sequence[float]) -> bool:
        """Return True if the segment must be scaled out at once. One of three conditions suffices: the load exceeds
        the capacity by more than `overload_tolerance`; the segment's range was cut at most `SETTLE_TICKS` ticks ago
        (`_has_new_range`); or the overload has already cost as much as a reshape that adds a segment. If the second
        condition decides, the evaluation is valid at most until these ticks are over.

        The caller has checked that `load`, the segment's load as a share of the capacity, is above 1. `width` is the
        segment's share of the ring. `ticks` has the remembered loads, newest first.
        """
        context = self._context
        created_at = context.active[i].created_at_ms
        if load > 1 + context.policy.overload_tolerance:
            return True
        is_settling = created_at > 0 and context.now - created_at <= self._ms(SETTLE_TICKS)
        if is_settling and self._has_new_range(i):
            context.wake_at(created_at + self._ms(SETTLE_TICKS) + 1)
            return True
        return self._overload_cost(ticks) >= self._prices.reshape_cost(width, 1) + self._prices.segment

    def _has_new_range(self, i: int) -> bool:
        """Return True if the segment at index `i` has another range than its parents: it has several parents, or a
        neighbour has the same parent. A rebucket and a repair leave the range as it is.
        """
        active = self._context.active
        parent_ids = active[i].parent_ids
        neighbours = (*active[max(0, i - 1) : i], *active[i + 1 : i + 2])
        return len(parent_ids) > 1 or any(
            not set(parent_ids).isdisjoint(neighbour.parent_ids) for neighbour in neighbours
        )

    def _overload_cost(self, ticks: Sequence[float]) -> float:
        """Return the cost of the current overload since it began, in segment-seconds; 0 without an overload. The
        overload is the load above the segment's capacity in the newest ticks, up to the first tick without. `ticks`
        are shares of the capacity, newest first.
        """
        excess = 0.0
        for load in ticks:
            if load <= 1:
                break
            excess += load - 1
        return OVERLOAD_WEIGHT * self._tick_seconds * excess

    # The actions of the plan that may be performed

    def _planned_actions(self, plan: RingPlan) -> list[_PlannedAction]:
        """Return the actions for those runs of the plan whose lane is evaluated: scale-outs first, then scale-ins,
        each group by descending urgency. A run is refused instead if its cuts would have no effect (`_cuts`), or if a
        child would be split again (`_would_split_again`).
        """
        actions = []
        for run in plan.runs:
            if (Lane.LOAD if run.is_scale_out else Lane.MERGE) not in self._lanes:
                continue
            cuts = self._cuts(run)
            if cuts is not None and not self._would_split_again(run, cuts):
                actions.append(_PlannedAction(run, cuts, self._clients * run.length))
        return sorted(actions, key=lambda action: (not action.run.is_scale_out, -self._urgency(action)))

    def _cuts(self, run: Run, most_parts: int | None = None) -> tuple[int, ...] | None:
        """Return the cuts of the run, a row of adjacent segments (its members) that the plan replaces together: the
        first hash of each child except the first. An empty result joins the members into one segment.

        If a member has no key histogram, the children have equal widths. Their number is the planned number, but at
        most `most_parts` (None: no further limit) and at most the number of hashes.

        If all members have a key histogram, the cuts make the fewest children that carry the load at the target load,
        which may be more or fewer than planned. They are at least as many as the run may get (`Run.fewest`), and at
        most `most_parts` (None: the data plane's maximum). If that many do not suffice, the cuts make this number of
        children and the greatest load of a child as small as possible.

        If, by the key histograms, a scale-out would leave the boundaries as they are, or a scale-in would not make
        fewer segments, refuse the run (`_refuse_ineffective`) and return None.
        """
        union = self._union(run)
        parts = min(run.parts, union.width, most_parts or run.parts)
        members = range(run.first, run.first + run.length)
        if not all(self._members[i].has_histogram for i in members):
            return union.equal_cuts(parts)
        sketches, active = self._context.situation.sketches, self._context.active
        bins = [
            load_bin
            for i in members
            for load_bin in as_bins(
                active[i].hash_range, sketches[active[i].segment_id], self._members[i].load
            )
        ]
        at_most = most_parts or self._prices.most_parts
        cuts = fewest_cuts(bins, self._prices.target, at_least=min(run.fewest, at_most), at_most=at_most)
        unchanged = list(cuts) == [active[i].hash_range.start for i in members[1:]]
        if (
            (not run.is_scale_out and len(cuts) + 1 >= run.length)
            or (unchanged and run.length > 1)
            or not (cuts or run.length > 1)
        ):
            self._refuse_ineffective(run)
            return None
        return cuts

    def _would_split_again(self, run: Run, cuts: tuple[int, ...]) -> bool:
        """Return True, and refuse the run, if its scale-in into several segments would create a segment whose load
        exceeds the capacity. The load of each member is assumed to be even over the member's range. Return False for
        a scale-out, for a scale-in into one segment, and if no child exceeds the capacity. Also return False if the
        cuts follow the key histograms and their number was not limited, because only a child of a single bin then
        exceeds the target load. `cuts`: the first hash of each child except the first.
        """
        if run.is_scale_out or not cuts:
            return False
        members = self._members[run.first : run.first + run.length]
        if len(cuts) + 1 < self._prices.most_parts and all(member.has_histogram for member in members):
            return False
        ranges = [segment.hash_range for segment in self._context.active[run.first : run.first + run.length]]
        for child in self._union(run).cut_many(cuts):
            load = sum(
                member.load * max(0, min(child.end, own.end) - max(child.start, own.start) + 1) / own.width
                for member, own in zip(members, ranges, strict=True)
            )
            if load > 1:
                self._refuse_run(run, RefusalReason.WOULD_SPLIT_AGAIN, "load", load, 1.0)
                return True
        return False

    def _refuse_ineffective(self, run: Run) -> None:
        """Refuse a run whose cuts by the key histograms would not help. A scale-out, which would not reduce the load of
        any segment, is refused as UNSPLITTABLE for its hottest segment; a scale-in, which would need as many parts
        again, as WOULD_SPLIT_AGAIN for all its segments. `_explain` adds no further refusal for these segments.
        """
        members = range(run.first, run.first + run.length)
        hottest = max(members, key=lambda i: self._members[i].load)
        load = self._members[hottest].load
        if run.is_scale_out:
            self._reported.add(hottest)
            self._refuse(hottest, RefusalReason.UNSPLITTABLE, "load", load, 1.0)
        else:
            self._refuse_run(run, RefusalReason.WOULD_SPLIT_AGAIN, "segments", run.length, run.parts)

    def _urgency(self, action: _PlannedAction) -> float:
        """Return the gain of the action divided by 1 plus the number of clients that have to reconnect. The gain of a
        scale-in is its saving in segment-seconds. The gain of a scale-out is the sum of the loads beyond the capacity
        of each of its segments.
        """
        run = action.run
        gain = run.saved or sum(
            max(0.0, m.load - 1) for m in self._members[run.first : run.first + run.length]
        )
        return gain / (1 + action.reconnections)

    def _union(self, run: Run) -> HashRange:
        """Return the hash range that the segments of the run cover together."""
        active = self._context.active
        return HashRange(
            active[run.first].hash_range.start, active[run.first + run.length - 1].hash_range.end
        )

    def _within_segment_limits(self, actions: Sequence[_PlannedAction]) -> list[_PlannedAction]:
        """Return the actions, in their order, that respect the minimum and maximum number of segments even if some
        running reshapes, or some of these actions, fail. Each action that adds segments reduces the number that later
        actions may add, and each action that removes segments reduces the number that later actions may remove.

        A scale-out that would exceed the maximum gets fewer cuts; its cuts are changed in place. The scale-out is
        refused if no segment may be added. An action that adds no segment never exceeds the maximum. An action that
        would leave fewer segments than the minimum is refused.
        """
        context = self._context
        capacity = context.policy.max_segments - self._segments_high
        spare = context.segments_low - self._fewest()
        accepted = []
        for action in actions:
            run = action.run
            if action.added > max(0, capacity):  # above the maximum, actions that add no segment are accepted
                if capacity < 1:
                    self._refuse_run(
                        run,
                        RefusalReason.AT_MAX_SEGMENTS,
                        "segments",
                        self._segments_high,
                        context.policy.max_segments,
                    )
                    continue
                action.cuts = self._cuts(run, run.length + capacity) or ()
            if -action.added > spare:
                self._refuse_run(run, *self._why_not_fewer(self._fewest() + spare, -action.added))
                continue
            capacity -= max(0, action.added)
            spare += min(0, action.added)
            accepted.append(action)
        return accepted

    def _with_places_kept(self, actions: Sequence[_PlannedAction]) -> list[_PlannedAction]:
        """Return the actions after which every consumer that has a place still has a place. Without shared buckets,
        or without consumers, all actions are returned unchanged. The buckets of actions are changed in place.

        If an action would leave too few places, its children get more entry buckets. The action is refused if the
        maximum number of entry buckets does not suffice either. That happens to a scale-out, which has enough
        children for its places by plan, only if a limit lowered their number or an earlier action took spare places.
        """
        context = self._context
        if not context.shared_buckets or not context.consumers:
            return list(actions)
        places = context.count_places()
        served = min(context.consumers, places)
        spare, accepted = places - served, []
        for action in actions:
            before, share = self._places_of(action)
            children = len(action.cuts) + 1
            lost = before - children * share
            if lost > spare:
                buckets = math.ceil((before - spare) / children)
                if buckets > context.most_places:
                    self._refuse_run(
                        action.run, RefusalReason.WOULD_IDLE_CONSUMER, "places", places - lost, served
                    )
                    continue
                action.buckets = buckets
                lost = before - children * buckets
            spare -= max(0, lost)
            accepted.append(action)
        return accepted

    def _places_of(self, action: _PlannedAction) -> tuple[int, int]:
        """Return the number of consumers that the segments of the action can serve, and the number that each child can
        serve with its share of their entry buckets.
        """
        context, run = self._context, action.run
        counts = [segment.bucket_count for segment in context.active[run.first : run.first + run.length]]
        share = min(sum(counts) // (len(action.cuts) + 1), context.policy.entry_bucket_max_per_segment)
        before = sum(map(context.places_of, counts))
        return before, context.places_of(max(1, share))

    def _fewest(self) -> int:
        """Return the number of segments below which the plan must not go: the policy's minimum or, if it is larger, the
        number that consumers need, of which at most the present number of segments counts.
        """
        context = self._context
        return max(
            context.policy.min_segments, min(consumer_plan.segments_to_keep(context), context.segments_net)
        )

    def _within_reconnection_budget(self, actions: Sequence[_PlannedAction]) -> list[_PlannedAction]:
        """Return the actions, in their order, for which the budgets of the topic and of the cluster suffice. Refuse
        every other action until both budgets will suffice. Without a budget all actions are returned.

        Each accepted action reduces both budgets by its number of reconnecting clients. An action may need more clients
        than the whole budget of one minute, which is `reconnections_per_minute` or
        `cluster_reconnections_per_minute`, whichever is smaller. Such an action is accepted as soon as a whole budget
        is left.
        """
        left, rates = self._reconnection_budgets()
        if not left:
            return list(actions)
        accepted = []
        for action in actions:
            needed = min(action.reconnections, *rates)
            if needed <= min(left):
                left = [budget - action.reconnections for budget in left]
                accepted.append(action)
                continue
            waits_ms = [
                (needed - budget) / rate * 60_000
                for budget, rate in zip(left, rates, strict=True)
                if budget < needed
            ]
            self._refuse_run(
                action.run,
                RefusalReason.RECONNECTION_BUDGET,
                "reconnections",
                action.reconnections,
                max(0.0, min(left)),
                self._context.now + math.ceil(max(waits_ms)),
            )
        return accepted

    def _reconnection_budgets(self) -> tuple[list[float], list[float]]:
        """Return the remaining reconnections of the topic and of the cluster, and the rates per minute at which the two
        budgets grow. If only the smaller remainder is known, return that with the smaller rate. Without a limit both
        lists are empty.
        """
        situation, policy = self._context.situation, self._context.policy
        of_topic, of_cluster = situation.reconnections_left, situation.cluster_reconnections_left
        rates = [policy.reconnections_per_minute, policy.cluster_reconnections_per_minute]
        if of_topic is None:
            return [], []
        if of_cluster is None:
            return [of_topic], [min(rates)]
        return [of_topic, of_cluster], rates

    # The decisions and refusals

    def _decision(self, action: _PlannedAction) -> Decision:
        """Return the action as a split of one segment, a merge of two segments into one, or else a recut. The reason
        of a scale-in is `cold`. The reason of a scale-out, which relieves a hot segment but need not add segments, is
        the metric whose rate is the largest share of its split threshold on any segment of the run.
        """
        run, active = action.run, self._context.active
        ids = tuple(segment.segment_id for segment in active[run.first : run.first + run.length])
        reason = self._hottest_metric(run) if run.is_scale_out else COLD
        if len(ids) == 1:
            at = () if self._context.situation.capabilities.midpoint_only else action.cuts
            return Split(ids[0], at, reason, buckets=action.buckets)
        if len(ids) == 2 and not action.cuts:
            return Merge(*ids, reason)
        return Recut(ids, action.cuts, reason, action.buckets)

    def _hottest_metric(self, run: Run) -> str:
        """Return Pulsar's name of the metric with the highest rate of any segment of the run, as a share of the split
        threshold. A rate that was not measured does not count.
        """
        records = self._context.records[run.first : run.first + run.length]
        measured = [
            [rate for r in records if r is not None and not math.isnan(rate := r.stats.rates[i])]
            for i in range(len(METRICS))
        ]
        shares = [max(rates, default=0.0) * scale for rates, scale in zip(measured, self._scale, strict=True)]
        return _METRIC_NAMES[max(range(len(METRICS)), key=shares.__getitem__)]

    def _explain(self, plan: RingPlan, actions: Sequence[_PlannedAction]) -> None:
        """Add a refusal to the context for each segment that is above its capacity or could be spared, unless the
        segment is in one of `actions`, has a refusal already, or is excluded from all runs. A scale-in gets one
        refusal for all its segments. If the topic needs fewer segments but has the minimum number, refuse a scale-in
        for the whole topic.

        Limit the validity of the evaluation to one tick if there is an action, or a refusal that does not concern an
        excluded segment. Otherwise limit the validity to `TICKS_BETWEEN_LOOKS` ticks if the topic has several
        segments.
        """
        changed = {
            i for action in actions for i in range(action.run.first, action.run.first + action.run.length)
        }
        is_pending = bool(actions or self._reported)
        explained: set[tuple[int, int]] = set()
        for i, member in enumerate(self._members):
            if i in changed or i in self._reported or member.is_excluded:
                continue
            if member.load > 1:
                is_pending = True
                self._refuse(i, RefusalReason.TOLERATED_OVERLOAD, "segment_seconds", self._overload_cost(member.ticks),
                             self._prices.reshape_cost(member.width, 1) + self._prices.segment)  # fmt: skip
            elif (candidate := plan.best_scale_ins.get(i)) is not None:
                is_pending = True
                if (candidate.first, candidate.length) not in explained:
                    explained.add((candidate.first, candidate.length))
                    self._refuse_saving(candidate)
        if self._refuses_fewer() or is_pending:
            self._wake_after(1)
        elif len(self._members) > 1:  # a load that falls slowly does not trigger an evaluation
            self._wake_after(TICKS_BETWEEN_LOOKS)

    def _wake_after(self, ticks: int) -> None:
        """Limit the validity of the evaluation to this number of ticks from now."""
        self._context.wake_at(self._context.now + self._ms(ticks))

    def _ms(self, ticks: int) -> int:
        """Return the length of this number of ticks in milliseconds, rounded up."""
        return math.ceil(ticks * self._tick_seconds * 1000)

    def _refuse_saving(self, candidate: Candidate) -> None:
        """Add a refusal of the scale-in `candidate` in the merge lane. Does nothing if the merge lane is not
        evaluated.

        The reason is SAVING_BELOW_PRICE if the saving does not exceed the cost. If the saving exceeds the cost, the
        reason is KEPT_APART if a person keeps a segment of the candidate apart, and otherwise OTHER_ACT, because
        another action was worth more.
        """
        if Lane.MERGE not in self._lanes:
            return
        active = self._context.active
        is_worthwhile = candidate.saved > candidate.price  # but another action was worth more
        if is_worthwhile and candidate.is_kept_apart:
            self._refuse_kept(
                [
                    segment.segment_id
                    for segment in active[candidate.first : candidate.first + candidate.length]
                ]
            )
            return
        self._context.refuse(
            Refusal(
                segment_id=active[candidate.first].segment_id,
                lane=Lane.MERGE,
                reason=RefusalReason.OTHER_ACT if is_worthwhile else RefusalReason.SAVING_BELOW_PRICE,
                metric=None if is_worthwhile else "segment_seconds",
                value=None if is_worthwhile else round(candidate.saved, 3),
                needed=None if is_worthwhile else round(candidate.price, 3),
                other_id=active[candidate.first + candidate.length - 1].segment_id,
            )
        )

    def _refuse_kept(self, ids: Sequence[int]) -> None:
        """Refuse the scale-in of these adjacent segments because a person keeps some of them apart: name the segment
        that is kept apart for the longest time. Does nothing if no segment is kept apart.
        """
        kept_id = self._context.kept_longest(ids)
        if kept_id is not None:
            other_id = ids[0] if kept_id != ids[0] else ids[-1]
            self._context.refuse_during(self._context.kept[kept_id], Lane.MERGE, kept_id, other_id)

    def _refuses_fewer(self) -> bool:
        """Return True, and add a refusal of a scale-in for the whole topic, if fewer segments would suffice for the
        load but no segment may be removed, because the policy or the consumers need all of them (`_fewest`). Return
        False, and add nothing, if this is not the case or if the merge lane is not evaluated.
        """
        context = self._context
        sufficient = math.ceil(sum(member.load for member in self._members) / self._prices.target)
        if self._prices.most_spared or sufficient >= len(self._members) or Lane.MERGE not in self._lanes:
            return False
        context.refuse(Refusal(None, Lane.MERGE, *self._why_not_fewer(context.segments_low, 1)))
        return True

    def _why_not_fewer(self, segments: int, removed: int) -> tuple[RefusalReason, str, int, int]:
        """Return reason, metric, value and needed value of the refusal to remove `removed` of `segments` segments. If
        consumers need the segments, the value is the number of segments that would remain, called places, and the number
        needed is that of `_fewest`. Otherwise the value is `segments`, and the needed value is the largest number of
        segments for which the removal is refused.
        """
        fewest = self._fewest()
        if fewest > self._context.policy.min_segments:
            return RefusalReason.WOULD_IDLE_CONSUMER, "places", segments - removed, fewest
        return RefusalReason.AT_MIN_SEGMENTS, "segments", segments, fewest + removed - 1

    def _lane(self, load: float) -> Lane:
        """Return the lane that reports a segment with this load: the load lane for a hot segment, the merge lane for
        others; the other lane if this lane is not evaluated.
        """
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
        """Refuse the run, named by its first and last segment, in the load lane for a scale-out and in the merge lane
        for a scale-in. Its segments then count as reported, so `_explain` adds no refusal for them. The other
        parameters are fields of `Refusal`.
        """
        active = self._context.active
        self._reported.update(range(run.first, run.first + run.length))
        self._context.refuse(
            Refusal(
                segment_id=active[run.first].segment_id,
                lane=Lane.LOAD if run.is_scale_out else Lane.MERGE,
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
        """Refuse the segment at index `i` in the load lane. Does nothing if this lane is not evaluated. The other
        parameters are fields of `Refusal`.
        """
        if Lane.LOAD in self._lanes:
            self._context.refuse(
                Refusal(
                    self._context.active[i].segment_id, Lane.LOAD, reason, metric, value, needed, not_before
                )
            )
