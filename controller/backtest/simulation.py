"""One topic under one rule: a load series is run through the rule's own `decide`, over a real layout.

Time has two units. The series has steps; every `tick_seconds` the rule is evaluated. The rule gets the load of the
window that ends at the tick, kept as load records by the rule of the aggregation (`records`), so it knows nothing
of the future. The planners of the domain plan its actions, which take effect `actuation_seconds` later, rounded up
to whole steps. Until then the reshape is running and its parents still take the load. Reshapes never fail here.

A reactive rule is evaluated only where its answer can differ (`_next_look`); every other rule at each tick.
`ask_always` evaluates at each tick, which gives the same actions and serves as a check.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from controller.backtest.arrays import Floats, Wholes
from controller.backtest.load_series import LoadSeries
from controller.backtest.observation import Grain
from controller.backtest.observation_modes import observe
from controller.backtest.rule import Rule
from controller.backtest.spread import Spread
from controller.domain.decision import Evaluation
from controller.domain.errors import InvalidInput, InvariantViolated
from controller.domain.evaluation_input import Capabilities, EvaluationInput, History, LiveReshape
from controller.domain.hash_range import RING_SIZE, HashRange
from controller.domain.layout import SegmentLayout
from controller.domain.load_record import LoadStats
from controller.domain.reshape import Reshape, ReshapeKind, plan_action

EVERYTHING = Capabilities(max_children=RING_SIZE, recut=True, shared_buckets=True)
"""A data plane that can perform every action of a rule."""

_SPLITTING = (ReshapeKind.SPLIT, ReshapeKind.RECUT)
_MERGING = (ReshapeKind.MERGE, ReshapeKind.RECUT)


@dataclass(frozen=True, eq=False)
class Conditions:
    """The conditions of a simulation besides the load.

    Every `report_seconds` (None: every tick) the load of the last `window_seconds` is observed, and every
    `tick_seconds` the rule is evaluated: multiples of the series' step, and a tick is a multiple of a report.
    `consumers[step]`: number of registered consumers; None if the topic has no such subscription. They share the
    segments. `clients`: number of other clients, such as producers, that are connected to every segment. If there are
    consumers or clients, actions use the topic's budget of reconnections per minute. `sketches`: True if the rule gets
    the key histogram of each segment, if the series has one. `retention_seconds`: time after which sealed segments are
    removed, when the next reshape takes effect. `actuation_seconds`: time from a decision until its reshape takes
    effect, rounded up to whole steps; a rule with an `actuation_seconds` of its own uses that instead.
    """

    tick_seconds: int = 60
    window_seconds: int = 60
    report_seconds: int | None = None
    actuation_seconds: float = 0.0
    initial_segments: int = 1
    retention_seconds: int = 3_600
    capabilities: Capabilities = EVERYTHING
    consumers: Wholes | None = None
    clients: int = 0
    sketches: bool = False


@dataclass(frozen=True, slots=True)
class Act:
    """A reshape that was performed: requested at the end of step `asked`, in effect from step `begins` on.

    `child_loads`: the load that each child takes over, in capacities, at the time of the request. `reconnections`:
    number of clients of the parents that have to reconnect.
    """

    asked: int
    begins: int
    kind: ReshapeKind
    parent_ids: tuple[int, ...]
    parents: tuple[HashRange, ...]
    children: tuple[HashRange, ...]
    child_loads: tuple[float, ...]
    reconnections: int
    reason: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The evaluation at the end of step `step`, which applies until the next verdict. `ids`: the segments that were
    active then.
    """

    step: int
    ids: tuple[int, ...]
    evaluation: Evaluation


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps from `begins` to before the next stretch, with one layout: the active segments' ids and ranges."""

    begins: int
    ids: tuple[int, ...]
    ranges: tuple[HashRange, ...]


