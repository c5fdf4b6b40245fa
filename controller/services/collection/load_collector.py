"""Load collector: samples the counters of every watched segment each tick and lands them as one Parquet file.

It computes nothing. The aggregation makes rates of the samples, so a missed tick costs resolution and no correctness. How many
producers a segment has is no counter: what changed of that is written down at once.
One slow or broken data plane does not hold up the others. A tick that comes late is skipped and counted, and not made
up for. Samples name their reader, see `store/load/readers.py`; instants land as the database's time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from controller import client_metrics, metrics, telemetry
from controller.clock import Clock, SystemClock
from controller.dataplane.base import Counters, DataPlane
from controller.dataplane.observation import SamplesByPage
from controller.domain.errors import CleaveError, InvalidInput, StoreUnavailable
from controller.landing.area import LandingArea
from controller.landing.samples import Sample, sample_table
from controller.repeating import Repeating
from controller.store.load import producers, readers
from controller.store.load.readers import Reader
from controller.store.postgres.clock import ahead_of_database
from controller.store.postgres.engine import Store
from controller.store.topics import watched_logs as watch_list
from controller.store.topics.watched_logs import SEALED_FOR_SECONDS, WatchedLog

log = telemetry.get_logger(__name__)

CALL_SEGMENTS = 1_000
"""Segments asked for in one call: bounded time for the data plane, bounded memory here. A plane may say otherwise."""


@dataclass(frozen=True, slots=True)
class Tick:
    """What one tick brought."""

    instant_ms: int
    watched: int
    sampled: int
    failed_planes: tuple[str, ...]
    """Data planes that gave no answer, or only a part of it."""
    path: str | None
    """Where the samples landed; None when there was none."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """What one data plane answered. It is not whole where the plane failed before the end."""

    found: list[tuple[WatchedLog, Counters]]
    is_whole: bool


class LoadCollector:
    """One collector; several may watch different topics (`prefix`) and land side by side."""

    def __init__(
        self,
        store: Store,
        planes: Mapping[str, DataPlane],
        area: LandingArea,
        *,
        name: str,
        interval_seconds: float,
        clock: Clock,
        prefix: str = "",
        wall_clock: Clock | None = None,
        takes_turn: Callable[[], bool] = lambda: True,
    ) -> None:
        """`run` skips a tick if `takes_turn` returns False, because another process collects. `name` stands in file names; `prefix` watches only topics whose names begin so.

        `clock` is the one by which the planes stamp their counters. `wall_clock` is only compared: None for the machine's.
        """
        if interval_seconds <= 0:
            raise InvalidInput(f"a collector's interval of {interval_seconds:g} s is not longer than 0")
        self._store, self._planes, self._area = store, planes, area
        self.name, self._prefix = name, prefix
        self._interval_ms = round(interval_seconds * 1000)
        self._clock, self._wall_clock = clock, wall_clock or SystemClock()
        self._takes_turn = takes_turn
        self._reader: Reader | None = None
        """That of the last tick."""
        self._stopping = threading.Event()
        self._turns: dict[str, int] = {}
        """Where the next tick begins with a data plane that was too slow for the last one."""
        self._producers: dict[producers.SegmentKey, int] = {}
        """As written down."""

    def stop(self) -> None:
        """Finish the tick in hand and leave; safe in a signal handler."""
        self._stopping.set()

    def run(self) -> None:
        """Tick at multiples of the interval until `stop`. A tick that fails is logged; the next one comes."""
        Repeating(
            self._timed_tick,
            self._stopping,
            log,
            "tick failed",
            retry_seconds=(0.0, 0.0),
            expected=(CleaveError, OSError),
            on_error=lambda _: self._stopping.wait(self._until_next_tick()),
        ).run(first_pause_seconds=self._until_next_tick())
        self.leave()

    def leave(self) -> None:
        """Say that no tick follows."""
        self._reader = None
        with suppress(StoreUnavailable), self._store.transaction() as tx:
            readers.gone(tx, self.name)

    def _timed_tick(self) -> float:
        """A tick; then the seconds until the next one."""
        began_ms = self._clock.now_ms()
        try:
            if self._takes_turn():
                self.tick()
            elif self._reader is not None:  # its counters are not compared with those of a later turn
                self.leave()
        except Exception:
            metrics.COLLECTOR_TICKS.labels("failed").inc()
            raise
        finally:
            skipped = (self._clock.now_ms() - began_ms) // self._interval_ms
            if skipped:
                metrics.COLLECTOR_TICKS.labels("skipped").inc(skipped)
                log.warning("ticks skipped: sampling took longer than the interval", skipped=skipped)
        return self._until_next_tick()

    def tick(self) -> Tick:
        """Sample everything once and land it. Raises StoreUnavailable, and OSError when storage is away."""
        instant_ms = self._clock.now_ms()
        with self._store.transaction() as tx:
            watched = watch_list.watched_logs(tx, prefix=self._prefix, sealed_for_seconds=SEALED_FOR_SECONDS)
        by_plane: dict[str, dict[str, WatchedLog]] = {}
        for one in watched:
            by_plane.setdefault(one.data_plane, {})[one.backing_topic] = one
        failed: list[str] = []
        samples: list[tuple[WatchedLog, Counters]] = []
        sample = partial(self._sample, self._clock.monotonic_seconds() + self._interval_ms / 1000)
        with ThreadPoolExecutor(max(len(by_plane), 1)) as pool:
            for name, answer in zip(by_plane, pool.map(sample, by_plane, by_plane.values()), strict=True):
                samples.extend(answer.found)
                if not answer.is_whole:
                    failed.append(name)
        reader = self._compare_clocks([name for name in by_plane if name in self._planes])
        path = None
        if reader is not None and samples:
            instant_ms -= reader.ahead_ms
            path = self._area.append(instant_ms, self.name, _table(samples, reader))
        self._note_producers(samples)
        metrics.COLLECTOR_TICKS.labels("partial" if failed else "whole").inc()
        log.debug("tick", watched=len(watched), sampled=len(samples), failed=failed)
        return Tick(instant_ms, len(watched), len(samples), tuple(failed), path)

    def _compare_clocks(self, data_planes: Sequence[str]) -> Reader | None:
        """The reader that the samples of this tick are of. None if a clock was set since the tick before: nobody knows whether
        before they were read.
        """
        with self._store.transaction() as tx:
            reader = readers.seen(
                tx,
                self.name,
                ahead_of_database(tx, self._clock),
                clock_ahead_ms=ahead_of_database(tx, self._wall_clock).ms,
                topic_prefix=self._prefix,
                data_planes=data_planes,
                interval_seconds=self._interval_ms / 1000,
            )
        before, self._reader = self._reader, reader
        if before in (None, reader):
            return reader
        log.warning(
            "clock set here or at the database: samples left out", before=before.ahead_ms, now=reader.ahead_ms
        )
        return None

    def _sample(self, deadline: float, name: str, logs: Mapping[str, WatchedLog]) -> _Answer:
        """Counters of one data plane's logs. A log that it did not answer for is silent; it does not count as a load of
        0.

        No call begins after the deadline. The logs left out come first in the next tick, so a data plane that is too
        slow for the interval has every log sampled, only less often.
        """
        if name not in self._planes:
            log.warning(
                "data plane not configured here: its topics are not sampled", data_plane=name, logs=len(logs)
            )
            return _Answer([], is_whole=False)
        plane = self._planes[name]
        limit = plane.sample_limit if isinstance(plane, SamplesByPage) else CALL_SEGMENTS
        found: list[tuple[WatchedLog, Counters]] = []
        turn = self._turns.pop(name, 0) % len(logs)
        order = [*logs][turn:] + [*logs][:turn]
        try:
            for begin in range(0, len(order), limit):
                if begin and self._clock.monotonic_seconds() >= deadline:
                    self._turns[name] = turn + begin
                    log.warning(
                        "data plane is slower than the interval", data_plane=name, left=len(order) - begin
                    )
                    return _Answer(found, is_whole=False)
                answer = plane.sample(order[begin : begin + limit])
                found += [
                    (logs[topic], counters) for topic, counters in answer.items() if _is_sound(counters)
                ]
        except CleaveError as error:
            log.warning("data plane did not answer", data_plane=name, sampled=len(found), error=str(error))
            return _Answer(found, is_whole=False)
        except Exception:  # of this plane; the others are sampled
            client_metrics.LOOP_ERRORS.labels("data plane did not answer").inc()
            log.exception("data plane did not answer", data_plane=name, sampled=len(found))
            return _Answer(found, is_whole=False)
        return _Answer(found, is_whole=True)

    def _note_producers(self, samples: Sequence[tuple[WatchedLog, Counters]]) -> None:
        """What is not as it was written down. Of segments that are gone nothing is remembered."""
        counted = {
            (one.topic_id, one.segment_id): counters.producers
            for one, counters in samples
            if counters.producers is not None
        }
        changed = {key: count for key, count in counted.items() if self._producers.get(key) != count}
        if changed:
            with self._store.transaction() as tx:
                producers.record(tx, changed)
        self._producers = counted

    def _until_next_tick(self) -> float:
        """Seconds to the next multiple of the interval, so that collectors tick together."""
        return (self._interval_ms - self._clock.now_ms() % self._interval_ms) / 1000


def _is_sound(counters: Counters) -> bool:
    """Return True if all values are valid counters. Invalid values of one log would keep the samples of all others from being landed."""
    if (
        all(
            0 <= one < 2**63
            for one in (
                counters.msg_in,
                counters.byte_in,
                counters.msg_out,
                counters.byte_out,
                counters.instant_ms,
            )
        )
        and 0 <= (counters.producers or 0) < 2**31
    ):
        return True
    log.warning(
        "counters set aside: not from 0 to 2^63", backing_topic=counters.backing_topic, source=counters.source
    )
    return False


def _table(samples: Sequence[tuple[WatchedLog, Counters]], reader: Reader) -> pa.Table:
    return sample_table(
        Sample(
            log.topic_id,
            log.segment_id,
            log.backing_topic,
            counters.source,
            reader.name,
            counters.instant_ms - reader.ahead_ms,
            counters.msg_in,
            counters.byte_in,
            counters.msg_out,
            counters.byte_out,
        )
        for log, counters in samples
    )
