"""Combines the readers of counters and consumers for the Pulsar data planes, over one session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import requests

from controller.clock import STEADY_CLOCK, Clock
from controller.dataplane.base import Counters
from controller.dataplane.load_settings import LoadSettings
from controller.dataplane.pulsar_load.brokers import BrokerList
from controller.dataplane.pulsar_load.consumers import ConsumerReader
from controller.dataplane.pulsar_load.scraper import CounterScraper
from controller.domain.observed_consumers import ObservedConsumer

DEFAULT_SETTINGS = LoadSettings()
SAMPLE_LIMIT = 1_000_000
"""Largest number of logs of one call. Each costs some 300 bytes here, and nothing at the broker."""


class PulsarLoad:
    """The load of one cluster. `session` and `admin_urls` are those of the data plane's own admin calls.
    Connects at the first use.
    """

    def __init__(
        self,
        session: requests.Session,
        admin_urls: Sequence[str],
        settings: LoadSettings = DEFAULT_SETTINGS,
        *,
        call_timeout_seconds: float = 5.0,
        clock: Clock | None = None,
    ) -> None:
        """Use the cluster. `call_timeout_seconds` is the time limit of one call of `consumers`;
        `settings.page_seconds` limits one call of `sample`. `clock` gives the times of samples; None:
        `STEADY_CLOCK`. Raises InvalidInput for an invalid `broker_url` in `settings`, or empty `admin_urls`.
        """
        brokers = BrokerList(session, admin_urls, cluster=settings.cluster, broker_url=settings.broker_url)
        self._scraper = CounterScraper(
            session, brokers, deadline_seconds=settings.page_seconds, clock=clock or STEADY_CLOCK
        )
        self._consumers = ConsumerReader(session, brokers, deadline_seconds=call_timeout_seconds)
        self._pages_from = settings.pages_from

    @property
    def sample_limit(self) -> int:
        """Largest number of logs that one call of `sample` should name."""
        return SAMPLE_LIMIT

    def reads_pages_for(self, backing_topics: Sequence[str]) -> bool:
        """Return True if the logs are so many, at least `pages_from` of the settings, that the pages of all
        brokers, which also contain other topics, are worth reading.
        """
        return len(backing_topics) >= self._pages_from

    def sample(self, backing_topics: Sequence[str]) -> Mapping[str, Counters]:
        """Return the counters of the logs, by name. A log that no broker reported in time is absent. Reads one
        metrics page of every broker, however few logs are requested, and waits for the pages for `page_seconds` of
        the settings and `scraper.GRACE_SECONDS`. For no logs, the result is empty, without a request. Concurrent
        calls wait for each other. Raises DataPlaneUnavailable (DataPlaneTimeout at the deadline) if no broker
        responded, or if the list of brokers cannot be read.
        """
        return self._scraper.sample(backing_topics)

    def consumers(self, backing_topics: Sequence[str]) -> Mapping[str, Sequence[ObservedConsumer]]:
        """Return the consumers attached to each log, by name. Consumers of non-durable subscriptions, and of
        subscriptions whose names begin with `__`, do not count. A missing log has an empty list; a log that
        did not respond is absent. Raises Retryable if no log responded.
        """
        return self._consumers.consumers(backing_topics)

    def close(self) -> None:
        """End the threads. The session's owner closes the session."""
        self._scraper.close()
        self._consumers.close()