@dataclass(frozen=True, eq=False)
class Simulation:
    """The course of a simulation. The arrays have one entry per step; loads are in capacities of a segment.

    `segments` is the number of active segments, `max_load` the largest load of a segment, `excess` the sum over
    segments of the load above 1, `overloaded` the number of segments above 1. `tick_load` and `tick_warmth` have one
    entry per tick: the topic's load as observed, in capacities and in merge thresholds; NaN without an observation.
    `verdicts` has each evaluation that differs from its predecessor. `looks` is the number of evaluations. `acts` are the
    reshapes that took effect, and `running` those still running at the end.
    """

    series: LoadSeries
    spread: Spread
    rule: Rule
    conditions: Conditions
    segments: Wholes
    max_load: Floats
    excess: Floats
    overloaded: Wholes
    acts: tuple[Act, ...]
    running: tuple[Act, ...]
    tick_load: Floats
    tick_warmth: Floats
    verdicts: tuple[Verdict, ...]
    stretches: tuple[Stretch, ...]
    looks: int

    def shares(self, stretch: Stretch, ticks: slice) -> Floats:
        """Return `[tick, segment]`: the part (0..1) of the topic's load on each segment of the stretch at the ends of the
        ticks from `ticks.start` to before `ticks.stop`; neither may be None. If the series distributes its keys in the
        same way at all steps, there is one row for all ticks.
        """
        per_tick = self.conditions.tick_seconds // self.series.step_seconds
        ends = np.arange(ticks.start, ticks.stop) * per_tick + per_tick - 1
        return self.spread.shares(stretch.ranges, ends)

    @property
    def refusals(self) -> Counter[str]:
        """Number of refusals by reason, over all evaluations that differ from their predecessor."""
        return Counter(
            refusal.reason.value for verdict in self.verdicts for refusal in verdict.evaluation.refusals
        )


def spans_of(stretches: Sequence[Stretch], steps: int) -> Iterator[tuple[Stretch, slice]]:
    """Yield each stretch that has a step, with the span of its steps. `stretches` are in the order of time; `steps`: number of
    steps of the series, before which the last stretch ends.
    """
    ends = [*(stretch.begins for stretch in stretches[1:]), steps]
    for stretch, end in zip(stretches, ends, strict=True):
        if stretch.begins < min(end, steps):
            yield stretch, slice(stretch.begins, min(end, steps))


def segment_figures(
    series: LoadSeries, spread: Spread, stretches: Sequence[Stretch], capacity: LoadStats
) -> dict[str, Any]:
    """Return the figures of each step by their names in `Simulation`: `segments`, `max_load`, `excess` and `overloaded`, counted in
    segments of the given capacity (rates above 0).
    """
    topic_load = series.load(capacity.rates)
    segments, overloaded = np.zeros((2, series.steps), dtype=np.int64)
    max_load, excess = np.zeros((2, series.steps))
    for stretch, span in spans_of(stretches, series.steps):
        loads = topic_load[span, None] * spread.shares(stretch.ranges, span)
        excess_by_segment = np.maximum(loads - 1.0, 0.0)
        segments[span] = len(stretch.ids)
        max_load[span] = loads.max(axis=1)
        excess[span] = excess_by_segment.sum(axis=1)
        overloaded[span] = (excess_by_segment > 0).sum(axis=1)
    return {"segments": segments, "max_load": max_load, "excess": excess, "overloaded": overloaded}


def simulate(
    series: LoadSeries, rule: Rule, conditions: Conditions | None = None, *, ask_always: bool = False
) -> Simulation:
    """Run the rule on the series and return the course. `conditions` None stands for the default conditions. `ask_always`:
    evaluate at every tick even a reactive rule, which gives the same actions. Raises InvalidInput unless the tick, the window and a
    report are multiples of the series' step, and the tick of a report; InvalidLayoutChange for a wrong number of
    initial segments; SegmentNotFound or InvalidLayoutChange for an action that does not fit the layout; and
    InvariantViolated for an action on a segment in a running reshape.
    """
    run = _Run(series, rule, conditions or Conditions(), every_tick=ask_always or not rule.is_reactive)
    run.go()
    return run.result()


@dataclass(slots=True)
class _Pending:
    """A running reshape, with the segments that it creates."""

    live: LiveReshape
    planned: Reshape
    begins: int
    act: Act


@dataclass(slots=True)
class _Progress:
    """The actions and evaluations so far. `looks` is the number of evaluations."""

    acts: list[Act] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)
    looks: int = 0


class Budget:
    """The number of clients that may still be made to reconnect: a token bucket, as the store keeps it for each topic. It
    starts full, holds at most `per_minute` and regains `per_minute` per minute. Instants must not decrease.
    """

    def __init__(self, per_minute: float) -> None:
        self.per_minute = per_minute
        self.tokens, self.counted_at = per_minute, 0

    def left(self, now: int) -> float:
        """Return the budget at this instant, milliseconds since the Unix epoch: the number of clients that may
        still be made to reconnect; negative while it is overdrawn.
        """
        return min(self.per_minute, self.tokens + self.per_minute * (now - self.counted_at) / 60_000)

    def spend(self, now: int, reconnections: float) -> None:
        """Subtract the reconnections of an action from the budget, even if the budget is smaller. `now`: milliseconds since the
        Unix epoch.
        """
        self.tokens, self.counted_at = self.left(now) - reconnections, now


