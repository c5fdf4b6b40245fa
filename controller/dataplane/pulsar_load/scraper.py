"""Samples the counters of watched logs from the metrics pages of all brokers, for a data plane's `sample`.

All brokers are called at once, and each has until the deadline for its whole page. A page counts whole or not
at all: if a broker is slow, down or dies during the transfer, its logs are not sampled in this tick, and are
neither cold nor hot. Each broker since its start is one source: a restart or a move of a log begins another
one. If an old and a new owner report a log in one tick, the later reading counts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import requests

from controller import metrics, telemetry
from controller.clock import STEADY_CLOCK, to_datetime
from controller.dataplane.base import Counters
from controller.dataplane.pulsar_load.brokers import Broker, BrokerList
from controller.dataplane.pulsar_load.carried_counts import Series
from controller.dataplane.pulsar_load.http import blocks
from controller.dataplane.pulsar_load.metrics_page import Page, watched_labels
from controller.domain.errors import DataPlaneTimeout, Retryable

log = telemetry.get_logger(__name__)

SAMPLE_LIMIT = 1_000_000
"""Largest number of logs of one call of `sample`. Each costs some 300 bytes here, and nothing at the broker."""
AT_ONCE = 64
"""Number of brokers that are read at the same time. Others wait for their turn within the deadline."""
GRACE_SECONDS = 0.5
"""Time after the deadline in which a reading thread may notice it, before the scraper stops waiting for the
thread.
"""


@dataclass(frozen=True, slots=True)
class _Read:
    """The page of one broker. `instant_ms` is the time at which it began to arrive; the counters were taken
    before.
    """

    source: str
    instant_ms: int
    page: Page


class CounterScraper:
    """Reads pages, and keeps the latest counters of watched topics for each broker."""

    def __init__(self, session: requests.Session, brokers: BrokerList, *, deadline_seconds: float) -> None:
        """Use the brokers. `deadline_seconds` is the time limit of one broker's whole page."""
        self._session, self._brokers = session, brokers
        self._deadline_seconds = deadline_seconds
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="broker-page")
        self._lock = threading.Lock()
        self._reading: dict[str, Future[_Read]] = {}
        self._series: dict[str, tuple[str, dict[str, Series]]] = {}
        """Source name of each broker, and the series of each topic on its last page."""

    def sample(self, backing_topics: Sequence[str]) -> dict[str, Counters]:
        """Return the counters of the logs, by name, from the metrics pages of all brokers. A log is absent if no
        broker reported it, if its broker did not send a whole page in time, or if the page lacks one of the log's
        incoming counters. The failure of a broker is logged and counted, and the next call reads the list of brokers
        again (`BrokerList.refresh_soon`). For no logs, returns an empty dict without a request.

        `source` of the counters is the broker's name, with the start of its process if known, and with the time at
        which a deleted subscription was last noticed (`Series.since_ms`) if there was one. Concurrent calls wait for
        each other. Raises DataPlaneUnavailable (DataPlaneTimeout if none was in time) if no broker sent a whole page,
        or the list of brokers cannot be read.
        """
        if not backing_topics:
            return {}
        with self._lock:
            return self._sample(watched_labels(backing_topics))

    def close(self) -> None:
        """Stop the threads without waiting. They end at their deadlines."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _sample(self, watched: Mapping[bytes, str]) -> dict[str, Counters]:
        """Read the metrics pages of all brokers, and return the counters of the watched topics, by name, as `sample`
        describes. `watched` contains the topics' names by label (`watched_labels`). The caller holds the lock.

        A broker whose page of an earlier call still arrives is not called again, and counts as failed. The state of
        brokers that have left the cluster is dropped. If all brokers failed, raises the error of the first broker by
        name. Raises also the errors of `BrokerList.current`.
        """
        deadline = time.monotonic() + self._deadline_seconds
        brokers = self._brokers.current(deadline)
        readings: dict[Broker, Future[_Read]] = {}
        for broker in brokers:
            previous = self._reading.get(broker.name)
            if previous is None or previous.done():  # a second request would only add load
                readings[broker] = self._reading[broker.name] = self._pool.submit(
                    self._read, broker, watched, deadline
                )
        wait(readings.values(), max(deadline - time.monotonic(), 0.0) + GRACE_SECONDS)
        counters: dict[str, Counters] = {}
        errors = [self._take(broker, readings.get(broker), counters) for broker in brokers]
        failed = [error for error in errors if error is not None]
        if failed:
            self._brokers.refresh_soon()
        if len(failed) == len(brokers):
            raise failed[0]
        for name in self._reading.keys() - {broker.name for broker in brokers}:
            del self._reading[name]
            self._series.pop(name, None)  # there is none if no page of the broker was whole
        return counters

    def _read(self, broker: Broker, watched: Mapping[bytes, str], deadline: float) -> _Read:
        """Read the broker's whole metrics page, and return it with its source and the time at which it began to
        arrive. The source is the broker's name, with the start of its process if the page contains that time.
        `deadline` is in `time.monotonic` seconds. Raises DataPlaneTimeout if the page is not complete at the
        deadline, and DataPlaneUnavailable if the request fails, the page ends within a line, or `Page.feed` refuses
        the page.
        """
        page, instant_ms = Page(watched), None
        for block in blocks(self._session, f"{broker.url}/metrics/", deadline):
            instant_ms = instant_ms or STEADY_CLOCK.now_ms()
            page.feed(block)
        page.finish()
        started = page.started_at_ms
        since = "" if started is None else f"@{to_datetime(started):%Y%m%dT%H%M%S}Z"
        return _Read(broker.name + since, instant_ms or STEADY_CLOCK.now_ms(), page)

    def _take(
        self, broker: Broker, reading: Future[_Read] | None, sampled: dict[str, Counters]
    ) -> Retryable | None:
        """Add the counters of a broker's page to `sampled`, by log, and store the page's series for the next call. A
        log that lacks an incoming counter is left out. If `sampled` already has the counters of a log from another
        broker, the later reading stays; of equally late readings, that of this call.

        `reading` is the reading of the page; None if the page of an earlier call still arrives. Return None if the
        page is whole. Otherwise log and count the failure, and return the error without raising it: DataPlaneTimeout
        if the page did not arrive in time. `sampled` and the stored series then do not change.
        """
        try:
            if reading is None or not reading.done():
                raise DataPlaneTimeout(f"broker {broker.name} did not send its whole page in time")
            read = reading.result()
        except Retryable as error:
            metrics.BROKER_PAGES.labels("silent").inc()
            log.warning(
                "broker did not respond; its logs are not sampled", broker=broker.name, error=str(error)
            )
            return error
        metrics.BROKER_PAGES.labels("whole").inc()
        source, before = self._series.get(broker.name, ("", {}))
        series: dict[str, Series] = {}
        for topic, counters in read.page.topics.items():
            if counters.msg_in is None or counters.byte_in is None:
                continue
            previous = before.get(topic) if source == read.source else None
            topic_series = series[topic] = (
                Series(counters) if previous is None else previous.next(counters, read.instant_ms)
            )
            name = read.source if topic_series.since_ms is None else f"{read.source}~{topic_series.since_ms}"
            sample = Counters(
                topic,
                name,
                read.instant_ms,
                counters.msg_in,
                counters.byte_in,
                topic_series.msg_out,
                topic_series.byte_out,
                counters.producers,
            )
            earlier = sampled.get(topic)
            if earlier is None or earlier.instant_ms <= sample.instant_ms:
                sampled[topic] = sample
        self._series[broker.name] = (read.source, series)
        return None
