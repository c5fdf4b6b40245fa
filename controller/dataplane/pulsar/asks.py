"""Requests about one topic, and how their answers are read; for `plane`, `set_wise` and `existing`, which send them.

Only subscriptions that outlive their consumers count. Temporary ones of readers and the broker's own do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.dataplane.base import CursorReport, LogState
from controller.dataplane.pulsar.admin import Answer, Ask
from controller.dataplane.pulsar.names import namespace_path, subscription_path, topic_path
from controller.domain.errors import DataPlaneUnavailable
from controller.domain.log_origin import LogOrigin
from controller.domain.pulsar_names import namespace_of

EXISTS = frozenset({409})
GONE = frozenset({404})
FAILED = frozenset({500})
PRECISE_BACKLOG = "?getPreciseBacklog=true"
"""Query of `stats` that has the broker count the entries of each backlog."""
_EARLIEST = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
_BROKERS_OWN = frozenset({"__compaction"})
_NO_ENTRY = ":-1"
"""End of a position before the first entry of a ledger."""
_NO_TYPE = frozenset({None, "", "None"})
"""Types of a subscription that had no consumer since the broker loaded the topic."""


def namespace_of_topic(topic: str) -> Ask:
    """The topics in the namespace of a topic. NotFound where there is no such namespace."""
    namespace = namespace_of(topic)
    return Ask("GET", f"persistent/{namespace_path(namespace)}", f"look at namespace {namespace}")


def create_topic(backing_topic: str, origin: LogOrigin | None) -> Ask:
    """Make a topic without partitions. If it is there already, the answer is EXISTS and it keeps its properties."""
    properties = origin.to_properties() if origin else None
    return Ask("PUT", topic_path(backing_topic), f"create {backing_topic}", body=properties, accept=EXISTS)


def properties(backing_topic: str) -> Ask:
    """Read the properties of a topic."""
    path = f"{topic_path(backing_topic)}/properties"
    return Ask("GET", path, f"read the properties of {backing_topic}", accept=GONE)


def origin(ask: Ask, answer: Answer) -> LogOrigin | None:
    """Return the origin that the topic's properties hold. None if there is no origin, no such topic or no such call."""
    if answer.status in GONE or answer.document is None:
        return None
    if not isinstance(answer.document, Mapping):
        raise unreadable(ask.act, answer.document)
    return LogOrigin.from_properties(answer.document)


def create_cursor(backing_topic: str, subscription: str) -> Ask:
    """Make a subscription at earliest. If it is there already, the answer is EXISTS and it keeps its position."""
    act = f"subscribe {subscription!r} to {backing_topic}"
    path = f"{topic_path(backing_topic)}/subscription/{subscription_path(subscription)}"
    return Ask("PUT", path, act, body=_EARLIEST, accept=EXISTS)


def terminate(backing_topic: str) -> Ask:
    """Close it for producers."""
    return Ask("POST", f"{topic_path(backing_topic)}/terminate", f"terminate {backing_topic}")


def position(ask: Ask, answer: Answer) -> str:
    """`ledger:entry` of the last entry of a topic that was terminated."""
    try:
        return f"{answer.document['ledgerId']}:{answer.document['entryId']}"
    except (TypeError, KeyError):
        raise unreadable(ask.act, answer.document) from None


def internal_stats(backing_topic: str) -> Ask:
    """The ordinary statistics do not say whether a topic is terminated."""
    path = f"{topic_path(backing_topic)}/internalStats"
    return Ask("GET", path, f"look at {backing_topic}", accept=GONE)


def state(ask: Ask, answer: Answer) -> LogState:
    """Of the topic whose internal statistics these are."""
    if answer.status in GONE:
        return LogState.MISSING
    if not isinstance(answer.document, Mapping) or "state" not in answer.document:
        raise unreadable(ask.act, answer.document)
    return LogState.TERMINATED if answer.document["state"] == "Terminated" else LogState.OPEN


def has_carried_messages(ask: Ask, answer: Answer) -> bool:
    """Return False if the topic's internal statistics show no trace of a message.

    A broker that loads a topic starts a ledger and forgets the ledgers that it removed. So the statistics of a topic
    whose messages were all acknowledged, removed after their retention and followed by two loads look unused, unless a
    cursor keeps a trace: with deduplication, the last sequences of the producers.
    """
    try:
        found = answer.document
        cursors = [*found["cursors"].values()]
        positions = [found["lastConfirmedEntry"], *(one["markDeletePosition"] for one in cursors)]
        counts = [
            found["numberOfEntries"],
            found["entriesAddedCounter"],
            *(one["entries"] for one in found["ledgers"]),
        ]
        is_trace = not all(position.endswith(_NO_ENTRY) for position in positions) or any(counts)
        return is_trace or any(one.get("properties") for one in cursors)
    except (AttributeError, KeyError, TypeError):
        raise unreadable(ask.act, answer.document) from None


def stats(backing_topic: str, act: str, query: str = "") -> Ask:
    """The topic's ordinary statistics, for `act`."""
    return Ask("GET", f"{topic_path(backing_topic)}/stats{query}", act, accept=GONE)


def subscriptions(ask: Ask, answer: Answer) -> dict[str, Mapping[str, Any]] | None:
    """What the topic's statistics say of each subscription. None where there is no such topic."""
    if answer.status in GONE:
        return None
    if not isinstance(answer.document, Mapping) or "subscriptions" not in answer.document:
        raise unreadable(ask.act, answer.document)
    found = answer.document["subscriptions"] or {}
    return {
        name: one for name, one in found.items() if one.get("isDurable", True) and name not in _BROKERS_OWN
    }


def cursors(ask: Ask, answer: Answer) -> dict[str, CursorReport]:
    """Return the position of each subscription, in entries, from statistics with a precise backlog."""
    try:
        return {
            name: CursorReport(
                int(one["msgBacklog"]), None if (kind := one.get("type")) in _NO_TYPE else kind == "Shared"
            )
            for name, one in (subscriptions(ask, answer) or {}).items()
        }
    except (KeyError, TypeError, ValueError):
        raise unreadable(ask.act, answer.document) from None


def unreadable(act: str, document: object) -> DataPlaneUnavailable:
    """The error for an answer that cannot be read."""
    return DataPlaneUnavailable(
        f"{act}: the broker's answer says nothing of it ({str(document)[:120]}); try again"
    )
