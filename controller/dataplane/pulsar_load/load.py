"""What the Pulsar data planes delegate to: counters and consumers of their logs, over one session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controller.clock import Clock, SystemClock
from controller.dataplane.base import Counters
from controller.dataplane.pulsar_load.brokers import BrokerList
from controller.dataplane.pulsar_load.consumers import ConsumerReader
from controller.dataplane.pulsar_load.http import HttpSession
from controller.dataplane.pulsar_load.scraper import CounterScraper
from controller.domain.attached import AttachedConsumer

SAMPLE_LIMIT = 1_000_000
"""Logs of one call; each costs some 300 bytes here, and nothing at the broker."""


class PulsarLoad:
    """One cluster. `session` and `admin_urls` are what the data plane's own admin calls use. Connects at first use."""

    def __init__(
        self,
        session: HttpSession,
        admin_urls: Sequence[str],
        *,
        page_seconds: float = 8.0,
        call_timeout_seconds: float = 5.0,
        cluster: str | None = None,
        broker_url: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`page_seconds`: for a broker's whole metrics page; the others as in `BrokerList`."""
        brokers = BrokerList(session, admin_urls, cluster=cluster, broker_url=broker_url)
        self._scraper = CounterScraper(
            session, brokers, deadline_seconds=page_seconds, clock=clock or SystemClock()
        )
        self._consumers = ConsumerReader(session, brokers, deadline_seconds=call_timeout_seconds)

    @property
    def sample_limit(self) -> int:
        """See `SamplesByPage`."""
        return SAMPLE_LIMIT

    def sample(self, backing_topics: Sequence[str]) -> Mapping[str, Counters]:
        """See `DataPlane.sample`; costs one page of every broker, however few logs are asked for."""
        return self._scraper.sample(backing_topics)

    def consumers(self, backing_topics: Sequence[str]) -> Mapping[str, Sequence[AttachedConsumer]]:
        """See `ObservesConsumers.consumers`."""
        return self._consumers.consumers(backing_topics)

    def close(self) -> None:
        """Ends the threads; the session stays its owner's."""
        self._scraper.close()
        self._consumers.close()
