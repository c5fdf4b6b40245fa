"""Load collector: samples the counters of every watched segment at each tick, and lands them as one Parquet
file.

The collector computes nothing. The aggregation computes rates from the samples, so a missed tick reduces
resolution, not correctness. The number of producers of a segment is not a counter, so changes are written to
the store at once. A slow or broken data plane does not delay the others. Ticks that come too late are skipped
and counted, not repeated. Samples name their reader (`store/load/counter_readers.py`). Instants are landed in the
time of the database.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from controller import client_metrics, metrics, telemetry
from controller.clock import Clock, SystemClock
from controller.dataplane.base import Counters, DataPlane
from controller.dataplane.optional_abilities import SamplesByPage
from controller.domain.errors import CleaveError, InvalidInput, StoreUnavailable
from controller.landing.area import LandingArea
from controller.landing.schemas import Sample, sample_table
from controller.repeating import Repeating, Stoppable
from controller.store.load import counter_readers, producer_counts
from controller.store.load.counter_readers import Reader
from controller.store.postgres.clock import ahead_of_database
from controller.store.postgres.engine import Store
from controller.store.topics import watched_logs as watch_list
from controller.store.topics.watched_logs import SEALED_FOR_SECONDS, WatchedLog

log = telemetry.get_logger(__name__)

CALL_SEGMENTS = 1_000
"""Maximum number of segments per call. It bounds the time of the data plane and the memory of the collector.
A data plane may set another limit.
"""


@dataclass(frozen=True, slots=True)
class Tick:
    """Result of one tick. `instant_ms` is its begin in milliseconds since the Unix epoch, by the database's clock if
    samples were landed, otherwise by the collector's. `watched` is the number of logs to sample, `sampled` the number
    of logs with a sample, landed or not.
    """

    instant_ms: int
    watched: int
    sampled: int
    failed_planes: tuple[str, ...]
    """Data planes that failed, were too slow or are not configured here, so that not all of their logs were sampled.
    A data plane that answered each call is absent, even if logs without an answer were left out.
    """
    path: str | None
    """Path of the file with the samples; None if there were no samples, or if a clock was set since the last tick."""


class LoadCollector(Stoppable):
    """Samples the counters of all watched logs at each tick, and lands the samples as one file. Several
    collectors may watch different topics (`prefix`) and land samples in the same area.
    """

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
        takes_turn: Callable[[], int | None] = lambda: 1,
    ) -> None:
        """`planes` are the data planes by name. Only topics whose names begin with `prefix` are watched. `name`
        identifies the collector in the database, and becomes a part of file names in `area`. `takes_turn` is called
        before each tick of `run`, and returns the number of the turn; another number if another process may have
        collected since the last call. If `takes_turn` returns None, because another process collects, the tick is
        skipped. Raises InvalidInput if `interval_seconds`, the time between two ticks, is not above 0.

        `clock` is the clock with which the data planes timestamp counters. `wall_clock` is only compared with the
        database; None stands for the clock of the machine.
        """
        super().__init__()
        if interval_seconds <= 0:
            raise InvalidInput(
                f"the interval of a collector must be longer than 0 s, not {interval_seconds:g}"
            )
        self._store, self._planes, self._area = store, planes, area
        self.name, self._prefix = name, prefix
        self._interval_ms = round(interval_seconds * 1000)
        self._clock, self._wall_clock = clock, wall_clock or SystemClock()
        self._takes_turn = takes_turn
        self._turn: int | None = None
        """Turn of the last tick of `run`; None if `takes_turn` returned None since."""
        self._reader: Reader | None = None
        """Reader of the last tick's samples."""
        self._turns: dict[str, int] = {}
        """Index at which the next tick begins, by data plane that was too slow for the last tick."""
        self._producers: dict[producer_counts.SegmentKey, int] = {}
        """Producer counts as stored last."""

    def run(self) -> None:
        """Tick at multiples of the interval until `stop`. While `takes_turn` returns None, no tick runs. If a tick
        fails, log the error, and continue with a later multiple of the interval. At the end, record in the database
        that no tick follows (`leave`). Raises nothing while ticking.
        """
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
        """Delete the record of this collector as a reader from the database, because no tick follows for now. A later
        tick records the collector again, its samples are not compared with the samples before, and it stores all
        producer counts. If the database is unavailable, the record stays.
        """
        self._reader, self._producers = None, {}
        with suppress(StoreUnavailable), self._store.transaction() as tx:
            counter_readers.delete(tx, self.name)

    def _timed_tick(self) -> float:
        """Run a tick unless `takes_turn` returns None. Before, call `leave` if the last tick belongs to another turn.
        Return the seconds until the next multiple of the interval. A failed tick, and the ticks that were skipped
        because this call took longer than the interval, are counted as metrics; skipped ticks are logged. Raises the
        errors of `tick`.
        """
        began_ms = self._clock.now_ms()
        try:
            turn = self._takes_turn()
            # Another process may have stored producer counts since, and counters of two turns must not be compared.
            if self._reader is not None and turn != self._turn:
                self.leave()
            self._turn = turn
            if turn is not None:
                self.tick()
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
        """Sample all watched logs once, those of different data planes in parallel, and write the samples to the
        landing area as one file. A log is watched if its topic is live, and its segment is active or was sealed less
        than `SEALED_FOR_SECONDS` ago. Also store the numbers of producers that changed, and this collector and the
        offsets of its clocks. Return what was sampled, and count the tick as a metric.

        No file is written if there are no samples, or if a clock was set since the last tick, in which case a warning
        is logged. A data plane that does not answer, is too slow or is not configured here is logged and named in the
        result.

        Raises StoreUnavailable and the other errors of `Store.transaction`; OSError if the storage of the landing
        area is unavailable, in which case the samples are lost; and InvalidInput if the collector's name cannot be
        part of a file name.
        """
        instant_ms = self._clock.now_ms()
        watched_logs = self._store.in_transaction(
            watch_list.watched_logs, prefix=self._prefix, sealed_for_seconds=SEALED_FOR_SECONDS
        )
        by_plane: dict[str, dict[str, WatchedLog]] = {}
        for log_row in watched_logs:
            by_plane.setdefault(log_row.data_plane, {})[log_row.backing_topic] = log_row
        failed_planes: list[str] = []
        samples: list[tuple[WatchedLog, Counters]] = []
        sample = partial(self._sample, self._clock.monotonic_seconds() + self._interval_ms / 1000)
        with ThreadPoolExecutor(max(len(by_plane), 1)) as pool:
            answers = pool.map(sample, by_plane, by_plane.values())
            for name, (counters, is_whole) in zip(by_plane, answers, strict=True):
                samples.extend(counters)
                if not is_whole:
                    failed_planes.append(name)
        reader = self._compare_clocks([name for name in by_plane if name in self._planes])
        path = None
        if reader is not None and samples:
            instant_ms -= reader.ahead_ms
            path = self._area.append(instant_ms, self.name, _table(samples, reader))
        self._note_producers(samples)
        metrics.COLLECTOR_TICKS.labels("partial" if failed_planes else "whole").inc()
        log.debug("tick", watched=len(watched_logs), sampled=len(samples), failed=failed_planes)
        return Tick(instant_ms, len(watched_logs), len(samples), tuple(failed_planes), path)

    def _compare_clocks(self, data_planes: Sequence[str]) -> Reader | None:
        """Record this collector in the database, with the offsets of its clocks to the database's clock and, for the
        views, with the names `data_planes` of the sampled data planes. Return the reader to which the samples of this
        tick belong; the reader holds the offset.

        Return None, and log a warning, if the collector's clock or the database's clock was set since the last tick:
        it is not known whether the samples were read before or after. The next tick has a reader again. Raises
        StoreUnavailable.
        """
        with self._store.transaction() as tx:
            reader = counter_readers.record(
                tx,
                self.name,
                ahead_of_database(tx, self._clock),
                clock_ahead_ms=ahead_of_database(tx, self._wall_clock).ms,
                topic_prefix=self._prefix,
                data_planes=data_planes,
                interval_seconds=self._interval_ms / 1000,
            )
        last_reader, self._reader = self._reader, reader
        if last_reader in (None, reader):
            return reader
        log.warning(
            "clock set here or at the database: samples left out",
            before=last_reader.ahead_ms,
            now=reader.ahead_ms,
        )
        return None

    def _sample(
        self, deadline: float, name: str, logs: Mapping[str, WatchedLog]
    ) -> tuple[list[tuple[WatchedLog, Counters]], bool]:
        """Sample the counters of `logs`, which belong to the data plane `name`, in calls of limited size. `logs` is
        keyed by backing topic and not empty. Return the counters, and True if the answer is whole. A log without an
        answer, or with invalid counters, has no sample; this does not mean that the log has no load. Raises nothing:
        an error of the data plane, and a data plane that is not configured here, are logged. The answer is then
        marked as not whole, and keeps the samples read before.

        The first call is made in any case. No further call begins after `deadline` (monotonic seconds); the answer is
        then also not whole, and the next tick begins with the logs that were left out. So every log of a slow data
        plane is sampled, but less often.
        """
        if name not in self._planes:
            log.warning(
                "data plane not configured here: its topics are not sampled", data_plane=name, logs=len(logs)
            )
            return [], False
        plane = self._planes[name]
        call_limit = plane.sample_limit if isinstance(plane, SamplesByPage) else CALL_SEGMENTS
        counters: list[tuple[WatchedLog, Counters]] = []
        turn = self._turns.pop(name, 0) % len(logs)
        log_order = [*logs][turn:] + [*logs][:turn]
        try:
            for start in range(0, len(log_order), call_limit):
                if start and self._clock.monotonic_seconds() >= deadline:
                    self._turns[name] = turn + start
                    log.warning(
                        "data plane is slower than the interval", data_plane=name, left=len(log_order) - start
                    )
                    return counters, False
                answer = plane.sample(log_order[start : start + call_limit])
                counters += [
                    (logs[topic], counters) for topic, counters in answer.items() if _is_valid(counters)
                ]
        except CleaveError as error:
            log.warning("data plane did not answer", data_plane=name, sampled=len(counters), error=str(error))
            return counters, False
        except Exception:  # The error concerns this data plane only; the other data planes are sampled.
            client_metrics.LOOP_ERRORS.labels("data plane did not answer").inc()
            log.exception("data plane did not answer", data_plane=name, sampled=len(counters))
            return counters, False
        return counters, True

    def _note_producers(self, samples: Sequence[tuple[WatchedLog, Counters]]) -> None:
        """Store the producer counts of the samples that differ from the counts of the previous tick, in one
        transaction. A segment that had no count in the previous tick is stored in any case. The stored count of a
        segment without a sample, or whose sample has no producer count, stays. Raises StoreUnavailable; the next tick
        then stores the counts that still differ.
        """
        counts = {
            (log_row.topic_id, log_row.segment_id): counters.producers
            for log_row, counters in samples
            if counters.producers is not None
        }
        changed_counts = {key: count for key, count in counts.items() if self._producers.get(key) != count}
        if changed_counts:
            self._store.in_transaction(producer_counts.record, changed_counts)
        self._producers = counts

    def _until_next_tick(self) -> float:
        """Return the seconds to the next multiple of the interval, so that all collectors tick together."""
        return (self._interval_ms - self._clock.now_ms() % self._interval_ms) / 1000


def _is_valid(counters: Counters) -> bool:
    """Return True if all counters and the instant are from 0 to 2^63 - 1, and the number of producers is unknown (None) or from 0 to 2^31 -
    1. Otherwise log a warning and return False: invalid values of one log would prevent the landing of all other samples.
    """
    if (
        all(
            0 <= value < 2**63
            for value in (
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
        "counters set aside: outside their range",
        backing_topic=counters.backing_topic,
        source=counters.source,
    )
    return False


def _table(samples: Sequence[tuple[WatchedLog, Counters]], reader: Reader) -> pa.Table:
    """Return the samples as an Arrow table, with instants in the time of the database."""
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
