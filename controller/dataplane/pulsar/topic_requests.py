"""Builds the requests about one topic, and reads their responses. `plane`, `set_wise`, `successor_creation` and
`adoptable_topics` send the requests.

Only subscriptions that outlive their consumers count. Temporary subscriptions of readers, and the broker's
own, do not. Each function that reads a response raises DataPlaneUnavailable if the response lacks the
requested data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from controller.dataplane.base import CursorReport, LogState
from controller.dataplane.pulsar.admin import Answer, Ask
from controller.dataplane.pulsar.names import namespace_path, subscription_path, topic_path
from controller.dataplane.pulsar.stored_entries import entries_of_ledgers, place_told
from controller.domain.errors import DataPlaneUnavailable, SegmentNotFound
from controller.domain.log_origin import LogOrigin
from controller.domain.pulsar_names import namespace_of

EXISTS = frozenset({409})
GONE = frozenset({404})
FAILED = frozenset({500})
PRECISE_BACKLOG = "?getPreciseBacklog=true"
"""Query of `stats` that makes the broker count the entries of each backlog."""
_EARLIEST = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
_LATEST = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1, "partitionIndex": -1}
_BROKERS_OWN = frozenset({"__compaction"})
_NO_ENTRY = ":-1"
"""End of a position before the first entry of a ledger."""
_NO_TYPE = frozenset({None, "", "None"})
"""Types of a subscription without any consumer since the broker loaded the topic."""


def namespace_of_topic(topic: str) -> Ask:
    """Return the request for the topics in a topic's namespace. The request fails with NotFound if there is
    no such namespace. Raises InvalidInput for an invalid name.
    """
    namespace = namespace_of(topic)
    return Ask("GET", f"persistent/{namespace_path(namespace)}", f"check namespace {namespace}")


def create_topic(backing_topic: str, origin: LogOrigin | None) -> Ask:
    """Return the request to create a topic without partitions, with `origin` as its properties (None:
    without). An existing topic keeps its properties, and the response is EXISTS.
    """
    properties = origin.to_properties() if origin else None
    return Ask("PUT", topic_path(backing_topic), f"create {backing_topic}", body=properties, accept=EXISTS)


def properties(backing_topic: str) -> Ask:
    """Return the request for the properties of a topic. The response for a missing topic is GONE."""
    path = f"{topic_path(backing_topic)}/properties"
    return Ask("GET", path, f"read the properties of {backing_topic}", accept=GONE)


def origin(ask: Ask, answer: Answer) -> LogOrigin | None:
    """Return the origin that is stored in the topic's properties. `answer` is the response to the request `ask` of
    `properties`. None if the properties contain no readable origin, if the topic is missing (status GONE), or if the
    body is empty. Sends nothing. Raises DataPlaneUnavailable, with the purpose of `ask`, for a response that is not
    an object.
    """
    if answer.status in GONE or answer.document is None:
        return None
    return LogOrigin.from_properties(mapping(ask.purpose, answer.document))


def create_cursor(backing_topic: str, subscription: str, *, is_closed_and_empty: bool = False) -> Ask:
    """Return the request to create a subscription at the earliest position. Sends nothing. If the subscription
    exists, the broker keeps its position and answers EXISTS, which is accepted.

    `is_closed_and_empty` is True for a terminated topic without entries, which has no earliest position: a broker
    that has reloaded such a topic (seen with 4.2.4) creates the subscription but never answers. The request then
    names the latest position, which is the same place.
    """
    purpose = f"subscribe {subscription!r} to {backing_topic}"
    path = f"{topic_path(backing_topic)}/subscription/{subscription_path(subscription)}"
    body = _LATEST if is_closed_and_empty else _EARLIEST
    return Ask("PUT", path, purpose, body=body, accept=EXISTS)


def terminate(backing_topic: str) -> Ask:
    """Return the request to terminate the topic. A missing topic is an error."""
    return Ask("POST", f"{topic_path(backing_topic)}/terminate", f"terminate {backing_topic}")


def reload(backing_topic: str) -> Ask:
    """Return the request that makes the broker reload the topic, so that its consumers and producers reconnect. The response for a missing
    topic is GONE.
    """
    return Ask("PUT", f"{topic_path(backing_topic)}/unload", f"reload {backing_topic}", accept=GONE)


def position(ask: Ask, answer: Answer) -> str:
    """Return the last entry of a terminated topic as `ledger:entry`; the entry is -1 in an empty topic. `answer` is
    the response to the request `ask` of `terminate`. Sends nothing. Raises DataPlaneUnavailable, with the purpose of
    `ask`, for an incomplete response.
    """
    with reading(ask.purpose, answer.document):
        return f"{answer.document['ledgerId']}:{answer.document['entryId']}"


def internal_stats(backing_topic: str) -> Ask:
    """Return the request for the internal statistics, because the ordinary statistics do not show if a topic
    is terminated. The response for a missing topic is GONE.
    """
    path = f"{topic_path(backing_topic)}/internalStats"
    return Ask("GET", path, f"check {backing_topic}", accept=GONE)


def existing(ask: Ask, answer: Answer, backing_topic: str) -> Mapping[str, Any]:
    """Return the document of the response to a request about the topic that accepts GONE. Raises SegmentNotFound for
    a missing topic, and DataPlaneUnavailable for a document that is not an object.
    """
    if answer.status in GONE:
        raise missing(backing_topic)
    return mapping(ask.purpose, answer.document)


def mapping(purpose: str, document: object) -> Mapping[str, Any]:
    """Return the document of a response, which must be an object. Raises DataPlaneUnavailable, with the purpose, for another document."""
    if not isinstance(document, Mapping):
        raise unreadable(purpose, document)
    return document


def missing(backing_topic: str) -> SegmentNotFound:
    """Return the error for a topic that does not exist."""
    return SegmentNotFound(
        f"no topic {backing_topic}; it was deleted or never created: look up the layout again"
    )


def demand_complete(purpose: str, internal: Mapping[str, Any]) -> None:
    """Raise DataPlaneUnavailable, with the purpose, if a topic's internal statistics lack a part that this package
    reads.
    """
    with reading(purpose, internal):
        _ = internal["state"]
        entries_of_ledgers(internal)
        for count in ("numberOfEntries", "entriesAddedCounter"):
            int(internal[count])
        for cursor in internal["cursors"].values():
            for position in ("markDeletePosition", "readPosition"):
                place_told(cursor[position])
            int(cursor.get("totalNonContiguousDeletedMessagesRange", 0))


def state(ask: Ask, answer: Answer) -> LogState:
    """Return the state of the topic; MISSING if there is no such topic. `answer` is the response to the request `ask`
    of `internal_stats`. Sends nothing. Raises DataPlaneUnavailable, with the purpose of `ask`, for an incomplete
    response.
    """
    if answer.status in GONE:
        return LogState.MISSING
    if not isinstance(answer.document, Mapping) or "state" not in answer.document:
        raise unreadable(ask.purpose, answer.document)
    return LogState.TERMINATED if answer.document["state"] == "Terminated" else LogState.OPEN


def has_carried_messages(ask: Ask, answer: Answer) -> bool:
    """Return True if the topic's internal statistics show a trace of a message: a last entry or a cursor's position
    behind the beginning of a ledger, an entry count above 0, or a property of a cursor. The entries of a gate's
    barrier are such a trace too. `answer` is the response to the request `ask` of `internal_stats`. Raises
    DataPlaneUnavailable, with the purpose of `ask`, if the statistics are incomplete, and also for a missing topic.

    A broker that loads a topic starts a ledger, and forgets the ledgers that it removed. If all messages of a topic
    were acknowledged and removed after their retention, its statistics look unused after two loads, unless a cursor
    keeps a trace: with deduplication, the last sequences of the producers.
    """
    with reading(ask.purpose, answer.document):
        internal = answer.document
        cursors = [*internal["cursors"].values()]
        positions = [internal["lastConfirmedEntry"], *(cursor["markDeletePosition"] for cursor in cursors)]
        counts = [
            internal["numberOfEntries"],
            internal["entriesAddedCounter"],
            *(ledger["entries"] for ledger in internal["ledgers"]),
        ]
        is_trace = not all(position.endswith(_NO_ENTRY) for position in positions) or any(counts)
        return is_trace or any(cursor.get("properties") for cursor in cursors)


def stats(backing_topic: str, purpose: str, query: str = "") -> Ask:
    """Return the request for the topic's ordinary statistics. `purpose` names the action in errors; `query`
    is appended to the address. The response for a missing topic is GONE.
    """
    return Ask("GET", f"{topic_path(backing_topic)}/stats{query}", purpose, accept=GONE)


def subscriptions(ask: Ask, answer: Answer) -> dict[str, Mapping[str, Any]] | None:
    """Return the statistics of each durable subscription of the topic, by name, without the broker's own
    subscriptions; empty if there are none. None if the topic is missing. `answer` is the response to the request
    `ask` of `stats`. Sends nothing. Raises DataPlaneUnavailable, with the purpose of `ask`, for an incomplete
    response.
    """
    if answer.status in GONE:
        return None
    with reading(ask.purpose, answer.document):
        statistics = answer.document["subscriptions"] or {}
        return {
            name: cursor
            for name, cursor in statistics.items()
            if cursor.get("isDurable", True) and name not in _BROKERS_OWN
        }


def unread_entries(purpose: str, statistics: Mapping[str, Any]) -> int:
    """Return the number of unacknowledged entries in the statistics of a subscription. Raises DataPlaneUnavailable for incomplete
    statistics.
    """
    with reading(purpose, statistics):
        return int(statistics["msgBacklog"])


def cursors(ask: Ask, answer: Answer) -> dict[str, CursorReport]:
    """Return a report on each durable subscription of the topic, by name, without the broker's own subscriptions.
    Empty if there is none, or if the topic is missing. `answer` is the response to the request `ask` of `stats` with
    the query `PRECISE_BACKLOG`. Sends nothing.

    `unread` of a report counts entries. `is_queue` is True if the subscription is Shared, None if it had no consumer
    since the topic was loaded, otherwise False. Raises DataPlaneUnavailable, with the purpose of `ask`, for an
    incomplete response.
    """
    with reading(ask.purpose, answer.document):
        return {
            name: CursorReport(
                unread_entries(ask.purpose, cursor),
                None if (kind := cursor.get("type")) in _NO_TYPE else kind == "Shared",
            )
            for name, cursor in (subscriptions(ask, answer) or {}).items()
        }


@contextmanager
def reading(purpose: str, document: object) -> Iterator[None]:
    """Raise DataPlaneUnavailable, with the purpose and the beginning of the document, if the block of the `with`
    statement fails to read the document, because a part is missing or of another type. Keep the block short, because
    an error of the program itself would look the same.
    """
    try:
        yield
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        raise unreadable(purpose, document) from None


def unreadable(purpose: str, document: object) -> DataPlaneUnavailable:
    """Return the error for a response that cannot be read."""
    return DataPlaneUnavailable(
        f"{purpose}: the broker's response lacks the requested data ({str(document)[:120]}); try again"
    )
