"""Queries and moves a subscription on one topic for its readers: its holders, disconnecting them, and whether the
topic is drained: it is terminated, and the subscription has acknowledged all of it.

Uses admin REST calls. A consumer's rights (to consume) suffice for each of them except
`reload_if_terminated`. A broker does not know owners: a reader puts its owner's name and its own mark into
the properties of its consumer, which the statistics show.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller.dataplane.log_client import Ownership, Position
from controller.dataplane.pulsar.admin import AdminCalls, Ask, Deadline
from controller.dataplane.pulsar.broker_versions import VERSION, reads_after_reload
from controller.dataplane.pulsar.names import cursor_name, subscription_path, topic_path
from controller.dataplane.pulsar.stored_entries import (
    StoredPart,
    count_unread,
    last_stored,
    messages_in,
    parts_of,
    place_before_instant,
    place_told,
)
from controller.dataplane.pulsar.topic_requests import (
    FAILED,
    GONE,
    demand_complete,
    existing,
    missing,
    reading,
    reload,
    unread_entries,
)
from controller.domain.errors import DataGone, SubscriptionNotFound
from controller.domain.hash_range import FULL_RANGE, MAX_HASH, HashRange

OWNER, READER, OWNERSHIP = "cleave.owner", "cleave.reader", "cleave.ownership"
"""Properties of a consumer: the owner's name; a mark that no other reader has; and its ownership,
`origin.generation`.
"""
WHOLE_ENTRY = 2**31 - 1
"""Index in a batch that stands for the position behind every message of the entry."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A consumer that is connected to a subscription. `owner` is None for a consumer that is not Cleave's."""

    owner: str | None
    reader: str | None
    """Mark of the reader; None for a consumer that is not Cleave's."""
    address: str
    """Address of the client, for messages."""
    slots: tuple[HashRange, ...] = (FULL_RANGE,)
    """Slots of the consumer; all of them if the subscription is not shared by key."""
    unacknowledged: int = 0
    """Number of messages that the consumer received and has not acknowledged."""
    permits: int = 1
    """Number of further messages that the broker may deliver to the consumer."""
    ownership: Ownership | None = None
    """Ownership that the consumer named, if any."""

    def holds_some_of(self, bucket: HashRange | None) -> bool:
        """Return True if the consumer has a part of `bucket`, and so is in the way of a claim for it. Always
        True for None, a claim for the whole subscription.
        """
        return bucket is None or any(bucket.overlaps(slots) for slots in self.slots)


@dataclass(frozen=True, slots=True)
class Attachments:
    """The consumers that are connected to a subscription."""

    holders: tuple[Holder, ...]
    is_shared: bool
    """True if the subscription is shared by key: consumers have ranges of slots, and further consumers may
    connect.
    """
    backlog: int
    """Number of unacknowledged entries, except those whose delivery is delayed."""
    is_queue: bool = False
    """True if the consumers are Shared: any of them may receive each message."""

    def in_the_way_of(self, bucket: HashRange | None) -> tuple[Holder, ...]:
        """Return the holders that are in the way of a claim for `bucket`; None: for the whole subscription. If the
        claim needs the other type of subscription, all holders are in the way: a claim for a bucket needs a
        subscription shared by key, a claim for the whole one that is not. Otherwise those that hold a part of the
        bucket are in the way. Empty if there are none.
        """
        if self.holders and self.is_shared != (bucket is not None):
            return self.holders
        return tuple(holder for holder in self.holders if holder.holds_some_of(bucket))

    @property
    def covers_all(self) -> bool:
        """True if every slot has a consumer."""
        return sum(slots.width for holder in self.holders for slots in holder.slots) >= FULL_RANGE.width


