"""What the Pulsar data planes delegate to: counters and consumers of their logs, over one session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controller.clock import STEADY_CLOCK, Clock
from controller.dataplane.base import Counters
from controller.dataplane.load_settings import LoadSettings
from controller.dataplane.pulsar_load.brokers import BrokerList
from controller.dataplane.pulsar_load.consumers import ConsumerReader
from controller.dataplane.pulsar_load.http import HttpSession
from controller.dataplane.pulsar_load.scraper import CounterScraper
from controller.domain.observed_consumers import ObservedConsumer

AS_USUAL = LoadSettings()
SAMPLE_LIMIT = 1_000_000
"""Logs of one call; each costs some 300 bytes here, and nothing at the broker."""


class PulsarLoad:
    """One cluster. `session` and `admin_urls` are what the data plane's own admin calls use. Connects at first use."""

    def __init__(
        self,
        session: HttpSession,
        admin_urls: Sequence[str],
        settings: LoadSettings = AS_USUAL,
        *,
        call_timeout_seconds: float = 5.0,
        clock: Clock | None = None,
    ) -> None:
        """`call_timeout_seconds`: for one call of `consumers`."""
        brokers = BrokerList(session, admin_urls, cluster=settings.cluster, broker_url=settings.broker_url)
        self._scraper = CounterScraper(
            session, brokers, deadline_seconds=settings.page_seconds, clock=clock or STEADY_CLOCK
        )
        self._consumers = ConsumerReader(session, brokers, deadline_seconds=call_timeout_seconds)
        self._pages_from = settings.pages_from

    @property
    def sample_limit(self) -> int:
        """See `SamplesByPage`."""
        return SAMPLE_LIMIT

    def reads_pages_for(self, backing_topics: Sequence[str]) -> bool:
        """Whether there are enough of them to read the pages of all brokers, which hold all their other topics too."""
        return len(backing_topics) >= self._pages_from

    def sample(self, backing_topics: Sequence[str]) -> Mapping[str, Counters]:
        """See `DataPlane.sample`; costs one page of every broker, however few logs are asked for."""
        return self._scraper.sample(backing_topics)

    def consumers(self, backing_topics: Sequence[str]) -> Mapping[str, Sequence[ObservedConsumer]]:
        """See `ObservesConsumers.consumers`."""
        return self._consumers.consumers(backing_topics)

    def close(self) -> None:
        """Ends the threads. The session's owner closes it."""
        self._scraper.close()
        self._consumers.close()