class _Run:
    """The state of a simulation between ticks. A tick is identified by its index; tick i is the end of step `(i + 1) *
    steps_per_tick - 1`.
    """

    def __init__(self, series: LoadSeries, rule: Rule, conditions: Conditions, *, every_tick: bool) -> None:
        """Prepare the run; `go` runs it. `every_tick`: True to evaluate the rule at every tick, False to evaluate it only
        where its answer can differ. Raises InvalidInput for times that are not multiples of their unit, and
        InvalidLayoutChange for a wrong number of initial segments.
        """
        self.series, self.rule, self.conditions = series, rule, conditions
        self.steps_per_tick = _multiple(conditions.tick_seconds, series.step_seconds, "tick_seconds")
        self.ticks = series.steps // self.steps_per_tick
        self.tick_ms = conditions.tick_seconds * 1000
        delay = conditions.actuation_seconds if rule.actuation_seconds is None else rule.actuation_seconds
        self.delay_steps = -int(-delay // series.step_seconds)
        self.layout = SegmentLayout.initial(
            conditions.initial_segments,
            bucket_budget=rule.policy.entry_bucket_budget,
            max_buckets=rule.policy.entry_bucket_max_per_segment,
            now=series.start_ms,
        )
        self.spread = Spread.of(series)
        self.observation = observe(
            series,
            rule,
            _grain(conditions, series.step_seconds),
            self.spread,
            every_tick=every_tick,
            has_consumers=conditions.consumers is not None,
        )
        self.observation.relayout(self.layout, -1)
        self.skips = self.observation.can_look_ahead and not every_tick
        self.consumers = _at_ticks(conditions.consumers, self.steps_per_tick, self.ticks)
        self.pending: list[_Pending] = []
        self.history = History()
        self.next_id = self.layout.next_segment_id
        self.next_operation = 1
        self.budget = Budget(rule.policy.reconnections_per_minute)
        self.progress = _Progress()
        self._note_stretch(0)

    def go(self) -> None:
        """Run from the first tick to the last, at all of them or only where the rule's answer can differ. Call once. Raises
        the errors of `_evaluate`.
        """
        tick = 0
        while tick < self.ticks:
            changed = self._evaluate(tick)
            tick = self._next_look(tick) if self.skips and not changed else tick + 1

    def instant(self, tick: int) -> int:
        """Return the end of the tick in milliseconds since the Unix epoch."""
        return self.series.start_ms + (tick + 1) * self.tick_ms

    def step_after(self, tick: int) -> int:
        """Return the first step that a decision of this tick can change."""
        return (tick + 1) * self.steps_per_tick

    def _evaluate(self, tick: int) -> bool:
        """Evaluate the rule at this tick: add the measurements, commit the reshapes that are due, and begin the
        reshapes that the rule chooses, which take effect at once if there is no actuation time. If the rule chooses an
        action while reports are deferred (`settle`), its answer with these reports counts instead. Return True if the
        rule took an action, or if a running reshape was committed. Raises the planners' errors, and the errors of
        `_begin`.
        """
        self.observation.advance(tick)  # before the layout changes, because the reports are of the old layout
        has_changed = self._commit_due(tick)
        situation = self._situation(tick)
        evaluation = self.rule.decide(situation)
        # The sides decide whether there is an action, the rates decide on which segments.
        if evaluation.decisions and self.observation.settle():
            situation = replace(situation, loads=self.observation.records(tick))
            evaluation = self.rule.decide(situation)
        progress = self.progress
        progress.looks += 1
        if not progress.verdicts or progress.verdicts[-1].evaluation != evaluation:
            ids = self.observation.ids
            progress.verdicts.append(Verdict(self.step_after(tick) - 1, ids, evaluation))
        for act in evaluation.decisions:
            reshape = plan_action(
                act, self._reserving(), max_buckets=self.rule.policy.entry_bucket_max_per_segment
            )
            self._begin(tick, reshape, act.reason, situation.clients)
        if evaluation.decisions:
            has_changed = True
            if not self.delay_steps:
                self._commit_due(tick)
        return has_changed

    def _situation(self, tick: int) -> EvaluationInput:
        """Return the input of the evaluation at this tick. `clients` is the number of other clients, plus the consumers divided
        by the segments and rounded up; `reconnections_left` is None without clients.
        """
        consumers, changed_at = self._consumers_at(tick)
        sharing = -(-sum(consumers.values()) // len(self.layout.active))
        clients = self.conditions.clients + sharing
        now = self.instant(tick)
        return EvaluationInput(
            layout=self.layout,
            loads=self.observation.records(tick),
            recent_loads=self.observation.recent_loads(),
            stream_consumers=consumers,
            policy=self.rule.policy,
            history=self.history,
            in_flight=tuple(pending.live for pending in self.pending),
            capabilities=self.conditions.capabilities,
            consumers_changed_at=changed_at,
            clients=clients,
            reconnections_left=self.budget.left(now) if clients else None,
            strikes=self.observation.strikes(),
            sketches=self.observation.sketches(tick) if self.conditions.sketches else {},
            now=now,
        )

    def _consumers_at(self, tick: int) -> tuple[dict[str, int], int | None]:
        """Return the number of consumers by subscription (there is one, named `subscription`) at this tick, and the end of the
        tick since which the number is the same, in milliseconds since the Unix epoch; the start of the series if the number
        never changed. An empty dict and None if the conditions give no consumers.
        """
        if self.consumers is None:
            return {}, None
        counts = self.consumers[: tick + 1]
        changes = np.flatnonzero(np.diff(counts))
        since = self.instant(int(changes[-1]) + 1) if len(changes) else self.series.start_ms
        return {"subscription": int(counts[-1])}, since

    def _reserving(self) -> SegmentLayout:
        """Return the layout with a next segment id that no running reshape has reserved."""
        if self.next_id == self.layout.next_segment_id:
            return self.layout
        return replace(self.layout, next_segment_id=self.next_id)

    def _begin(self, tick: int, planned: Reshape, reason: str, clients: int) -> None:
        """Begin the planned reshape: reserve its ids, spend its reconnections and count it for the cooldowns. The layout
        changes later (`_commit_due`). `clients`: number of clients connected to each segment. Raises InvariantViolated if
        one of its parents is in a running reshape.
        """
        busy_ids = {i for pending in self.pending for i in pending.planned.parent_ids}
        if not busy_ids.isdisjoint(planned.parent_ids):
            raise InvariantViolated(
                f"{self.rule.name} chose segments {planned.parent_ids}, which are in a running reshape; "
                "exclude busy segments in the rule"
            )
        now = self.instant(tick)
        live = LiveReshape(self.next_operation, planned.kind, planned.parent_ids, len(planned.children), now)
        self.next_operation += 1
        self.next_id = max(self.next_id, *(child.segment_id + 1 for child in planned.children))
        begins = self.step_after(tick) + self.delay_steps
        act = self._act(tick, begins, planned, reason, clients)
        self.budget.spend(now, act.reconnections)
        self.pending.append(_Pending(live, planned, begins, act))
        self.history = History(
            now if planned.kind in _SPLITTING else self.history.last_split_at,
            now if planned.kind in _MERGING else self.history.last_merge_at,
            now if planned.kind is ReshapeKind.REBUCKET else self.history.last_rebucket_at,
        )

    def _act(self, tick: int, begins: int, planned: Reshape, reason: str, clients: int) -> Act:
        """Return the description of a reshape that is requested at this tick and takes effect at step `begins`.
        `clients`: number of clients connected to each segment; those of all parents count as reconnections.
        """
        children = tuple(child.hash_range for child in planned.children)
        return Act(
            asked=self.step_after(tick) - 1,
            begins=begins,
            kind=planned.kind,
            parent_ids=planned.parent_ids,
            parents=tuple(self.layout.segments[i].hash_range for i in planned.parent_ids),
            children=children,
            child_loads=self.observation.loads_of(children, tick),
            reconnections=clients * len(planned.parent_ids),
            reason=reason,
        )

    def _commit_due(self, tick: int) -> bool:
        """Apply to the layout, and record, the reshapes that take effect by the first step after the tick. Pass the layout
        to the observation, and remove old sealed segments. Return True if there were such reshapes.
        """
        due = [pending for pending in self.pending if pending.begins <= self.step_after(tick)]
        if not due:
            return False
        for pending in due:
            self.pending.remove(pending)
            self.layout = self.layout.apply(pending.planned, self.instant(tick))
            self.progress.acts.append(pending.act)
            self._note_stretch(pending.begins)
        self.observation.relayout(self.layout, tick)  # before the parents are forgotten
        self._forget(tick)
        return True

    def _note_stretch(self, begins: int) -> None:
        """Record the active segments as in effect from step `begins` on. They replace segments recorded for the same
        step.
        """
        active = self.layout.active
        stretch = Stretch(begins, tuple(s.segment_id for s in active), tuple(s.hash_range for s in active))
        stretches = self.progress.stretches
        if stretches and stretches[-1].begins == begins:
            stretches.pop()
        stretches.append(stretch)

    def _forget(self, tick: int) -> None:
        """Remove from the layout, without a new epoch, the segments that were sealed at least `retention_seconds` before
        the end of the tick.
        """
        oldest_seal_ms = self.instant(tick) - self.conditions.retention_seconds * 1000
        layout = self.layout
        remaining_segments = [
            s for s in layout.segments.values() if s.sealed_at_ms is None or s.sealed_at_ms > oldest_seal_ms
        ]
        if len(remaining_segments) < len(layout.segments):
            self.layout = SegmentLayout.from_selection(
                layout.epoch, layout.next_segment_id, remaining_segments
            )

    def _next_look(self, tick: int) -> int:
        """Return the first tick after this one at which the answer can differ, because the evaluation ceases to be
        valid, a reshape takes effect, the number of consumers changes, or `next_news` of the observation finds a change;
        `ticks` if there is none.
        """
        limit = self.ticks
        verdict = self.progress.verdicts[-1].evaluation
        if verdict.valid_until is not None:
            limit = min(limit, self._first_tick_at(verdict.valid_until))
        for pending in self.pending:
            limit = min(limit, -(-pending.begins // self.steps_per_tick) - 1)
        if self.consumers is not None:
            changes = np.flatnonzero(self.consumers[tick + 1 : limit + 1] != self.consumers[tick])
            if len(changes):
                limit = min(limit, tick + 1 + int(changes[0]))
        return self.observation.next_news(tick, max(limit, tick + 1))

    def _first_tick_at(self, instant: int) -> int:
        """Return the first tick that ends at or after the instant, in milliseconds since the Unix epoch."""
        return -(-(instant - self.series.start_ms) // self.tick_ms) - 1

    def result(self) -> Simulation:
        """Return the simulation so far, with the figures of each step. The present layout counts up to the end of the series."""
        progress, thresholds = self.progress, self.rule.policy.thresholds
        tick_load, tick_warmth = self.observation.reports.at_ticks(self.ticks, thresholds)
        return Simulation(
            series=self.series,
            spread=self.spread,
            rule=self.rule,
            conditions=self.conditions,
            acts=tuple(progress.acts),
            running=tuple(pending.act for pending in self.pending),
            tick_load=tick_load,
            tick_warmth=tick_warmth,
            verdicts=tuple(progress.verdicts),
            stretches=tuple(s for s in progress.stretches if s.begins < self.series.steps),
            looks=progress.looks,
            **segment_figures(self.series, self.spread, progress.stretches, thresholds.split),
        )


def _grain(conditions: Conditions, step_seconds: int) -> Grain:
    """Return the units of time of the conditions. Raises InvalidInput for a time that is no multiple of its unit."""
    report = conditions.report_seconds or conditions.tick_seconds
    return Grain(
        _multiple(report, step_seconds, "report_seconds"),
        _multiple(conditions.window_seconds, step_seconds, "window_seconds"),
        _multiple(conditions.tick_seconds, report, "tick_seconds"),
    )


def _multiple(seconds: int, unit_seconds: int, name: str) -> int:
    """Return how often `unit_seconds` fits into `seconds`. Raises InvalidInput, which names the condition `name`,
    unless `seconds` is a multiple of `unit_seconds` above 0.
    """
    if seconds < unit_seconds or seconds % unit_seconds:
        raise InvalidInput(f"{name} = {seconds}; give a multiple of {unit_seconds} s")
    return seconds // unit_seconds


def _at_ticks(consumers: Wholes | None, steps_per_tick: int, ticks: int) -> Wholes | None:
    """Return the number of consumers at the end of each of the first `ticks` ticks, from their number at each step. None if
    `consumers` is None, because the topic has no subscription with registered consumers.
    """
    if consumers is None:
        return None
    return consumers[steps_per_tick - 1 :: steps_per_tick][:ticks]