class Cursors:
    """Queries subscriptions and moves them, for readers. Calls raise the errors of `AdminCalls.ask`:
    SegmentNotFound if there is no such topic (except `parts_of`), and SubscriptionNotFound if a subscription
    is named that does not exist (except `move` and `make_durable` on a terminated topic without entries).
    """

    def __init__(self, admin: AdminCalls) -> None:
        self._admin = admin

    def deadline(self) -> Deadline:
        """Return a deadline for a call that begins at this moment."""
        return self._admin.deadline()

    def attachments(self, backing_topic: str, subscription: str, deadline: Deadline) -> Attachments:
        """Return the consumers of the subscription, how they share it, and its backlog in entries. A consumer counts
        from the time of its request to subscribe, even while the broker still checks another consumer's connection.
        Raises SegmentNotFound; SubscriptionNotFound; DataPlaneTimeout at the deadline; and the other errors of
        `AdminCalls.ask`.
        """
        statistics = self._subscription(backing_topic, subscription, deadline)
        with reading(f"consumers of {subscription!r} on {backing_topic}", statistics):
            is_shared = statistics.get("type") == "Key_Shared"
            holders = tuple(
                _holder(consumer, is_shared=is_shared) for consumer in statistics.get("consumers") or []
            )
            waiting = int(statistics.get("msgBacklog", 0)) - int(statistics.get("msgDelayed", 0))
            return Attachments(holders, is_shared, waiting, is_queue=statistics.get("type") == "Shared")

    def version(self, deadline: Deadline) -> str:
        """Return the broker's version, such as `4.2.4`."""
        return str(self._admin.ask(VERSION, deadline).document)

    def is_contiguous(self, backing_topic: str, subscription: str, deadline: Deadline) -> bool:
        """Return True if no entry behind the first unacknowledged entry is acknowledged. A move of the cursor would
        undo such acknowledgements. Acknowledged messages of an entry that is acknowledged only in part do not count.
        Raises SegmentNotFound; SubscriptionNotFound; and the other errors of `AdminCalls.ask`.
        """
        cursor = self._cursor(self.internal(backing_topic, deadline), backing_topic, subscription)
        return int(cursor.get("totalNonContiguousDeletedMessagesRange", 0)) == 0

    def cut_off(self, backing_topic: str, subscription: str, deadline: Deadline) -> None:
        """Disconnect all consumers of the subscription, by a move of the cursor to its present position. The
        consumers may reconnect.

        Messages are delivered again although they were acknowledged if they were acknowledged between the query of
        the position and the move, belong to an entry that is acknowledged only in part, or lie behind the first
        unacknowledged message. Raises SegmentNotFound; SubscriptionNotFound; DataPlaneTimeout at the deadline; and
        the other errors of `AdminCalls.ask`.
        """
        internal = self.internal(backing_topic, deadline)
        self._move_to_present(internal, backing_topic, subscription, deadline)

    def make_durable(self, backing_topic: str, subscription: str, deadline: Deadline) -> None:
        """Make the broker write the subscription's present position to disk, and wait until it is written. The
        position is written by a move to that position, which disconnects all consumers of the subscription and
        delivers messages again as `cut_off` does.

        A terminated topic without entries has only one position: nothing is done, and its consumers stay connected.
        Raises SegmentNotFound; SubscriptionNotFound, except for such a topic; DataPlaneTimeout at the deadline; and
        the other errors of `AdminCalls.ask`.
        """
        internal = self.internal(backing_topic, deadline)
        if not is_closed_and_empty(internal):
            self._move_to_present(internal, backing_topic, subscription, deadline)

    def move_before(
        self, backing_topic: str, subscription: str, place: tuple[int, int], deadline: Deadline
    ) -> None:
        """Move the subscription so that the entry at the place (ledger, entry) is the next. Disconnects all
        holders.
        """
        purpose = f"move {subscription!r} on {backing_topic}"
        self._move_behind(backing_topic, subscription, (place[0], place[1] - 1), purpose, deadline)

    def move(self, backing_topic: str, subscription: str, instant_ms: int, deadline: Deadline) -> None:
        """Move the subscription to the first entry that was published at the instant (milliseconds since the Unix
        epoch, at least 0) or later, and disconnect all consumers. If no entry is that late, the subscription moves
        behind the last entry. If the broker cannot locate the instant, this method locates it with further requests.

        A terminated topic without entries is not changed, because it has no position to move to: a broker that has
        reloaded such a topic (seen with 4.2.4) would fail and leave the subscription fenced, so that it could never
        be moved again. Raises SegmentNotFound; SubscriptionNotFound, except for such a topic; DataPlaneTimeout at the
        deadline; and the other errors of `AdminCalls.ask`.
        """
        internal = self.internal(backing_topic, deadline)
        if is_closed_and_empty(internal):
            return
        purpose = f"seek {subscription!r} on {backing_topic}"
        # A broker (seen with 4.2.4) that has reloaded a topic which it terminated with an empty ledger locates too early
        # an entry for the instant.
        if last_stored(internal) == place_told(internal["lastConfirmedEntry"]):
            path = f"{topic_path(backing_topic)}/subscription/{subscription_path(subscription)}/resetcursor/{instant_ms}"
            answer = self._admin.ask(Ask("POST", path, purpose, accept=FAILED), deadline)
            if answer.status not in FAILED:  # otherwise the broker may be unable to locate the instant
                return
        place = self.place_before(backing_topic, instant_ms, deadline)
        self._move_behind(backing_topic, subscription, place, purpose, deadline)

    def persist_end(self, backing_topic: str, subscription: str, deadline: Deadline) -> bool:
        """If the subscription has acknowledged all of a terminated topic, make the broker store its cursor,
        disconnect its consumers, and return True. Return False, and change nothing, if the topic is not terminated or
        has unacknowledged entries. Also return False if the move that stores the cursor made messages unacknowledged
        again.

        Without this call, the broker may store the last acknowledgement up to a minute late. On a topic without
        entries nothing is stored or disconnected, and the result is True. Raises SegmentNotFound;
        SubscriptionNotFound; DataPlaneTimeout at the deadline; and the other errors of `AdminCalls.ask`.
        """
        if self.unread_entries(backing_topic, subscription, deadline) != 0:
            return False
        self.make_durable(backing_topic, subscription, deadline)
        return self.unread_entries(backing_topic, subscription, deadline) == 0

    def is_closed_and_empty(self, backing_topic: str, deadline: Deadline) -> bool:
        """Return True if the topic is terminated, and no entry is stored. Raises SegmentNotFound."""
        return is_closed_and_empty(self.internal(backing_topic, deadline))

    def _move_to_present(
        self, internal: Mapping[str, Any], backing_topic: str, subscription: str, deadline: Deadline
    ) -> None:
        """Move the subscription to its own position according to `internal`, the topic's internal statistics. This
        disconnects all consumers of the subscription. Raises SubscriptionNotFound, DataPlaneTimeout at the deadline,
        and the other errors of `AdminCalls.ask`.
        """
        cursor = self._cursor(internal, backing_topic, subscription)
        purpose = f"take over {subscription!r} on {backing_topic}"
        self._move_behind(
            backing_topic, subscription, place_told(cursor["markDeletePosition"]), purpose, deadline
        )

    def _move_behind(
        self, backing_topic: str, subscription: str, place: tuple[int, int], purpose: str, deadline: Deadline
    ) -> None:
        """Move the subscription so that the entry after the place (ledger, entry) is its next, and disconnect all its
        consumers. `purpose` begins the messages of errors. Raises SubscriptionNotFound, SegmentNotFound,
        DataPlaneTimeout at the deadline, and the other errors of `AdminCalls.ask`.
        """
        path = f"{topic_path(backing_topic)}/subscription/{subscription_path(subscription)}/resetcursor"
        following = {"ledgerId": place[0], "entryId": place[1] + 1, "partitionIndex": -1, "batchIndex": -1}
        self._admin.ask(Ask("POST", path, purpose, body=following), deadline)

    def is_drained(self, backing_topic: str, subscription: str, deadline: Deadline) -> bool:
        """Return True if the topic is terminated and the subscription has acknowledged all of it.

        Raises SegmentNotFound, SubscriptionNotFound.
        """
        return self.unread_entries(backing_topic, subscription, deadline) == 0

    def unread_entries(
        self, backing_topic: str, subscription: str, deadline: Deadline, *, is_terminated: bool = False
    ) -> int | None:
        """Return the number of entries of a terminated topic that the subscription has not acknowledged. None if the
        topic is not terminated, because more may be appended. With `is_terminated` the caller knows that the topic is
        terminated, which saves a request.

        Raises SegmentNotFound; SubscriptionNotFound; DataPlaneUnavailable for an incomplete response;
        DataPlaneTimeout at the deadline; and the other errors of `AdminCalls.ask`.
        """
        if not is_terminated:
            internal = self.internal(backing_topic, deadline)
            self._cursor(internal, backing_topic, subscription)
            if internal["state"] != "Terminated":
                return None
        statistics = self._subscription(backing_topic, subscription, deadline, "?getPreciseBacklog=true")
        return unread_entries(f"backlog of {subscription!r} on {backing_topic}", statistics)

    def unread_messages(self, backing_topic: str, subscription: str, entries: int, deadline: Deadline) -> int:
        """Return the approximate number of messages in the entries that the subscription has not acknowledged.
        `entries` is the number of these entries. A batch counts whole. If there are more than `MOST_COUNTED` entries,
        or not enough time to read them, the rest is estimated.

        Meant for a broker that cannot count messages itself (`stored_entries`). Raises SegmentNotFound;
        SubscriptionNotFound; and the other errors of `AdminCalls.ask`.
        """
        internal = self.internal(backing_topic, deadline)
        cursor = self._cursor(internal, backing_topic, subscription)
        return count_unread(self._admin, backing_topic, cursor, entries, internal, deadline)

    def is_terminated(self, backing_topic: str, deadline: Deadline) -> bool:
        """Return True if the topic is terminated, so that nothing can be appended."""
        return bool(self.internal(backing_topic, deadline).get("state") == "Terminated")

    def reload_if_terminated(self, backing_topic: str, deadline: Deadline) -> bool:
        """If the topic is terminated, make the broker reload the topic, and return True. Return False, and change
        nothing, for an open topic, and on a broker that could not read the topic after a reload
        (`reads_after_reload`). The topic's consumers and producers are disconnected by a reload; readers reconnect, and
        no producer appends to a terminated topic. The call needs an administrator's rights.

        A broker (seen with 4.2.4) fences a topic whose termination comes between a message and its storing. The
        broker should lift the fence when the message has failed, but sometimes never does: then no consumer can
        subscribe, and only a reload helps. Raises SegmentNotFound; DataPlaneTimeout at the deadline; and the other
        errors of `AdminCalls.ask`. If the topic is deleted meanwhile, the result is True.
        """
        if not self.is_terminated(backing_topic, deadline) or not reads_after_reload(self.version(deadline)):
            return False
        self._admin.ask(reload(backing_topic), deadline)
        return True

    def end_of(self, backing_topic: str, deadline: Deadline) -> tuple[int, int]:
        """Return (ledger, entry) of the last entry; the entry is -1 in an empty topic. Raises SegmentNotFound
        if there is no such topic, because opening a producer might create it.
        """
        return place_told(self.internal(backing_topic, deadline)["lastConfirmedEntry"])

    def is_at_end(self, backing_topic: str, read: Position, deadline: Deadline) -> bool:
        """Return True if the topic is terminated and no stored message follows `read`, the position of the last
        message that was read (an empty position: none was read). False for an open topic. The last entry is requested
        only if `read` is in this entry.

        Raises SegmentNotFound; DataGone if the last entry was deleted after a part of it was read, or if all entries
        that may follow `read` were deleted and the broker still names the last one; DataPlaneTimeout at the deadline;
        and the other errors of `AdminCalls.ask`.
        """
        internal = self.internal(backing_topic, deadline)
        if internal.get("state") != "Terminated":
            return False
        last = last_stored(internal)
        if last[1] < 0 or read >= (*last, WHOLE_ENTRY):
            return True
        if read[:2] != last:
            if not is_closed_and_empty(internal):
                return False
            if read:
                self.demand_kept(backing_topic, read, deadline)
            return True
        return read[2] + 1 >= messages_in(self._admin, backing_topic, last, deadline)

    def has_more(self, backing_topic: str, read: Position, deadline: Deadline) -> bool:
        """Return True if an entry is stored behind the entry of `read`, the position of the last message that was
        read (an empty position: none was read). Unread messages of that entry itself do not count. Raises
        SegmentNotFound; DataPlaneTimeout at the deadline; and the other errors of `AdminCalls.ask`.
        """
        internal = self.internal(backing_topic, deadline)
        return read[:2] < last_stored(internal) and int(internal["numberOfEntries"]) > 0

    def demand_kept(self, backing_topic: str, after: Position, deadline: Deadline) -> None:
        """Raise DataGone if the broker has, or may have, deleted messages that follow the position `after`. Return if
        the broker still has the ledger of the position, and so every message that follows, or if the position is
        behind every message of the topic's last entry.

        If the ledger of the last entry was deleted, DataGone is also raised for the position of a message of that
        entry, because more messages of the entry may follow. Raises SegmentNotFound; DataPlaneTimeout at the
        deadline; and the other errors of `AdminCalls.ask`.
        """
        internal = self.internal(backing_topic, deadline)
        ledgers = {int(ledger["ledgerId"]) for ledger in internal["ledgers"]}
        if after[0] in ledgers or after >= (*place_told(internal["lastConfirmedEntry"]), WHOLE_ENTRY):
            return
        raise DataGone(
            f"{backing_topic}: the broker has deleted the messages behind {after[0]}:{after[1]}, or may have; start again at the "
            "earliest stored message, and set a retention or a subscription that keeps the messages you need"
        )

    def place_before(self, backing_topic: str, instant_ms: int | None, deadline: Deadline) -> tuple[int, int]:
        """Return the place (ledger, entry) before the first stored entry that was published at or after the instant
        (milliseconds since the Unix epoch; a negative instant counts as 0). If no entry is that late, or `instant_ms`
        is None, return the place of the last entry. The entry is -1 before the first entry of a ledger.

        Raises SegmentNotFound; DataPlaneUnavailable for an incomplete response; DataPlaneTimeout at the deadline; and
        the other errors of `AdminCalls.ask`.
        """
        if instant_ms is None:
            return self.end_of(backing_topic, deadline)
        path = f"{topic_path(backing_topic)}/messageid/{max(0, instant_ms)}"
        purpose = f"locate an instant in {backing_topic}"
        answer = self._admin.ask(Ask("GET", path, purpose, accept=GONE), deadline)
        if answer.status not in GONE:
            with reading(purpose, answer.document):
                ledger, entry = int(answer.document["ledgerId"]), int(answer.document["entryId"])
            if ledger >= 0:
                return ledger, entry - 1
        internal = self.internal(backing_topic, deadline)
        if answer.status in GONE:
            if internal.get("state") != "Terminated":
                raise missing(backing_topic)
            return place_before_instant(self._admin, backing_topic, instant_ms, internal, deadline)
        return min((int(ledger["ledgerId"]) for ledger in internal["ledgers"]), default=0), -1

    def internal(self, backing_topic: str, deadline: Deadline, query: str = "") -> Mapping[str, Any]:
        """Return the topic's internal statistics, which have every part that this package reads. `query` is
        appended to the address, such as `?metadata=true`. Raises SegmentNotFound, and DataPlaneUnavailable for incomplete statistics.
        """
        statistics = self._ask(backing_topic, f"internalStats{query}", deadline)
        demand_complete(f"check {backing_topic}", statistics)
        return statistics

    def internal_with_ledgers(self, backing_topic: str, deadline: Deadline) -> Mapping[str, Any]:
        """Return the topic's internal statistics as `internal` does, with the metadata of each ledger."""
        return self.internal(backing_topic, deadline, "?metadata=true")

    def parts_of(
        self, backing_topic: str, places: Sequence[tuple[int, int]], deadline: Deadline
    ) -> dict[tuple[int, int], StoredPart | None]:
        """Return the content of each entry, by place, with one request per entry, in parallel. None for a deleted
        entry. Raises DataPlaneUnavailable for a response that does not say which messages an entry contains.
        """
        return parts_of(self._admin, backing_topic, places, deadline)

    def _subscription(
        self, backing_topic: str, subscription: str, deadline: Deadline, query: str = ""
    ) -> Mapping[str, Any]:
        """Request the topic's ordinary statistics, and return the part about the subscription. `query` is appended to
        the address, such as `?getPreciseBacklog=true`. Raises SegmentNotFound; SubscriptionNotFound; DataPlaneTimeout
        at the deadline; and the other errors of `AdminCalls.ask`.
        """
        stats = self._ask(backing_topic, f"stats{query}", deadline)
        with reading(f"check {backing_topic}", stats):
            return _of(stats["subscriptions"] or {}, backing_topic, subscription)

    def _cursor(
        self, internal: Mapping[str, Any], backing_topic: str, subscription: str
    ) -> Mapping[str, Any]:
        """Return the statistics of the subscription's cursor, which ledgers list under the name that
        `cursor_name` returns. Raises SubscriptionNotFound.
        """
        return _of(internal["cursors"], backing_topic, subscription, key=cursor_name(subscription))

    def _ask(self, backing_topic: str, what: str, deadline: Deadline) -> Mapping[str, Any]:
        """Request the document at the address `what` below the address of the topic, such as `stats`, and return it.
        Raises SegmentNotFound for a missing topic; DataPlaneUnavailable for a document that is not an object;
        DataPlaneTimeout at the deadline; and the other errors of `AdminCalls.ask`.
        """
        purpose = f"check {backing_topic}"
        ask = Ask("GET", f"{topic_path(backing_topic)}/{what}", purpose, accept=GONE)
        return existing(ask, self._admin.ask(ask, deadline), backing_topic)


