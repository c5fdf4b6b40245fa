"""How much of a batch lies in a topic that was terminated: read entry by entry over admin REST.

Used for a batch whose answer was lost when the topic was terminated. No reader is opened: on a topic that was just
terminated the library may never say that it is open (apache/pulsar-client-cpp#605). A producer's entries are stored in
the order in which they were sent, so its last entry tells how far the batch came.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from controller.dataplane.pulsar.admin import AdminCalls, Ask, Deadline
from controller.dataplane.pulsar.names import topic_path
from controller.domain.errors import DataGone

NOWHERE = (-1, -1)
"""Before every entry."""
_PRODUCER, _SEQUENCE, _MESSAGES = (
    "X-Pulsar-producer-name",
    "X-Pulsar-sequence-id",
    "X-Pulsar-num-batch-message",
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


def places_backwards(internal: Mapping[str, Any], behind: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """The places of entries, from the last one back to the first after `behind`."""
    last_ledger, last_entry = (int(part) for part in str(internal["lastConfirmedEntry"]).split(":"))
    entries = {int(ledger["ledgerId"]): int(ledger["entries"]) for ledger in internal["ledgers"]}
    entries[last_ledger] = last_entry + 1  # the list counts the current ledger when it is closed
    for ledger in sorted((one for one in entries if one <= last_ledger), reverse=True):
        for entry in range(entries[ledger] - 1, -1, -1):
            if (ledger, entry) <= behind:
                return
            yield ledger, entry
