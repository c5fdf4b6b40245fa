"""Reads the consumers attached to logs, from each log's own statistics: names, subscription types,
connections.

`broker-stats/topics` is not used, because brokers refresh it only once a minute, and the worker must react
within seconds. A broker that does not own the log redirects to the owner, which is called first the next
time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any
from zlib import crc32

import requests

from controller import telemetry
from controller.dataplane.pulsar_load.brokers import BrokerList
from controller.dataplane.pulsar_load.http import REDIRECTS, Answer, ask, origin
from controller.domain.errors import DataPlaneTimeout, DataPlaneUnavailable, InvalidInput, Retryable
from controller.domain.names import quoted
from controller.domain.observed_consumers import ObservedConsumer
from controller.domain.pulsar_names import full_name

log = telemetry.get_logger(__name__)

AT_ONCE = 8
"""Number of logs whose statistics are read at the same time. A broker responds within some milliseconds."""
QUIET_SECONDS = 10.0
"""Time for which a broker that did not respond in time is not called again, because its logs would delay all
others.
"""
FORGET_SECONDS = 3600.0
"""Time without a call for a log after which its owner is forgotten, at the latest after twice this time. Logs
of deleted segments would otherwise be remembered for as long as the process runs.
"""
MARGIN_SECONDS = 0.5
"""Time after the deadline in which threads note which brokers did not respond."""
_OPTIONS = "?getPreciseBacklog=false&subscriptionBacklogSize=false&excludePublishers=true"


class ConsumerReader:
    """Reads the consumers of logs from the brokers' statistics, and remembers the broker that owned each log."""

    def __init__(self, session: requests.Session, brokers: BrokerList, *, deadline_seconds: float) -> None:
        """Use the brokers. `deadline_seconds` is the time limit of one call of `consumers`, however many logs
        it names.
        """
        self._session, self._brokers = session, brokers
        self._deadline_seconds = deadline_seconds
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="consumers")
        self._owners: dict[str, str] = {}
        """Owners of the logs that were read since `_forgot_at`."""
        self._earlier_owners: dict[str, str] = {}
        """Owners of the logs that were read in the `FORGET_SECONDS` before."""
        self._forgot_at = time.monotonic()
        self._quiet_until: dict[str, float] = {}

    def consumers(self, backing_topics: Sequence[str]) -> dict[str, list[ObservedConsumer]]:
        """Return the consumers of each log, by the log's name (`persistent://tenant/namespace/name`). Consumers of
        non-durable subscriptions, and of subscriptions whose names begin with `__`, do not count. A missing log has
        an empty list. A log whose broker did not respond in time, or refused, is absent, and a warning is logged;
        empty for no logs.

        If a log is absent, the next call reads the list of brokers again (`BrokerList.refresh_soon`). A broker that
        did not respond to a call which had at least half of the time limit is not called again for `QUIET_SECONDS`.
        Raises DataPlaneUnavailable or DataPlaneTimeout if all requested logs failed, or if the list of brokers cannot
        be read; and InvalidInput for a name that lacks a part.
        """
        self._forget_owners()
        deadline = time.monotonic() + self._deadline_seconds
        brokers = [origin(broker.url) for broker in self._brokers.current(deadline)]
        futures = {topic: self._pool.submit(self._ask, topic, brokers, deadline) for topic in backing_topics}
        wait(futures.values(), max(deadline - time.monotonic(), 0.0) + MARGIN_SECONDS)
        consumers: dict[str, list[ObservedConsumer]] = {}
        error: Retryable | None = None
        for topic, future in futures.items():
            if not future.done():
                future.cancel()
                error = DataPlaneTimeout(f"no broker returned the consumers of {topic} in time")
                continue
            try:
                consumers[topic] = future.result()
            except Retryable as failure:
                self._owners.pop(topic, None)
                self._earlier_owners.pop(topic, None)
                error = failure
        if error is not None:
            self._brokers.refresh_soon()
            if not consumers:
                raise error
            log.warning("some logs did not respond", silent=len(futures) - len(consumers), error=str(error))
        return consumers

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _forget_owners(self) -> None:
        """If `FORGET_SECONDS` have passed since owners were last forgotten, forget the owners of the logs that were
        not read since then. Otherwise do nothing. The owner of a log is therefore forgotten at the latest twice
        `FORGET_SECONDS` after its last read.
        """
        now = time.monotonic()
        if now - self._forgot_at >= FORGET_SECONDS:
            self._forgot_at = now
            self._owners, self._earlier_owners = {}, self._owners

    def _ask(self, topic: str, brokers: Sequence[str], deadline: float) -> list[ObservedConsumer]:
        """Request the topic's consumers from the broker that owns the topic, following redirects, and return them.
        Empty if the topic does not exist. The broker that answered is remembered as the owner. Consumers of
        non-durable subscriptions, and of subscriptions whose names begin with `__`, do not count.

        `brokers` are the addresses of the cluster's brokers, at least one. A redirect is followed only to one of
        these addresses, because the session sends its token there. `deadline` is in `time.monotonic` seconds. Raises
        DataPlaneUnavailable for a redirect to another server, after more than `REDIRECTS` redirects, and for a failed
        call; DataPlaneTimeout at the deadline, and without a call if a broker to ask did not respond in time within
        the last `QUIET_SECONDS`.
        """
        path = f"{_path(topic)}{_OPTIONS}"
        broker = self._first_broker(topic, brokers)
        for _ in range(REDIRECTS + 1):
            answer = self._ask_broker(broker, path, deadline)
            if answer.moved_to is None:
                self._owners[topic] = broker
                return _attached(_statistics(answer, topic, broker), topic, broker)
            broker = origin(answer.moved_to)
            if broker not in brokers:  # the session's token is sent only to brokers of the cluster
                raise DataPlaneUnavailable(
                    f"{broker}, named as the owner of {topic}, is not a broker of the cluster"
                )
        raise DataPlaneUnavailable(f"brokers redirect in a loop for {topic}; the last was {broker}")

    def _first_broker(self, topic: str, brokers: Sequence[str]) -> str:
        """Return the address of the broker to ask first about the topic. This is the remembered owner of the topic,
        if it is among `brokers` (addresses, at least one), even if the owner recently did not respond in time.
        Otherwise the topic's name determines one of `brokers`. Brokers that did not respond in time within the last
        `QUIET_SECONDS` are then left out, unless none would be left.
        """
        owner = self._owners.get(topic) or self._earlier_owners.get(topic)
        if owner is not None and owner in brokers:
            return owner
        now = time.monotonic()
        responding = [broker for broker in brokers if now >= self._quiet_until.get(broker, 0.0)] or brokers
        return responding[crc32(topic.encode()) % len(responding)]

    def _ask_broker(self, broker: str, path: str, deadline: float) -> Answer:
        """Send the broker at the address `broker` a GET of `path`, which includes the query, and return the response.
        `deadline` is in `time.monotonic` seconds. Raises DataPlaneUnavailable for a failed call; DataPlaneTimeout at
        the deadline; and DataPlaneTimeout without a call if the broker is quiet, that is, did not respond in time
        within the last `QUIET_SECONDS`.

        A time-out makes the broker quiet only if the call had at least half of the time limit of `consumers`. A
        shorter call, which first waited for a thread, does not show that the broker is slow.
        """
        if time.monotonic() < self._quiet_until.get(broker, 0.0):
            raise DataPlaneTimeout(f"broker {broker} did not respond recently")
        started = time.monotonic()
        try:
            return ask(self._session, broker + path, deadline)
        except DataPlaneTimeout:
            now = time.monotonic()
            if now - started >= self._deadline_seconds / 2:
                self._quiet_until[broker] = now + QUIET_SECONDS
            raise