def is_closed_and_empty(internal: Mapping[str, Any]) -> bool:
    """Return True if the topic with these internal statistics is terminated, and no entry is stored."""
    return internal.get("state") == "Terminated" and internal.get("numberOfEntries") == 0


def _holder(consumer: Mapping[str, Any], *, is_shared: bool) -> Holder:
    """Return the holder from a consumer's statistics. Unless the subscription `is_shared` by key, the holder
    has all slots.
    """
    marks = consumer.get("metadata") or {}
    return Holder(
        marks.get(OWNER),
        marks.get(READER),
        str(consumer.get("address", "unknown address")),
        _slots(consumer) if is_shared else (FULL_RANGE,),
        int(consumer.get("unackedMessages", 0)),
        int(consumer.get("availablePermits", 1)),
        parse_ownership(marks.get(OWNERSHIP)),
    )


def ownership_text(ownership: Ownership) -> str:
    """Return the ownership as the property of a consumer."""
    return f"{ownership.origin}.{ownership.generation}"


def parse_ownership(written: str | None) -> Ownership | None:
    """Return the ownership that `ownership_text` wrote. None for any other text, because any program may set
    the property.
    """
    match = re.fullmatch(r"(\d{1,19})\.(\d{1,19})", written or "")
    return None if match is None else Ownership(int(match[1]), int(match[2]))


