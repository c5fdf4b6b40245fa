"""What lies in a topic that was terminated, read entry by entry over admin REST: how much of a batch, or where an instant is.

The first is for a batch whose answer was lost when the topic was terminated. The second is for a topic that its broker has loaded
anew since, after a restart: 4.2.4 then looks beyond the last entry and can find no instant any more. No reader is opened: on a topic that was just
terminated the library may never say that it is open (apache/pulsar-client-cpp#605). A producer's entries are stored in
the order in which they were sent, so its last entry tells how far the batch came.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controller.clock import to_ms
from controller.dataplane.pulsar.admin import AdminCalls, Ask, Deadline
from controller.dataplane.pulsar.names import topic_path
from controller.domain.errors import DataGone, DataPlaneUnavailable

NOWHERE = (-1, -1)
"""Before every entry."""
_PRODUCER, _SEQUENCE, _MESSAGES, _PUBLISHED = (
    "X-Pulsar-producer-name",
    "X-Pulsar-sequence-id",
    "X-Pulsar-num-batch-message",
    "X-Pulsar-publish-time",
)
_TRIMMED = frozenset({404})


@dataclass(frozen=True, slots=True)
class SentBatch:
    """What was sent by one producer: `messages` of them, numbered from `first_sequence_id` on, as Pulsar counts."""

    producer: str
    first_sequence_id: int
    messages: int


def stored_of(
    admin: AdminCalls,
    backing_topic: str,
    batch: SentBatch,
    behind: tuple[int, int],
    internal: Mapping[str, Any],
    deadline: Deadline,
) -> int:
    """How many of the batch, from its front, are stored after `behind`, an entry as (ledger, entry).

    `internal` is the topic's `internalStats`, asked for after it was terminated. One request for each entry that
    others stored later; what retention already removed counts as not stored.
    """
    for ledger, entry in places_backwards(internal, behind):
        path = f"{topic_path(backing_topic)}/ledger/{ledger}/entry/{entry}"
        ask = Ask("GET", path, f"look for a batch in {backing_topic}", accept=_TRIMMED, is_text=True)
        answer = admin.ask(ask, deadline)
        if answer.status in _TRIMMED:
            return 0
        if answer.headers.get(_PRODUCER) == batch.producer:
            ends_before = int(answer.headers[_SEQUENCE]) + int(answer.headers.get(_MESSAGES, "1"))
            return max(0, min(batch.messages, ends_before - batch.first_sequence_id))
    return 0


def messages_in(admin: AdminCalls, backing_topic: str, place: tuple[int, int], deadline: Deadline) -> int:
    """How many messages the entry at (ledger, entry) holds. DataGone where it was deleted."""
    path = f"{topic_path(backing_topic)}/ledger/{place[0]}/entry/{place[1]}"
    ask = Ask("GET", path, f"look at an entry of {backing_topic}", accept=_TRIMMED, is_text=True)
    answer = admin.ask(ask, deadline)
    if answer.status in _TRIMMED:
        raise DataGone(
            f"{backing_topic}: entry {place[0]}:{place[1]} was deleted, so whether it was read to its end is unknown; begin "
            "anew where messages are left"
        )
    return int(answer.headers.get(_MESSAGES, "1"))


def place_before_instant(
    admin: AdminCalls, backing_topic: str, instant_ms: int, internal: Mapping[str, Any], deadline: Deadline
) -> tuple[int, int]:
    """(ledger, entry) before the first entry published at the instant or later, as (ledger, -1) before a ledger's first. What
    retention removed counts as published before. One request for each halving of the entries.
    """
    entries = _entries(internal)
    ledgers = sorted(entries)
    low, high = 0, sum(entries.values())
    while low < high:
        middle = (low + high) // 2
        published_ms = _published_ms(admin, backing_topic, _place_of(middle, ledgers, entries), deadline)
        if published_ms is not None and published_ms >= instant_ms:
            high = middle
        else:
            low = middle + 1
    ledger, entry = _place_of(low, ledgers, entries)
    return ledger, entry - 1


def _place_of(index: int, ledgers: Sequence[int], entries: Mapping[int, int]) -> tuple[int, int]:
    """The place of the entry of that number; behind the last one, that which would follow it."""
    for ledger in ledgers[:-1]:
        if index < entries[ledger]:
            return ledger, index
        index -= entries[ledger]
    return ledgers[-1], index


def _published_ms(
    admin: AdminCalls, backing_topic: str, place: tuple[int, int], deadline: Deadline
) -> int | None:
    """By its producer's clock; None where it was deleted."""
    path = f"{topic_path(backing_topic)}/ledger/{place[0]}/entry/{place[1]}"
    ask = Ask("GET", path, f"look for an instant in {backing_topic}", accept=_TRIMMED, is_text=True)
    answer = admin.ask(ask, deadline)
    if answer.status in _TRIMMED:
        return None
    try:
        return to_ms(datetime.fromisoformat(str(answer.headers[_PUBLISHED])))
    except (KeyError, ValueError):
        raise DataPlaneUnavailable(
            f"look for an instant in {backing_topic}: entry {place[0]}:{place[1]} does not say when it was published"
        ) from None


def _entries(internal: Mapping[str, Any]) -> dict[int, int]:
    """How many entries each ledger has, of those up to the last entry."""
    last_ledger, last_entry = (int(part) for part in str(internal["lastConfirmedEntry"]).split(":"))
    entries = {int(ledger["ledgerId"]): int(ledger["entries"]) for ledger in internal["ledgers"]}
    entries[last_ledger] = last_entry + 1  # the list counts the current ledger when it is closed
    return {ledger: count for ledger, count in entries.items() if ledger <= last_ledger}


def places_backwards(internal: Mapping[str, Any], behind: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """The places of entries, from the last one back to the first after `behind`."""
    entries = _entries(internal)
    for ledger in sorted(entries, reverse=True):
        for entry in range(entries[ledger] - 1, -1, -1):
            if (ledger, entry) <= behind:
                return
            yield ledger, entry
