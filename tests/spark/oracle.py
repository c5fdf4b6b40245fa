"""What the aggregation must answer, by the domain's own functions, segment by segment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from controller.domain.counter_rates import CounterSample, NoRate, WindowLoad, judge_counters
from controller.domain.load_record import LoadRecord, LoadStats, LoadThresholds
from controller.domain.load_record_rule import LoadUpdate, next_record
from controller.domain.load_window import LoadWindow
from controller.landing.schemas import SAMPLE_SCHEMA
from controller.store.load.records import RECORD_SCHEMA, SOURCE_SCHEMA, THRESHOLD_SCHEMA
from tests.support.counters import rates_from_counters

Values = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A load record as it is stored."""

    stats: LoadStats
    source: str
    modified_at: int
    cold_since: int | None = None
    silent_since: int | None = None
    row_version: int = 1


@dataclass(frozen=True, slots=True)
class Case:
    """One segment, alone in its topic, with sources of its own."""

    samples: tuple[CounterSample, ...]
    thresholds: LoadThresholds
    change_threshold: float = 0.25
    strict_pulsar: bool = False
    stored: StoredRecord | None = None
    heard_before: dict[str, int] = field(default_factory=dict)

    def rates(self, window: LoadWindow) -> LoadStats | None:
        """The four rates, None where nothing is known."""
        found = self._load(window)
        return None if found is None else found.stats

    def expected_rates(self, window: LoadWindow) -> Values | None:
        """Rates, observed_at, covered, source; without rates where the counters went back each time."""
        found = judge_counters(self._read(window), window.end_ms, window.length_ms)
        if isinstance(found, NoRate):
            return (None,) * 5 + (0, found.source)
        return (
            None if found is None else (*found.stats.rates, found.observed_at, found.covered_ms, found.source)
        )

    def expected_change(self, window: LoadWindow) -> Values | None:
        """Rates, source, modified_at, cold_since, silent_since, seen row version; None where nothing is written."""
        load, stored = self._load(window), self.stored
        if load is None:
            return self._silenced(window)
        source, previous = load.source, self._previous()
        if stored is None or previous is None:
            new = self._next(None, load).record
            return (*new.stats.rates, source, new.modified_at, new.cold_since, None, 0)
        if load.observed_at < previous.observed_at:
            return None
        update = self._next(previous, load)
        if not update.must_write and source == stored.source and stored.silent_since is None:
            return None
        new = update.record
        return (*new.stats.rates, source, new.modified_at, new.cold_since, None, stored.row_version)

    def _next(self, previous: LoadRecord | None, load: WindowLoad) -> LoadUpdate:
        return next_record(
            previous,
            load.stats,
            load.observed_at,
            self.thresholds,
            self.change_threshold,
            strict_pulsar=self.strict_pulsar,
        )

    def expected_reports(self, window: LoadWindow) -> dict[str, int]:
        """When each source was heard of last in the window."""
        heard: dict[str, int] = {}
        for sample in self.samples:
            if window.start_ms < sample.instant_ms <= window.end_ms:
                heard[sample.source] = max(heard.get(sample.source, 0), sample.instant_ms)
        return heard

    def _read(self, window: LoadWindow) -> list[CounterSample]:
        return [s for s in self.samples if window.read_from_ms < s.instant_ms <= window.end_ms]

    def _load(self, window: LoadWindow) -> WindowLoad | None:
        return rates_from_counters(self._read(window), window.end_ms, window.length_ms)

    def _previous(self) -> LoadRecord | None:
        if self.stored is None:
            return None
        seen = self.heard_before.get(self.stored.source, self.stored.modified_at)
        observed_at = seen if self.stored.silent_since is None else self.stored.silent_since
        return LoadRecord(self.stored.stats, self.stored.modified_at, self.stored.cold_since, observed_at)

    def _silenced(self, window: LoadWindow) -> Values | None:
        """The source speaks of others (or only began to speak): its record is frozen where it is."""
        stored, previous = self.stored, self._previous()
        if stored is None or previous is None or stored.silent_since is not None:
            return None
        if stored.source not in self.expected_reports(window):
            return None
        silent_since = min(previous.observed_at, window.start_ms)
        return (
            *stored.stats.rates,
            stored.source,
            stored.modified_at,
            stored.cold_since,
            silent_since,
            stored.row_version,
        )


def tables(cases: list[Case]) -> dict[str, pa.Table]:
    """The cases as samples, records, sources and thresholds; the topic id is the case's place in the list."""
    samples = [
        (topic, 0, f"backing-{topic}", s.source, s.reader, s.instant_ms * 1000, *s.counters)
        for topic, case in enumerate(cases)
        for s in case.samples
    ]
    records = [
        (topic, 0, *r.stats.rates, r.source, r.modified_at, r.cold_since, r.silent_since, r.row_version)
        for topic, case in enumerate(cases)
        if (r := case.stored) is not None
    ]
    sources = [item for case in cases for item in case.heard_before.items()]
    thresholds = [
        (
            topic,
            *case.thresholds.split.rates,
            *case.thresholds.merge.rates,
            case.change_threshold,
            case.strict_pulsar,
        )
        for topic, case in enumerate(cases)
    ]
    return {
        "samples": _table(samples, SAMPLE_SCHEMA),
        "records": _table(records, RECORD_SCHEMA),
        "sources": _table(sources, SOURCE_SCHEMA),
        "thresholds": _table(thresholds, THRESHOLD_SCHEMA),
    }


def _table(rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return pa.table(
        [pa.array(column, f.type) for column, f in zip(columns, schema, strict=True)], schema=schema
    )


def by_topic(table: pa.Table) -> dict[int, Values]:
    """Rows without their ids, by topic; a topic twice is an error."""
    rows = [tuple(row.values()) for row in table.to_pylist()]
    found = {row[0]: row[2:] for row in rows}
    assert len(found) == len(rows)
    return found
