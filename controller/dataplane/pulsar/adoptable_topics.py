"""Describes a topic that applications created before Cleave: its partitions, its clients and its
subscriptions.

Used before a topic is adopted; changes nothing. Cursors of readers and of the broker itself do not count as
subscriptions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from controller.dataplane.base import LogState
from controller.dataplane.optional_abilities import TopicDescription
from controller.dataplane.pulsar import topic_requests
from controller.dataplane.pulsar.admin import AdminCalls, Ask, Deadline
from controller.dataplane.pulsar.names import topic_path
from controller.domain.errors import InvalidInput, TopicNotFound
from controller.domain.pulsar_names import full_name

_MANY = 10_000
"""Largest number of partitions of a topic. A larger number is a mistake."""


def describe_topic(admin: AdminCalls, name: str) -> TopicDescription:
    """Return the description of a topic that applications created: its partitions, their clients and their
    subscriptions. `name` is `persistent://t/n/x`, `t/n/x`, or `x` for public/default. Sends two requests per
    partition, and changes nothing. Partitions that do not exist as topics are listed as `missing`.

    Raises TopicNotFound if the topic has no partitions and does not exist; InvalidInput for an invalid name, and for
    a topic that is not persistent, is a partition of another topic, or has more than `_MANY` partitions;
    DataPlaneUnavailable for an incomplete response; DataPlaneTimeout at the deadline; and the other errors of
    `AdminCalls.ask`.
    """
    name, deadline = full_name(name), admin.deadline()
    count = _demand_adoptable(admin, name, deadline)
    logs = tuple(f"{name}-partition-{i}" for i in range(count)) or (name,)
    internal_requests = [topic_requests.internal_stats(log) for log in logs]
    answers = admin.demand_all(
        [*(topic_requests.stats(log, f"check {log}") for log in logs), *internal_requests], deadline
    )
    stats, internal = answers[: len(logs)], answers[len(logs) :]
    missing = [log for log, answer in zip(logs, stats, strict=True) if answer.status in topic_requests.GONE]
    if missing and not count:
        raise TopicNotFound(f"the cluster has no topic {name}; check tenant, namespace and name")
    statistics = {
        log: topic_requests.mapping(f"check {log}", a.document)
        for log, a in zip(logs, stats, strict=True)
        if a.status not in topic_requests.GONE
    }
    with topic_requests.reading(f"check {name}", statistics):
        return TopicDescription(
            name=name,
            logs=logs,
            missing=tuple(missing),
            terminated=tuple(
                log
                for log, ask, answer in zip(logs, internal_requests, internal, strict=True)
                if topic_requests.state(ask, answer) is LogState.TERMINATED
            ),
            producers=_clients(statistics, _producers),
            consumers=_clients(statistics, _consumers),
            subscriptions=_subscriptions(statistics.values()),
        )


def _demand_adoptable(admin: AdminCalls, name: str, deadline: Deadline) -> int:
    """Return the number of partitions of the topic; 0 if the topic is not partitioned or does not exist. `name` is a
    complete name, `persistent://t/n/x`.

    Raises InvalidInput for a topic that is not persistent, is a partition of another topic, or has more than `_MANY`
    partitions, and the errors of `AdminCalls.ask`.
    """
    if not name.startswith("persistent://"):
        raise InvalidInput(
            f"{name} is not persistent: its messages are lost with its broker; create a persistent topic"
        )
    parent_topic, _, number = name.rpartition("-partition-")
    if parent_topic and number.isdecimal() and _partitions(admin, parent_topic, deadline) > int(number):
        raise InvalidInput(
            f"{name} is a partition of {parent_topic}, whose producers would then be refused; adopt {parent_topic} with all its partitions"
        )
    count = _partitions(admin, name, deadline)
    if count > _MANY:
        raise InvalidInput(f"{name} has {count} partitions; Cleave adopts up to {_MANY}")
    return count


def _partitions(admin: AdminCalls, name: str, deadline: Deadline) -> int:
    """Return the number of the topic's partitions; 0 if it is not partitioned, or does not exist. Raises
    DataPlaneUnavailable for an incomplete response, and the other errors of `AdminCalls.ask`.
    """
    ask = Ask("GET", f"{topic_path(name)}/partitions", f"partitions of {name}", accept=topic_requests.GONE)
    answer = admin.ask(ask, deadline)
    with topic_requests.reading(ask.purpose, answer.document):
        return 0 if answer.status in topic_requests.GONE else int(answer.document["partitions"])


def _clients(
    statistics: Mapping[str, Mapping[str, Any]], clients_of: Callable[[str, Mapping[str, Any]], Iterator[str]]
) -> tuple[str, ...]:
    """Return the sentences that `clients_of` yields for the name and the statistics of each log, sorted, each
    once. `statistics` are by the log's name.
    """
    return tuple(sorted({client for log, stats in statistics.items() for client in clients_of(log, stats)}))


def _producers(log: str, stats: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each producer connected to the log: `name at address on log`."""
    for producer in stats.get("publishers") or ():
        yield f"{producer.get('producerName')} at {producer.get('address')} on {log}"


def _consumers(log: str, stats: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each consumer connected to the log, of any subscription: `name of subscription at
    address on log`.
    """
    for subscription, cursor in (stats.get("subscriptions") or {}).items():
        for consumer in cursor.get("consumers") or ():
            yield f"{consumer.get('consumerName') or 'unnamed'} of {subscription} at {consumer.get('address')} on {log}"


def _subscriptions(statistics: Iterable[Mapping[str, Any]]) -> dict[str, bool]:
    """Return the durable subscriptions of all logs by name, with True if any log shows that the subscription is read
    as a queue (Shared), otherwise False. Subscriptions whose names begin with `__` are left out. `statistics`
    contains the statistics of each log.

    A log without a consumer does not show the type of a subscription. A subscription whose type no log shows has the
    value False.
    """
    subscriptions: dict[str, bool] = {}
    for stats in statistics:
        for name, cursor in (stats.get("subscriptions") or {}).items():
            if cursor.get("isDurable", True) and not name.startswith("__"):
                subscriptions[name] = subscriptions.get(name, False) or cursor.get("type") == "Shared"
    return subscriptions
