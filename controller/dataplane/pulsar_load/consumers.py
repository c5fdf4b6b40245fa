"""Consumers attached to logs, from each log's own statistics: names, subscription types, connections.

Not from `broker-stats/topics`, which brokers renew once a minute: the worker is to react within seconds. A broker that
does not own the log redirects to the one that does, which is asked first the next time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any
from zlib import crc32

from controller import telemetry
from controller.dataplane.pulsar_load.brokers import BrokerList
from controller.dataplane.pulsar_load.http import REDIRECTS, Answer, HttpSession, ask, origin
from controller.domain.errors import DataPlaneTimeout, DataPlaneUnavailable, Retryable
from controller.domain.names import quoted
from controller.domain.observed_consumers import ObservedConsumer

log = telemetry.get_logger(__name__)

AT_ONCE = 8
"""Logs asked about at the same time; a broker answers each in some milliseconds."""
QUIET_SECONDS = 10.0
"""A broker that did not answer in time is not asked again for this long, since its logs would hold up all others."""
_OPTIONS = "?getPreciseBacklog=false&subscriptionBacklogSize=false&excludePublishers=true"


class ConsumerReader:
    """Asks for statistics; remembers which broker owned which log."""

    def __init__(self, session: HttpSession, brokers: BrokerList, *, deadline_seconds: float) -> None:
        """`deadline_seconds` is for one call of `consumers`, however many logs it names."""
        self._session, self._brokers = session, brokers
        self._deadline_seconds = deadline_seconds
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="consumers")
        self._owners: dict[str, str] = {}
        self._quiet_until: dict[str, float] = {}

    def consumers(self, backing_topics: Sequence[str]) -> dict[str, list[ObservedConsumer]]:
        """Consumers of each log that could be asked about; a missing log has none, a silent one is absent.

        Raises Retryable when not one could be.
        """
        deadline = time.monotonic() + self._deadline_seconds
        brokers = [origin(broker.url) for broker in self._brokers.current(deadline)]
        asked = {topic: self._pool.submit(self._ask, topic, brokers, deadline) for topic in backing_topics}
        wait(asked.values(), max(deadline - time.monotonic(), 0.0))
        found: dict[str, list[ObservedConsumer]] = {}
        error: Retryable | None = None
        for topic, answer in asked.items():
            if not answer.done():
                answer.cancel()
                if topic in self._owners:  # its thread would notice that only a moment later
                    self._quiet_until[self._owners[topic]] = time.monotonic() + QUIET_SECONDS
                error = DataPlaneTimeout(f"nobody said in time who consumes from {topic}")
                continue
            try:
                found[topic] = answer.result()
            except Retryable as failure:
                self._owners.pop(topic, None)
                error = failure
        if error is not None:
            self._brokers.doubt()
            if not found:
                raise error
            log.warning("some logs are silent", silent=len(asked) - len(found), error=str(error))
        return found

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _ask(self, topic: str, brokers: Sequence[str], deadline: float) -> list[ObservedConsumer]:
        path = f"{_path(topic)}{_OPTIONS}"
        broker = self._owners.get(topic) or brokers[crc32(topic.encode()) % len(brokers)]
        for _ in range(REDIRECTS + 1):
            answer = self._ask_broker(broker, path, deadline)
            if answer.moved_to is None:
                self._owners[topic] = broker
                return [] if answer.document is None else list(_attached(answer.document, broker))
            broker = origin(answer.moved_to)
            if broker not in brokers:  # the session's token goes to brokers of the cluster only
                raise DataPlaneUnavailable(
                    f"{broker}, named as the owner of {topic}, is no broker of the cluster"
                )
        raise DataPlaneUnavailable(f"brokers send each other's way for {topic}; the last was {broker}")

    def _ask_broker(self, broker: str, path: str, deadline: float) -> Answer:
        if time.monotonic() < self._quiet_until.get(broker, 0.0):
            raise DataPlaneTimeout(f"broker {broker} did not answer lately")
        try:
            return ask(self._session, broker + path, deadline)
        except DataPlaneTimeout:
            self._quiet_until[broker] = time.monotonic() + QUIET_SECONDS
            raise


def _path(topic: str) -> str:
    domain, _, rest = topic.partition("://")
    tenant, namespace, name = rest.split("/", 2)
    return f"/admin/v2/{domain}/{quoted(tenant)}/{quoted(namespace)}/{quoted(name)}/stats"


def _attached(stats: Mapping[str, Any], broker: str) -> Iterator[ObservedConsumer]:
    """Consumers of durable subscriptions that applications made. Those of readers do not count, since their cursors end
    with them.
    """
    for name, subscription in stats.get("subscriptions", {}).items():
        if name.startswith("__") or not subscription.get("isDurable", subscription.get("durable", True)):
            continue
        for consumer in subscription.get("consumers", ()):
            yield ObservedConsumer(
                name,
                subscription.get("type", ""),
                consumer.get("consumerName", ""),
                consumer.get("address", ""),
                broker,
            )
