"""Replays decisions from history: recomputes the loads of each decision from the stored rates, window by
window, and takes its other inputs from the decision log.

A difference means that the stored history differs from the inputs of the decision, so that a backtest of this
history would not represent the topic. Two rules are replayed: that of load records
(`domain.load_record_rule.next_record`, and of silence), and that of load memory (`domain.load_memory`). The state before
the first window is taken from the first decision.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from controller.domain.decision import Lane
from controller.domain.decision_replay import UNREADABLE, Document, Replay, replay_input, unreadable
from controller.domain.evaluation_input import EvaluationInput
from controller.domain.hash_range import HashRange
from controller.domain.load_memory import LoadMemory, origins_of
from controller.domain.load_record import METRICS, LoadRecord, LoadStats
from controller.domain.load_record_rule import next_record
from controller.domain.policy import AutoScalePolicy

if TYPE_CHECKING:
    from controller.landing.history import RateHistory

DEFAULT_WINDOW_MS = 60_000


@dataclass(frozen=True, slots=True)
class SegmentLife:
    """A segment and its lifetime; `sealed_at` is None while it is active. Instants are milliseconds since the
    Unix epoch.
    """

    hash_range: HashRange
    parent_ids: tuple[int, ...]
    created_at: int
    sealed_at: int | None

    def is_active_at(self, instant: int) -> bool:
        """Return True if the segment was active at the instant."""
        return self.created_at <= instant and (self.sealed_at is None or instant < self.sealed_at)


@dataclass(frozen=True, slots=True)
class SegmentRates:
    """Rates of one segment in one window. `observed_at` is the instant of the last sample, in milliseconds since the
    Unix epoch.
    """

    stats: LoadStats
    observed_at: int
    source: str


@dataclass(frozen=True, slots=True)
class Window:
    """One run of the aggregation: the rates of the topic's segments, and the last sample of each source.

    Instants are milliseconds since the Unix epoch. `applied_at` is when the records could be read.
    """

    end_ms: int
    applied_at: int
    rates: Mapping[int, SegmentRates]
    """Rates by segment id. A segment without samples has none."""
    heard: Mapping[str, int]
    """Instant of the last sample by source. It includes the samples of other topics."""


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision as stored in the decision log. `decided_at` is in milliseconds since the Unix epoch. `situation` holds
    its inputs as JSON, `stored` its result.
    """

    decision_id: int
    decided_at: int
    lanes: frozenset[Lane]
    situation: str
    stored: Document

    def read_inputs(self) -> EvaluationInput | Replay:
        """Return the inputs of the decision. If this code cannot read the stored inputs, return instead the `Replay`
        that contains the error. Raises nothing.
        """
        try:
            return EvaluationInput.from_json(self.situation)
        except UNREADABLE as error:
            return unreadable(self.stored, error)


@dataclass(frozen=True, slots=True)
class Retraced:
    """A replayed decision. Each of `differences` is a message about a segment whose loads differ from the
    recorded ones; empty if the inputs of the decision cannot be read.
    """

    decided: Decided
    replay: Replay
    differences: tuple[str, ...]

    @property
    def is_same(self) -> bool:
        """True if the loads and the result are the same."""
        return self.replay.is_same and not self.differences


@dataclass(slots=True)
class _Record:
    """A stored load record, with the source of its samples. Instants are milliseconds since the Unix epoch; `cold_since`
    and `silent_since` are None for a segment that is not cold, or not silent.
    """

    stats: LoadStats
    modified_at: int
    cold_since: int | None
    source: str
    silent_since: int | None = None


def retrace(
    decisions: Sequence[Decided],
    windows: Iterable[Window],
    segments: Mapping[int, SegmentLife],
    *,
    begins_with_the_topic: bool,
    window_ms: int = DEFAULT_WINDOW_MS,
) -> Iterator[Retraced]:
    """Yield each decision with its replay, which recomputes the loads of the decision from the windows that were
    applied by its time. `decisions` are those of one topic, in the order of time. `windows`, of `window_ms`
    milliseconds each, may be in any order. `segments` are all segments that the topic ever had, by id. Yields nothing
    without decisions.

    A decision whose inputs cannot be read is yielded as unreadable. `begins_with_the_topic` says that the windows
    reach back to the creation of the topic. If it is False, the first decision with readable inputs gives the initial
    state and is not yielded. Raises InvalidInput for rates that are negative or not finite.
    """
    if not decisions:
        return
    state, has_started = _ReplayState(segments, window_ms), begins_with_the_topic
    pending = iter(sorted(windows, key=lambda window: window.applied_at))
    window = next(pending, None)
    for decided in decisions:
        situation = decided.read_inputs()
        if isinstance(situation, Replay):
            yield Retraced(decided, situation, ())
            continue
        while window is not None and window.applied_at <= decided.decided_at:
            state.apply(window, situation.policy)
            window = next(pending, None)
        if has_started:
            yield state.replay_decision(decided, situation)
        else:
            state.start_from(situation)
            has_started = True