def _path(topic: str) -> str:
    """Return the path of the statistics of a topic, `persistent://t/n/x`, each part percent-encoded. A short name
    is completed by `full_name`. Raises InvalidInput for a name that lacks a part.
    """
    domain, _, path = full_name(topic).partition("://")
    parts = path.split("/", 2)
    if len(parts) < 3:
        raise InvalidInput(f"{topic!r} is not a topic; name it as persistent://tenant/namespace/name")
    return f"/admin/v2/{domain}/{'/'.join(map(quoted, parts))}/stats"


def _statistics(answer: Answer, topic: str, broker: str) -> Mapping[str, Any]:
    """Return the statistics of the topic in the answer of `broker`; empty if the topic does not exist. Sends nothing.
    Raises DataPlaneUnavailable, with the names of the broker and the topic, if the document is not an object.
    """
    if answer.document is None:
        return {}
    if not isinstance(answer.document, dict):
        raise DataPlaneUnavailable(
            f"{broker} sent no statistics of {topic} but {str(answer.document)[:100]!r}"
        )
    return answer.document


def _attached(stats: Mapping[str, Any], topic: str, broker: str) -> list[ObservedConsumer]:
    """Return the consumers in the topic's statistics, which `broker` sent. Consumers of non-durable
    subscriptions, such as readers, and of subscriptions whose names begin with `__`, which are the broker's
    own, do not count. Raises DataPlaneUnavailable for incomplete statistics.
    """
    try:
        return [
            ObservedConsumer(
                name,
                subscription.get("type", ""),
                consumer.get("consumerName", ""),
                consumer.get("address", ""),
                broker,
            )
            for name, subscription in stats.get("subscriptions", {}).items()
            if not name.startswith("__") and subscription.get("isDurable", subscription.get("durable", True))
            for consumer in subscription.get("consumers", ())
        ]
    except (AttributeError, TypeError):
        raise DataPlaneUnavailable(f"{broker} sent incomplete statistics of {topic}; try again") from None
