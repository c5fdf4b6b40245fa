"""Counts an application's consumers from what brokers list, for applications that never register a consumer.

A consumer that several segments list under one name counts once. A name that a client library generated differs for
each segment, so the same process would count once per segment, and every split would lead to the next. Of such
consumers, and of those without a name, the smallest possible number is counted.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

SHARED = "Shared"
"""The only subscription type that is treated as a queue: more consumers than segments do not cause a split there."""

_GENERATED_NAME = re.compile(r"|[0-9a-f]{5}|[0-9a-f]{10}|[a-z]{5}")
"""Names that the Java (and Python's regex consumers), C++ and Go libraries generate for a consumer without a name."""


class ObservedConsumer(NamedTuple):
    """One consumer on one log as the log's broker lists it.

    `subscription_type` is the broker's word (Exclusive, Failover, Key_Shared, Shared); `name` is empty if the client
    gave none; `connection` is the client's address, which the consumers of one client share at one `broker`.
    """

    subscription: str
    subscription_type: str
    name: str
    connection: str
    broker: str


@dataclass(frozen=True, slots=True)
class SubscriptionUse:
    """The use of a subscription: its type, its number of consumers, and their names, sorted, each once.

    Several generated names may belong to the same consumer, and consumers without a name count too, so there may be
    more names or fewer names than consumers.
    """

    subscription_type: str
    consumers: int
    names: tuple[str, ...]


def subscription_uses(logs: Mapping[str, Iterable[ObservedConsumer]]) -> dict[str, SubscriptionUse]:
    """Return the use of each subscription, by the subscription's name, over the logs of one topic (`logs`: the
    consumers of each log, by the log's name); a subscription without a consumer is left out.
    """
    by_subscription: defaultdict[str, list[tuple[str, ObservedConsumer]]] = defaultdict(list)
    for log, attached in logs.items():
        for consumer in attached:
            by_subscription[consumer.subscription].append((log, consumer))
    return {subscription: _use(pairs) for subscription, pairs in sorted(by_subscription.items())}


def _use(pairs: list[tuple[str, ObservedConsumer]]) -> SubscriptionUse:
    """Return the use of one subscription. `pairs`: the name of a log, and a consumer of the subscription on this log.

    If the consumers have several types, the alphabetically first type other than `Shared` counts. Each name counts as
    one consumer, with two exceptions: the empty name, and a name that looks generated and occurs on one log only. For
    the consumers with such names, the smallest possible number is added (`_minimum`).
    """
    # Logs may differ for a moment while an application changes the type, so ordered reading takes precedence.
    kinds = {consumer.subscription_type for _, consumer in pairs}
    logs_of: defaultdict[str, set[str]] = defaultdict(set)
    for log, consumer in pairs:
        logs_of[consumer.name].add(log)
    counted_once = {
        name for name, logs in logs_of.items() if _GENERATED_NAME.fullmatch(name) and len(logs) == 1
    }
    counted_once.add("")
    unnamed = [(log, consumer) for log, consumer in pairs if consumer.name in counted_once]
    return SubscriptionUse(
        min(kinds - {SHARED}, default=SHARED),
        len(logs_of.keys() - counted_once) + _minimum(unnamed),
        tuple(sorted(logs_of.keys() - {""})),
    )


def _minimum(unnamed: Iterable[tuple[str, ObservedConsumer]]) -> int:
    """Return the smallest possible number of consumers to which the pairs can belong; 0 without pairs. Each pair has
    the name of a log and a consumer on this log whose name does not identify the consumer.

    A connection has at least as many consumers as the connection has on any single log. The number of a broker is the
    sum over the connections of the broker. Consumers of several brokers may be the same, so the result is the largest
    number of a broker.
    """
    on_log = Counter((consumer.broker, consumer.connection, log) for log, consumer in unnamed)
    of_connection: Counter[tuple[str, str]] = Counter()
    for (broker, connection, _), count in on_log.items():
        of_connection[broker, connection] = max(of_connection[broker, connection], count)
    of_broker: Counter[str] = Counter()
    for (broker, _), count in of_connection.items():
        of_broker[broker] += count
    return max(of_broker.values(), default=0)