class _ReplayState:
    """The state of the replay between two decisions: the load records that the aggregation would have stored so far, the
    last samples of the sources, and the load memory.
    """

    def __init__(self, segments: Mapping[int, SegmentLife], window_ms: int) -> None:
        self._window_ms = window_ms
        self.records: dict[int, _Record] = {}
        self.sources: dict[str, int] = {}
        self.segments, self.origins = segments, origins_of(segments, segments)
        self.memory = LoadMemory()

    def apply(self, window: Window, policy: AutoScalePolicy) -> None:
        """Apply one window to the load records and, if the profile of `policy` is `adaptive`, to the load memory.
        `policy` is the policy of the next decision after the window. Segments that are not in `segments` are left out
        of the load memory.
        """
        self._observe(window, policy)
        if policy.profile == "adaptive":
            measured = {
                segment_id: rates.stats
                for segment_id, rates in window.rates.items()
                if segment_id in self.segments
            }
            heirs = {
                segment_id: self.origins[segment_id]
                for segment_id in measured
                if segment_id in self.origins and self.segments[segment_id].is_active_at(window.applied_at)
            }
            self.memory.remember(window.end_ms, measured, policy.load_memory_seconds, heirs)

    def start_from(self, situation: EvaluationInput) -> None:
        """Replace the load records of the segments that have a load in `situation`, the inputs of the first decision,
        by these loads. These segments then do not count as silent. A record keeps its source; a segment without a
        record gets a source of its own. The records of other segments, and the load memory, stay as the windows
        before the decision have left them.
        """
        for segment_id, record in situation.loads.items():
            source = f"the source of segment {segment_id}"
            record_of_history = self.records.get(segment_id)
            source = source if record_of_history is None else record_of_history.source
            self.records[segment_id] = _Record(record.stats, record.modified_at, record.cold_since, source)
            self.sources.setdefault(source, record.observed_at)

    def replay_decision(self, decided: Decided, situation: EvaluationInput) -> Retraced:
        """Decide again with `situation`, the inputs of the decision, but with the loads and load memories that the
        history gives for the ACTIVE segments. Return the decision with the comparison of the results, and with the
        differences between the loads. If the profile is not `adaptive`, the load memories of `situation` are used.
        The state is not changed.
        """
        active = {segment.segment_id for segment in situation.layout.active}
        loads = {
            segment_id: self._as_decision_input(record)
            for segment_id, record in self.records.items()
            if segment_id in active
        }
        recent = situation.recent_loads
        if situation.policy.profile == "adaptive":
            recent = self.memory.recent_loads(active)
        replay_inputs = replace(situation, loads=loads, recent_loads=recent)
        replay = replay_input(replay_inputs, decided.lanes, decided.stored)
        return Retraced(decided, replay, tuple(_differences(situation, replay_inputs)))

    def _as_decision_input(self, record: _Record) -> LoadRecord:
        """Return the record in the form in which a decision reads it. If the segment is silent, the record counts as
        observed when the silence began; otherwise, at the last sample of its source; if no sample of the source is
        known, at its last change.
        """
        last_heard_at = self.sources.get(record.source, record.modified_at)
        observed_at = last_heard_at if record.silent_since is None else record.silent_since
        return LoadRecord(record.stats, record.modified_at, record.cold_since, observed_at)

    def _observe(self, window: Window, policy: AutoScalePolicy) -> None:
        """Apply one run of the aggregation on `window` to the records. Segments with rates get the record that the
        rule `next_record` gives under the thresholds of `policy`. A segment without rates whose source has samples
        becomes silent, if it is not silent already. The last samples of the sources are stored. Raises InvalidInput
        for rates that are negative or not finite.
        """
        records_before = {
            segment_id: self._as_decision_input(record) for segment_id, record in self.records.items()
        }
        for segment_id, rates in window.rates.items():
            self._observe_segment(segment_id, rates, records_before.get(segment_id), policy)
        for segment_id, record in self.records.items():
            speaks = record.source in window.heard and segment_id not in window.rates
            if speaks and record.silent_since is None:
                record.silent_since = min(
                    records_before[segment_id].observed_at, window.end_ms - self._window_ms
                )
        for source, observed_at in window.heard.items():
            self.sources[source] = max(self.sources.get(source, observed_at), observed_at)

    def _observe_segment(
        self, segment_id: int, rates: SegmentRates, before: LoadRecord | None, policy: AutoScalePolicy
    ) -> None:
        """Replace the segment's record by the result of `next_record` for the rates of one window. The new record has
        the source of the rates and is not silent. `before` is the segment's record before the window, as a decision
        reads it (`_as_decision_input`); None if the segment had none.

        If the rates were observed before `before.observed_at`, nothing changes, and a silent segment stays silent.
        Otherwise InvalidInput is raised for rates that are negative or not finite.
        """
        if before is not None and rates.observed_at < before.observed_at:
            return
        update = next_record(
            before,
            rates.stats,
            rates.observed_at,
            policy.thresholds,
            policy.load_change_threshold,
            strict_pulsar=policy.strict_pulsar,
        )
        record = update.record
        self.records[segment_id] = _Record(record.stats, record.modified_at, record.cold_since, rates.source)


