"""Counters of watched logs from the metrics pages of every broker, as a data plane's `sample` gives them.

All brokers are asked at once and each has until the deadline for its whole page; a page counts whole or not at all,
so that a broker that is slow, down or dies on the way is silent for this tick and its logs are neither cold nor hot.
Each broker since its start is one source: a restart and a move begin a new one. A log that an old and a new owner
both report in one tick is the later reader's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from controller import metrics, telemetry
from controller.clock import Clock, to_datetime
from controller.dataplane.base import Counters
from controller.dataplane.pulsar_load.brokers import Broker, BrokerList
from controller.dataplane.pulsar_load.http import HttpSession, blocks
from controller.dataplane.pulsar_load.page import Page, watched_labels
from controller.dataplane.pulsar_load.series import Series
from controller.domain.errors import DataPlaneTimeout, Retryable

log = telemetry.get_logger(__name__)

AT_ONCE = 64
"""Brokers read at the same time; more wait for a turn within the deadline."""
GRACE_SECONDS = 0.5
"""How much later than its deadline a reader may notice it before it is left behind."""


@dataclass(frozen=True, slots=True)
class _Read:
    """One broker's page; the instant is when it began to arrive: the counters are taken before."""

    source: str
    instant_ms: int
    page: Page


class CounterScraper:
    """Reads pages; keeps, per broker, the last one's counters of watched topics."""

    def __init__(
        self, session: HttpSession, brokers: BrokerList, *, deadline_seconds: float, clock: Clock
    ) -> None:
        """`deadline_seconds` is for one broker's whole page."""
        self._session, self._brokers = session, brokers
        self._deadline_seconds, self._clock = deadline_seconds, clock
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="broker-page")
        self._lock = threading.Lock()
        self._reading: dict[str, Future[_Read]] = {}
        self._series: dict[str, tuple[str, dict[str, Series]]] = {}
        """By broker: its source name, and the series of each topic of its last page."""

    def sample(self, backing_topics: Sequence[str]) -> dict[str, Counters]:
        """Counters of those that a broker reported. DataPlaneUnavailable when no broker did."""
        if not backing_topics:
            return {}
        with self._lock:
            return self._sample(watched_labels(backing_topics))

    def close(self) -> None:
        """Does not wait: readers end at their deadline."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _sample(self, watched: Mapping[bytes, str]) -> dict[str, Counters]:
        deadline = time.monotonic() + self._deadline_seconds
        brokers = self._brokers.current(deadline)
        begun: dict[Broker, Future[_Read]] = {}
        for broker in brokers:
            left_behind = self._reading.get(broker.name)
            if left_behind is None or left_behind.done():  # a second request would only pile up
                begun[broker] = self._reading[broker.name] = self._pool.submit(
                    self._read, broker, watched, deadline
                )
        wait(begun.values(), max(deadline - time.monotonic(), 0.0) + GRACE_SECONDS)
        found: dict[str, Counters] = {}
        errors = [self._take(broker, begun.get(broker), found) for broker in brokers]
        failed = [error for error in errors if error is not None]
        if failed:
            self._brokers.doubt()
        if len(failed) == len(brokers):
            raise failed[0]
        gone = self._series.keys() - {broker.name for broker in brokers}
        for name in gone:
            del self._series[name], self._reading[name]
        return found

    def _read(self, broker: Broker, watched: Mapping[bytes, str], deadline: float) -> _Read:
        page, instant_ms = Page(watched), None
        for block in blocks(self._session, f"{broker.url}/metrics/", deadline):
            instant_ms = instant_ms or self._clock.now_ms()
            page.feed(block)
        page.finish()
        started = page.started_at_ms
        since = "" if started is None else f"@{to_datetime(started):%Y%m%dT%H%M%S}Z"
        return _Read(broker.name + since, instant_ms or self._clock.now_ms(), page)

    def _take(
        self, broker: Broker, reading: Future[_Read] | None, found: dict[str, Counters]
    ) -> Retryable | None:
        """Adds a broker's counters to `found`, or says why there are none."""
        try:
            if reading is None or not reading.done():
                raise DataPlaneTimeout(f"broker {broker.name} did not give its page whole in time")
            read = reading.result()
        except Retryable as error:
            metrics.BROKER_PAGES.labels("silent").inc()
            log.warning("broker is silent: its logs are not sampled", broker=broker.name, error=str(error))
            return error
        metrics.BROKER_PAGES.labels("whole").inc()
        source, before = self._series.get(broker.name, ("", {}))
        series: dict[str, Series] = {}
        for topic, counters in read.page.topics.items():
            if counters.msg_in is None or counters.byte_in is None:
                continue
            known = before.get(topic) if source == read.source else None
            one = series[topic] = Series(counters) if known is None else known.next(counters, read.instant_ms)
            name = read.source if one.since_ms is None else f"{read.source}~{one.since_ms}"
            mine = Counters(
                topic,
                name,
                read.instant_ms,
                counters.msg_in,
                counters.byte_in,
                one.msg_out,
                one.byte_out,
                counters.producers,
            )
            other = found.get(topic)
            if other is None or other.instant_ms <= mine.instant_ms:
                found[topic] = mine
        self._series[broker.name] = (read.source, series)
        return None
