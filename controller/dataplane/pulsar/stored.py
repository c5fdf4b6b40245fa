"""What lies in a topic that was terminated, read entry by entry over admin REST: how much of a batch, where an instant is, or how
many messages a subscription has left.

The first is for a batch whose answer was lost when the topic was terminated. The others are for a topic that its broker has loaded
anew since, after a restart: 4.2.4 then looks beyond the last entry, and can neither find an instant nor count any more. No reader is
opened: on a topic that was just terminated the library may never say that it is open (apache/pulsar-client-cpp#605). A producer's
entries are stored in the order in which they were sent, so its last entry tells how far the batch came.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from controller.clock import to_ms
from controller.dataplane.pulsar.admin import AdminCalls, Answer, Ask, Deadline
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
MOST_COUNTED = 64
"""Entries whose messages are counted one by one, each with a request of its own that brings the whole entry."""
_AT_ONCE = 16
_ACKNOWLEDGED_RANGE = re.compile(r"\((-?\d+):(-?\d+)\.\.(\d+):(\d+)]")
_CLOSED_LEDGER = re.compile(r"\bstate=CLOSED\b.*\blastEntryId=(-?\d+)")


@dataclass(frozen=True, slots=True)
class SentBatch:
    """What was sent by one producer: `messages` of them, numbered from `first_sequence_id` on, as Pulsar counts."""

    producer: str
    first_sequence_id: int
    messages: int


@dataclass(frozen=True, slots=True)
class StoredPart:
    """What an entry holds: messages of one producer, numbered up to before `ends_before`."""

    producer: str | None
    ends_before: int

    def count_of(self, batch: SentBatch) -> int:
        """Return how many messages of the batch, from its front, are stored if this is the last entry of the producer."""
        return max(0, min(batch.messages, self.ends_before - batch.first_sequence_id))


def parts_of(
    admin: AdminCalls, backing_topic: str, places: Sequence[tuple[int, int]], deadline: Deadline
) -> dict[tuple[int, int], StoredPart | None]:
    """Return what each entry holds, with a request for each, side by side. None for an entry that was deleted."""
    answers = admin.demand_all([entry_ask(backing_topic, place) for place in places], deadline)
    return {
        place: None if answer.status in _TRIMMED else _part(answer)
        for place, answer in zip(places, answers, strict=True)
    }


def _part(answer: Answer) -> StoredPart:
    ends_before = int(answer.headers[_SEQUENCE]) + int(answer.headers.get(_MESSAGES, "1"))
    return StoredPart(answer.headers.get(_PRODUCER), ends_before)


def is_final(internal: Mapping[str, Any]) -> bool:
    """Return True if the topic is terminated and its last entry stays the last: the newest ledger is closed with that entry.

    A broker terminates a topic before the broker closes the ledger, and an entry that is under way may be stored until then.
    `internal` holds the metadata of ledgers; without the metadata the answer is False.
    """
    last_ledger, last_entry = place_told(internal["lastConfirmedEntry"])
    newest = max(internal["ledgers"], key=lambda ledger: int(ledger["ledgerId"]), default={"ledgerId": -1})
    closed = _CLOSED_LEDGER.search(str(newest.get("metadata")))
    is_last = int(newest["ledgerId"]) == last_ledger and closed is not None and int(closed[1]) == last_entry
    return is_last and internal.get("state") == "Terminated"


def messages_in(admin: AdminCalls, backing_topic: str, place: tuple[int, int], deadline: Deadline) -> int:
    """How many messages the entry at (ledger, entry) holds. DataGone where it was deleted."""
    answer = admin.ask(entry_ask(backing_topic, place), deadline)
    if answer.status in _TRIMMED:
        raise DataGone(
            f"{backing_topic}: entry {place[0]}:{place[1]} was deleted, so whether it was read to its end is unknown; begin "
            "anew where messages are left"
        )
    return int(answer.headers.get(_MESSAGES, "1"))


def messages_left(
    admin: AdminCalls,
    backing_topic: str,
    cursor: Mapping[str, Any],
    entries: int,
    internal: Mapping[str, Any],
    deadline: Deadline,
) -> int:
    """How many messages the `entries` hold that a subscription has not acknowledged; `cursor` is its part of `internal`.

    In the first `MOST_COUNTED` of them they are counted, or in as many as half of the time that is left suffices for; the mean of
    these stands for the rest. What was deleted meanwhile counts as the others do, and where none answers each entry counts as one.
    """
    places, counts = _unacknowledged(internal, cursor), list[int]()
    wanted, until_left = min(entries, MOST_COUNTED), deadline.left_seconds / 2
    while len(counts) < wanted and deadline.left_seconds > until_left:
        wave = [
            entry_ask(backing_topic, place) for place in islice(places, min(_AT_ONCE, wanted - len(counts)))
        ]
        answers = [one for one in admin.ask_all(wave, deadline) if isinstance(one, Answer)]
        if not answers:
            break
        counts += [int(one.headers.get(_MESSAGES, "1")) for one in answers if one.status not in _TRIMMED]
    return round(entries * sum(counts) / len(counts)) if counts else entries


def entry_ask(backing_topic: str, place: tuple[int, int]) -> Ask:
    """Read an entry. The answer's headers tell what the entry holds."""
    path = f"{topic_path(backing_topic)}/ledger/{place[0]}/entry/{place[1]}"
    return Ask("GET", path, f"look at an entry of {backing_topic}", accept=_TRIMMED, is_text=True)


def _unacknowledged(internal: Mapping[str, Any], cursor: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """Places of entries, from the first one that is not acknowledged. The broker tells what is acknowledged behind it in ranges
    without their beginnings: `[(7:3..7:5],(9:0..9:1]]`.
    """
    start = place_told(cursor["markDeletePosition"])
    told = _ACKNOWLEDGED_RANGE.findall(str(cursor.get("individuallyDeletedMessages", "")))
    ranges = [((int(a), int(b)), (int(c), int(d))) for a, b, c, d in told]
    entries = _entries(internal)
    for ledger in sorted(one for one in entries if one >= start[0]):
        for entry in range(start[1] + 1 if ledger == start[0] else 0, entries[ledger]):
            if not any(after < (ledger, entry) <= last for after, last in ranges):
                yield ledger, entry


def place_told(told: object) -> tuple[int, int]:
    """Of `ledger:entry`."""
    ledger, _, entry = str(told).partition(":")
    return int(ledger), int(entry)


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
    answer = admin.ask(entry_ask(backing_topic, place), deadline)
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
    last_ledger, last_entry = place_told(internal["lastConfirmedEntry"])
    entries = {int(ledger["ledgerId"]): int(ledger["entries"]) for ledger in internal["ledgers"]}
    entries[last_ledger] = last_entry + 1  # the list counts the current ledger when it is closed
    return {ledger: count for ledger, count in entries.items() if ledger <= last_ledger}


def places_forwards(internal: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """The places of entries, from the first one that is stored on."""
    entries, stored = _entries(internal), {int(ledger["ledgerId"]) for ledger in internal["ledgers"]}
    for ledger in sorted(stored.intersection(entries)):
        for entry in range(entries[ledger]):
            yield ledger, entry


def places_backwards(internal: Mapping[str, Any], behind: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """The places of entries, from the last one back to the first after `behind`."""
    entries = _entries(internal)
    for ledger in sorted(entries, reverse=True):
        for entry in range(entries[ledger] - 1, -1, -1):
            if (ledger, entry) <= behind:
                return
            yield ledger, entry
