"""Requests about one topic, and how their answers are read; for `plane`, `set_wise` and `existing`, which send them.

Only subscriptions that outlive their consumers count. Temporary ones of readers and the broker's own do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.dataplane.base import LogState
from controller.dataplane.pulsar.admin import Answer, Ask
from controller.dataplane.pulsar.names import subscription_path, topic_path
from controller.domain.errors import DataPlaneUnavailable

EXISTS = frozenset({409})
GONE = frozenset({404})
FAILED = frozenset({500})
_EARLIEST = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
_BROKERS_OWN = frozenset({"__compaction"})


def create_topic(backing_topic: str) -> Ask:
    """Make a topic without partitions. If it is there already, the answer is EXISTS."""
    return Ask("PUT", topic_path(backing_topic), f"create {backing_topic}", accept=EXISTS)


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


def unreadable(act: str, document: object) -> DataPlaneUnavailable:
    """The error for an answer that cannot be read."""
    return DataPlaneUnavailable(
        f"{act}: the broker's answer says nothing of it ({str(document)[:120]}); try again"
    )