def _differences(stored: EvaluationInput, replay_inputs: EvaluationInput) -> Iterator[str]:
    """Yield a message for each segment whose load record or load memory differs between the inputs, or is in only one
    of them: first the load records, then the load memories, each by segment id. Load records are compared exactly.
    Load memories are compared to nine digits, because PostgreSQL adds them up in an order of its own.
    """
    recorded, recomputed = json.loads(stored.to_json()), json.loads(replay_inputs.to_json())
    for name, is_same in (("loads", operator.eq), ("recent_loads", _is_nearly_same)):
        for segment_id in sorted(recorded[name].keys() | recomputed[name].keys(), key=int):
            stored_value, recomputed_value = recorded[name].get(segment_id), recomputed[name].get(segment_id)
            if not is_same(stored_value, recomputed_value):
                yield f"segment {segment_id}: {_format_value(name, stored_value)} stored, {_format_value(name, recomputed_value)} from the history"


def _is_nearly_same(stored_value: Any, recomputed_value: Any) -> bool:
    """Return True if the two load memories have the same number of ticks, and all numbers are the same to nine
    digits, or if both memories are None. A load memory is a JSON list of ticks, each of which is a list of numbers.
    The ticks at one index must have equally many numbers.
    """
    if stored_value is None or recomputed_value is None or len(stored_value) != len(recomputed_value):
        return stored_value is recomputed_value
    pairs = (
        pair
        for ticks in zip(stored_value, recomputed_value, strict=True)
        for pair in zip(*ticks, strict=True)
    )
    return all(math.isclose(first, second, rel_tol=1e-9, abs_tol=1e-12) for first, second in pairs)


def _format_value(name: str, value: Any) -> str:
    """Return a load record (`name` is `loads`) or a load memory (`recent_loads`) as text for a message; None is `no
    load` or `no memory`.
    """
    if value is None:
        return "no load" if name == "loads" else "no memory"
    if name == "loads":
        rates = ", ".join(f"{metric} {value[metric]:g}" for metric in METRICS if value[metric])
        since = "" if value["cold_since"] is None else f", cold since {value['cold_since']}"
        return f"{rates or 'nothing'} at {value['modified_at']}, heard {value['observed_at']}{since}"
    return f"{len(value)} ticks from {value[0][0]:g} to {value[-1][0]:g} messages/s in"


def windows_of(
    history: RateHistory, topic_id: int, from_ms: int, to_ms: int, applied_at: Mapping[int, int]
) -> Iterator[Window]:
    """Yield the recorded windows that ended between `from_ms` and `to_ms` (inclusive, milliseconds since the Unix
    epoch), with the rates of the topic, in the order of their ends. Files are read one day at a time. A window in
    which only other topics have rates is yielded without rates; a window in which no topic has rates is absent.

    `applied_at` maps the end of a window to the time, in milliseconds, from which its records could be read. A window
    without an entry counts from its end. Raises the errors of the storage.
    """
    import pyarrow.compute as pc

    day_ms = 86_400_000
    for start_ms in range(from_ms, to_ms + 1, day_ms):
        table = history.read(start_ms, min(start_ms + day_ms - 1, to_ms))
        latest_by_window: dict[int, dict[str, int]] = {}
        latest_samples = table.group_by(["window_end_ms", "source"]).aggregate([("observed_at_ms", "max")])
        for row in latest_samples.to_pylist():
            latest_by_window.setdefault(row["window_end_ms"], {})[row["source"]] = row["observed_at_ms_max"]
        rates: dict[int, dict[int, SegmentRates]] = {window_end_ms: {} for window_end_ms in latest_by_window}
        for row in table.filter(pc.equal(table.column("topic_id"), topic_id)).to_pylist():
            stats = LoadStats(*(row[metric] for metric in METRICS))
            segment_rates = SegmentRates(stats, row["observed_at_ms"], row["source"])
            rates[row["window_end_ms"]][row["segment_id"]] = segment_rates
        for window_end_ms in sorted(latest_by_window):
            yield Window(
                window_end_ms,
                applied_at.get(window_end_ms, window_end_ms),
                rates[window_end_ms],
                latest_by_window[window_end_ms],
            )
