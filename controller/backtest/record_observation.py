"""Observations for rules that decide on load records: those that the aggregation would store.

`records` keeps the records. A new segment is measured at the report after its creation, and has no record until then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from controller.backtest.arrays import Floats, Mask, Wholes, any_along, is_nan
from controller.backtest.averages import all_rates
from controller.backtest.load_series import LoadSeries
from controller.backtest.measured_load import Grain
from controller.backtest.observation import Observation
from controller.backtest.records import RecordArrays
from controller.backtest.rule import Rule
from controller.backtest.spread import Spread
from controller.domain.layout import SegmentLayout
from controller.domain.load_memory import LoadMemory, Origin, origins_of
from controller.domain.load_record import LoadRecord, LoadStats


class RecordObservation(Observation):
    """Observation for a rule of load records that is evaluated at every tick. `domain.load_memory` keeps the remembered
    ticks.
    """

    def __init__(self, series: LoadSeries, rule: Rule, grain: Grain, spread: Spread) -> None:
        super().__init__(series, rule, grain, spread)
        policy = rule.policy
        self.arrays = RecordArrays(
            policy.thresholds, policy.load_change_threshold, policy.strict_pulsar, self.metrics
        )
        self.memory, self.origins = LoadMemory(rule.memory_ticks), dict[int, Origin]()

    def _observe(self, reports: Wholes) -> None:
        """Add these reports, each of which was observed, to the records; if the rule remembers ticks, add the reports that
        end a tick to the memory too.
        """
        rates = self._rates(reports)
        self.arrays.observe(rates, self.reports.instants(reports))
        if self.rule.memory_ticks:
            ends = (reports + 1) % self.reports.per_tick == 0
            self._remember(reports[ends], [rate[ends] for rate in rates])

    def _remember(self, reports: Wholes, rates: Sequence[Floats]) -> None:
        """Add the loads of these reports, each of which ends a tick, to the memory of each segment. `rates[metric][report,
        segment]`.
        """
        for row, report in enumerate(reports.tolist()):
            values = [rate[row].tolist() for rate in rates]
            measured = {
                segment_id: LoadStats(*all_rates(self.metrics, own))
                for segment_id, *own in zip(self.ids, *values, strict=True)
            }
            self.memory.remember(
                self.reports.instant(report),
                measured,
                self.rule.policy.load_memory_seconds,
                self.origins,
            )

    def _move(self, layout: SegmentLayout, new: Sequence[int], old: Sequence[int]) -> None:
        """Continue with the segments of the layout, of which those at the indexes `new` were at `old`; the others have
        no record and no memory until they are measured, and the memories of their parents are kept until then.
        """
        self.arrays.move(new, old, len(layout.active))
        if self.rule.memory_ticks:
            staying = set(new)
            self._pass_on(layout, [i for index, i in enumerate(self.ids) if index not in staying])

    def _pass_on(self, layout: SegmentLayout, created: Sequence[int]) -> None:
        """Keep the memories of the parents until their children are measured; remove memories that are no longer needed.
        `created`: ids of the active segments that the observation did not have before. `layout` must still contain their
        parents.
        """
        origins = self.origins | origins_of(created, layout.segments)
        waiting = {i for i in self.ids if i not in self.memory.known}
        self.origins = {i: origin for i, origin in origins.items() if i in waiting}
        parents = {parent for origin in self.origins.values() for parent in origin.parent_ids}
        self.memory.keep({*self.ids, *parents})

    def records(self, tick: int) -> dict[int, LoadRecord]:
        """Return, by segment id, the record of every segment that has a record. Each counts as observed at the last
        observation up to the end of the tick.
        """
        return self._records(np.flatnonzero(~is_nan(self.arrays.written[0])), self._heard_at(tick))

    def _records(self, indexes: Wholes, heard_at: int) -> dict[int, LoadRecord]:
        """Return, by segment id, the records of the segments at these indexes, each observed at `heard_at` (milliseconds
        since the Unix epoch). Each of the segments has a record.
        """
        records = self.arrays.records(indexes, self.metrics, heard_at)
        return dict(zip([self.ids[index] for index in indexes.tolist()], records, strict=True))

    def _heard_at(self, tick: int) -> int:
        """Return the instant of the last observation up to the end of the tick, in milliseconds since the Unix epoch; the start
        of the series if there is none.
        """
        return self._last_before(self.reports.last_of(tick) + 1)

    def _last_before(self, report: int) -> int:
        """Return the instant of the last observation before this report, in milliseconds since the Unix epoch; the start of
        the series if there is none.
        """
        index = int(np.searchsorted(self.reports.known_reports, report))
        last = int(self.reports.known_reports[index - 1]) if index else -1
        return self.reports.instant(last)

    def recent_loads(self) -> Mapping[int, tuple[LoadStats, ...]]:
        """Return, by segment id, the loads of the remembered ticks, the newest last; empty if the rule reads none. A segment
        without any is left out.
        """
        return self.memory.recent_loads(self.ids)

    def strikes(self) -> Mapping[int, int]:
        """Return, for each segment that has any, the number of consecutive splits that left nearly all of the load in
        it.
        """
        return self.memory.strikes(self.ids)


class RewriteObservation(RecordObservation):
    """Observation for a rule that is evaluated when a record is rewritten, because consumers, merges of two warm segments
    or the time of the last write matter.

    Records count as observed until the next gap, since the rule is not evaluated in between.
    """

    can_look_ahead = True

    def _heard_at(self, tick: int) -> int:
        """Return the instant (milliseconds since the Unix epoch) of the last observation before the next gap after the tick,
        or of the last of the series if there is no such gap. If the tick ends in a gap, return the instant of the last
        observation before this gap; the start of the series if there is none.
        """
        report = self.reports.last_of(tick)
        if not self.reports.known[report]:
            return super()._heard_at(tick)
        return self._last_before(self.reports.next_resumption(report))

    def _changes(self, reports: Wholes) -> Mask:
        """Return `[report]`: True if the report would rewrite a record, or a rate crosses a threshold."""
        rates = self._rates(reports)
        return any_along(self.arrays.rewrites(rates) | self.arrays.crossings(rates), 1)