def _slots(consumer: Mapping[str, Any]) -> tuple[HashRange, ...]:
    """Return the ranges of slots of a consumer of a subscription shared by key, from the consumer's statistics.
    Brokers report a range as a pair of numbers, before 4.1 as text: `[0, 4095]`. A consumer whose statistics contain
    no range has all slots.
    """
    ranges = consumer.get("keyHashRangeArrays")
    if ranges is None:
        ranges = [re.findall(r"\d+", str(text)) for text in consumer.get("keyHashRanges") or []]
    slots = (HashRange(int(start), min(int(end), MAX_HASH)) for start, end in ranges)
    return tuple(slots) or (FULL_RANGE,)


def _of(
    statistics_by_name: Mapping[str, Any], backing_topic: str, subscription: str, *, key: str | None = None
) -> Mapping[str, Any]:
    """Return the subscription's entry of `statistics_by_name`. `key` is the name under which the entry is stored;
    None: the subscription's own name. Raises SubscriptionNotFound, which names the subscription and the topic, if
    there is no such entry.
    """
    key = subscription if key is None else key
    if key not in statistics_by_name:
        raise SubscriptionNotFound(
            f"there is no subscription {subscription!r} on {backing_topic}; create the subscription first"
        )
    statistics: Mapping[str, Any] = statistics_by_name[key]
    return statistics
