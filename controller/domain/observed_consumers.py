"""How many consumers an application has, counted from what brokers list: for applications that never register any.

A consumer that several segments list under one name is one. Names a client library made up are new for each segment, so
the same process would count once a segment, and every split would ask for the next. Of such consumers, and of those
without a name, the fewest are counted that there can be.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

SHARED = "Shared"
"""The one type that is read as a queue: more consumers than segments are no reason for a split there."""

_MADE_UP = re.compile(r"|[0-9a-f]{5}|[0-9a-f]{10}|[a-z]{5}")
"""What the Java (and Python's regex consumers), C++ and Go libraries call a consumer without a name."""


class ObservedConsumer(NamedTuple):
    """One consumer on one log as its broker lists it.

    `subscription_type` is the broker's word (Exclusive, Failover, Key_Shared, Shared); `name` is empty where the client
    gave none; `connection` is the client's address, which the consumers of one client share at one `broker`.
    """

    subscription: str
    subscription_type: str
    name: str
    connection: str
    broker: str


@dataclass(frozen=True, slots=True)
class SubscriptionUse:
    """How a subscription is used: its type, how many consume, and the names there are, sorted."""

    subscription_type: str
    consumers: int
    names: tuple[str, ...]


def subscription_uses(logs: Mapping[str, Iterable[ObservedConsumer]]) -> dict[str, SubscriptionUse]:
    """Use of each subscription over the logs of one topic; one without a consumer is left out."""
    found: defaultdict[str, list[tuple[str, ObservedConsumer]]] = defaultdict(list)
    for log, attached in logs.items():
        for consumer in attached:
            found[consumer.subscription].append((log, consumer))
    return {subscription: _use(listed) for subscription, listed in sorted(found.items())}


def _use(listed: list[tuple[str, ObservedConsumer]]) -> SubscriptionUse:
    # Logs may differ for a moment, while an application changes the type: ordered reading weighs more.
    kinds = {consumer.subscription_type for _, consumer in listed}
    logs_of: defaultdict[str, set[str]] = defaultdict(set)
    for log, consumer in listed:
        logs_of[consumer.name].add(log)
    one_each = {name for name, logs in logs_of.items() if _MADE_UP.fullmatch(name) and len(logs) == 1}
    one_each.add("")
    unnamed = [(log, consumer) for log, consumer in listed if consumer.name in one_each]
    return SubscriptionUse(
        min(kinds - {SHARED}, default=SHARED),
        len(logs_of.keys() - one_each) + _fewest(unnamed),
        tuple(sorted(logs_of.keys() - {""})),
    )


def _fewest(unnamed: Iterable[tuple[str, ObservedConsumer]]) -> int:
    """The fewest there can be: of each connection those on one log, of all brokers the one with most."""
    on_log = Counter((consumer.broker, consumer.connection, log) for log, consumer in unnamed)
    of_connection: Counter[tuple[str, str]] = Counter()
    for (broker, connection, _), count in on_log.items():
        of_connection[broker, connection] = max(of_connection[broker, connection], count)
    of_broker: Counter[str] = Counter()
    for (broker, _), count in of_connection.items():
        of_broker[broker] += count
    return max(of_broker.values(), default=0)
