"""Reads the entries of a terminated topic over admin REST: the stored part of a batch, the position of an
instant, and the number of messages that a subscription has not acknowledged.

`parts_of` serves a batch whose response was lost when the topic was terminated. `place_before_instant` and
`count_unread` serve a topic that its broker has reloaded, for instance after a restart: 4.2.4 then reads
beyond the last entry, and can neither locate an instant nor count messages. No reader is opened, because on a
topic that was just terminated the library may never report that it is open (apache/pulsar-client-cpp#605). A
producer's entries are stored in the order in which they were sent, so its last entry shows how much of the
batch is stored.
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
"""The place before every entry."""
_PRODUCER, _SEQUENCE, _MESSAGES, _PUBLISHED = (
    "X-Pulsar-producer-name",
    "X-Pulsar-sequence-id",
    "X-Pulsar-num-batch-message",
    "X-Pulsar-publish-time",
)
_TRIMMED = frozenset({404})
MOST_COUNTED = 64
"""Number of entries whose messages are counted exactly, each with its own request that returns the whole
entry.
"""
_AT_ONCE = 16
_ACKNOWLEDGED_RANGE = re.compile(r"\((-?\d+):(-?\d+)\.\.(\d+):(\d+)]")
_CLOSED_LEDGER = re.compile(r"\bstate=CLOSED\b.*\blastEntryId=(-?\d+)")


@dataclass(frozen=True, slots=True)
class SentBatch:
    """A batch sent by one producer: `messages` messages, numbered from `first_sequence_id` on, as Pulsar
    numbers them.
    """

    producer: str
    first_sequence_id: int
    messages: int


@dataclass(frozen=True, slots=True)
class StoredPart:
    """Content of an entry: messages of one producer, numbered up to before `ends_before`."""

    producer: str | None
    ends_before: int

    def count_of(self, batch: SentBatch) -> int:
        """Return the number of messages of the batch, from its front, that are stored if this is the
        producer's last entry.
        """
        return max(0, min(batch.messages, self.ends_before - batch.first_sequence_id))


def parts_of(
    admin: AdminCalls, backing_topic: str, places: Sequence[tuple[int, int]], deadline: Deadline
) -> dict[tuple[int, int], StoredPart | None]:
    """Return the content of the entry at each place (ledger, entry), by place, with one request per entry, in
    parallel. The value is None for a deleted entry, and for each entry of a missing topic. Raises
    DataPlaneUnavailable for a response that does not say which messages an entry contains; DataPlaneTimeout at the
    deadline; and the other errors of `AdminCalls.demand_all`.
    """
    answers = admin.demand_all([entry_ask(backing_topic, place) for place in places], deadline)
    return {
        place: None if answer.status in _TRIMMED else _part(answer, backing_topic, place)
        for place, answer in zip(places, answers, strict=True)
    }


def _part(answer: Answer, backing_topic: str, place: tuple[int, int]) -> StoredPart:
    """Return the content of the entry at the place from the headers of the response to its request. Raises
    DataPlaneUnavailable if the headers lack it, for instance because a proxy removes them.
    """
    try:
        ends_before = int(answer.headers[_SEQUENCE]) + _message_count(answer, backing_topic, place)
    except (KeyError, ValueError):
        raise _without_messages(backing_topic, place) from None
    return StoredPart(answer.headers.get(_PRODUCER), ends_before)


def _message_count(answer: Answer, backing_topic: str, place: tuple[int, int]) -> int:
    """Return the number of messages in the entry from the headers of the response to its request; 1 for a message
    outside a batch. Raises DataPlaneUnavailable if the header is not a number.
    """
    try:
        return int(answer.headers.get(_MESSAGES, "1"))
    except ValueError:
        raise _without_messages(backing_topic, place) from None


def _without_messages(backing_topic: str, place: tuple[int, int]) -> DataPlaneUnavailable:
    return DataPlaneUnavailable(
        f"read an entry of {backing_topic}: entry {place[0]}:{place[1]} does not say which messages it contains"
    )


def is_final(internal: Mapping[str, Any]) -> bool:
    """Return True if the topic is terminated and its last entry will stay the last, because the newest ledger is
    closed with that entry. `internal` contains the topic's internal statistics with the metadata of ledgers; without
    the metadata the result is False.

    A broker terminates a topic before it closes the ledger, and may store an entry in flight in between.
    """
    last_ledger, last_entry = place_told(internal["lastConfirmedEntry"])
    newest = max(internal["ledgers"], key=lambda ledger: int(ledger["ledgerId"]), default={"ledgerId": -1})
    closed = _CLOSED_LEDGER.search(str(newest.get("metadata")))
    is_last = int(newest["ledgerId"]) == last_ledger and closed is not None and int(closed[1]) == last_entry
    return is_last and internal.get("state") == "Terminated"


def messages_in(admin: AdminCalls, backing_topic: str, place: tuple[int, int], deadline: Deadline) -> int:
    """Return the number of messages in the entry at the place (ledger, entry); 1 for a message outside a batch.
    Raises DataGone if the entry or the topic was deleted; DataPlaneUnavailable for a response without a readable
    number; DataPlaneTimeout at the deadline; and the other errors of `AdminCalls.ask`.
    """
    answer = admin.ask(entry_ask(backing_topic, place), deadline)
    if answer.status in _TRIMMED:
        raise DataGone(
            f"{backing_topic}: entry {place[0]}:{place[1]} was deleted, so whether it was read to its end is unknown; "
            "start again at the earliest stored message"
        )
    return _message_count(answer, backing_topic, place)


def count_unread(
    admin: AdminCalls,
    backing_topic: str,
    cursor: Mapping[str, Any],
    entries: int,
    internal: Mapping[str, Any],
    deadline: Deadline,
) -> int:
    """Return the approximate number of messages in the entries that a subscription has not acknowledged. `entries` is
    the number of these entries; for 0 the result is 0. `internal` contains the topic's internal statistics, and
    `cursor` the subscription's part of them. A batch counts whole.

    Messages are counted in the first `MOST_COUNTED` of these entries, or in fewer if that takes more than half of the
    remaining time. The mean of the counted entries stands for the other entries, and for entries that were deleted or
    could not be read. If no entry can be read, each counts as one message. Failed requests are not raised, but a
    response without a readable number raises DataPlaneUnavailable.
    """
    places, counts = _unacknowledged(internal, cursor), list[int]()
    limit, reserved_seconds = min(entries, MOST_COUNTED), deadline.left_seconds / 2
    while len(counts) < limit and deadline.left_seconds > reserved_seconds:
        wave = list(islice(places, min(_AT_ONCE, limit - len(counts))))
        results = admin.ask_all([entry_ask(backing_topic, place) for place in wave], deadline)
        answers = [
            (place, answer) for place, answer in zip(wave, results, strict=True) if isinstance(answer, Answer)
        ]
        if not answers:
            break
        counts += [
            _message_count(answer, backing_topic, place)
            for place, answer in answers
            if answer.status not in _TRIMMED
        ]
    return round(entries * sum(counts) / len(counts)) if counts else entries


def entry_ask(backing_topic: str, place: tuple[int, int]) -> Ask:
    """Return the request to read an entry.

    The headers of the response show what the entry holds. The status 404 of a deleted entry is not an error.
    """
    path = f"{topic_path(backing_topic)}/ledger/{place[0]}/entry/{place[1]}"
    return Ask("GET", path, f"read an entry of {backing_topic}", accept=_TRIMMED, is_text=True)


def _unacknowledged(internal: Mapping[str, Any], cursor: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """Yield the place (ledger, entry) of each entry that the subscription has not acknowledged, up to the topic's
    last entry, in ascending order. `internal` contains the topic's internal statistics, and `cursor` the
    subscription's part of them. Entries that were deleted may be among the places.

    The subscription has acknowledged all entries up to `markDeletePosition`. For later entries, the broker lists
    acknowledged ranges that exclude their first place: `[(7:3..7:5],(9:0..9:1]]`.
    """
    start = place_told(cursor["markDeletePosition"])
    matches = _ACKNOWLEDGED_RANGE.findall(str(cursor.get("individuallyDeletedMessages", "")))
    ranges = [((int(a), int(b)), (int(c), int(d))) for a, b, c, d in matches]
    entries = entries_of_ledgers(internal)
    for ledger in sorted(ledger for ledger in entries if ledger >= start[0]):
        for entry in range(start[1] + 1 if ledger == start[0] else 0, entries[ledger]):
            if not any(after < (ledger, entry) <= last for after, last in ranges):
                yield ledger, entry


def place_told(text: object) -> tuple[int, int]:
    """Return (ledger, entry) of the text `ledger:entry`."""
    ledger, _, entry = str(text).partition(":")
    return int(ledger), int(entry)


def place_before_instant(
    admin: AdminCalls, backing_topic: str, instant_ms: int, internal: Mapping[str, Any], deadline: Deadline
) -> tuple[int, int]:
    """Return the place (ledger, entry) before the first entry that was published at the instant (milliseconds since
    the Unix epoch) or later. If no entry is that late, return the place of the last entry. The entry is -1 before the
    first entry of a ledger, and for a topic without entries. `internal` contains the topic's internal statistics.

    Publication times are assumed to rise with the entries. Deleted entries count as published before the instant. The
    search sends one request for each halving of the entries. Raises DataPlaneUnavailable if a response has no
    publication time; DataPlaneTimeout at the deadline; and the other errors of `AdminCalls.ask`.
    """
    entries = entries_of_ledgers(internal)
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
    """Return the place of the entry with this index among the entries of all `ledgers`, counted from 0. If the index
    is the number of all entries, return the place that would follow the last entry. `ledgers` are the ledgers' ids in
    ascending order, at least one, and `entries` contains the number of entries of each ledger.
    """
    for ledger in ledgers[:-1]:
        if index < entries[ledger]:
            return ledger, index
        index -= entries[ledger]
    return ledgers[-1], index


def _published_ms(
    admin: AdminCalls, backing_topic: str, place: tuple[int, int], deadline: Deadline
) -> int | None:
    """Return the time at which the entry at the place was published, by its producer's clock, in milliseconds since
    the Unix epoch. None if the entry or the topic was deleted. Raises DataPlaneUnavailable if the response has no
    time; DataPlaneTimeout at the deadline; and the other errors of `AdminCalls.ask`.
    """
    answer = admin.ask(entry_ask(backing_topic, place), deadline)
    if answer.status in _TRIMMED:
        return None
    try:
        return to_ms(datetime.fromisoformat(str(answer.headers[_PUBLISHED])))
    except (KeyError, ValueError):
        raise DataPlaneUnavailable(
            f"locate an instant in {backing_topic}: entry {place[0]}:{place[1]} does not say when it was published"
        ) from None


def entries_of_ledgers(internal: Mapping[str, Any]) -> dict[int, int]:
    """Return the number of entries of each ledger, by the ledger's id, up to the topic's last entry."""
    last_ledger, last_entry = place_told(internal["lastConfirmedEntry"])
    entries = {int(ledger["ledgerId"]): int(ledger["entries"]) for ledger in internal["ledgers"]}
    entries[last_ledger] = last_entry + 1  # the list includes the current ledger only when it is closed
    return {ledger: count for ledger, count in entries.items() if ledger <= last_ledger}


def places_forwards(internal: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """Yield the places (ledger, entry) of the stored entries in ascending order, up to the topic's last entry.
    `internal` are the topic's internal statistics.
    """
    entries, stored = (
        entries_of_ledgers(internal),
        {int(ledger["ledgerId"]) for ledger in internal["ledgers"]},
    )
    for ledger in sorted(stored.intersection(entries)):
        for entry in range(entries[ledger]):
            yield ledger, entry


def places_backwards(internal: Mapping[str, Any], behind: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the places (ledger, entry) of the topic's entries in descending order, from the topic's last entry to the
    first entry after the place `behind`. `internal` contains the topic's internal statistics. Nothing is yielded for
    a topic without entries. Entries of the last ledger are yielded even if they were deleted.
    """
    entries = entries_of_ledgers(internal)
    for ledger in sorted(entries, reverse=True):
        for entry in range(entries[ledger] - 1, -1, -1):
            if (ledger, entry) <= behind:
                return
            yield ledger, entry


def last_stored(internal: Mapping[str, Any]) -> tuple[int, int]:
    """Return the place (ledger, entry) of the topic's last entry, even if this entry was deleted. For a topic without
    entries, return the place that `internal`, the topic's internal statistics, contains; the entry is -1.

    A broker that terminates a topic reports the end of the current ledger as the last entry. After a load of the topic
    the current ledger is empty, so the reported entry is -1 although earlier ledgers have entries.
    """
    return next(places_backwards(internal, NOWHERE), place_told(internal["lastConfirmedEntry"]))
