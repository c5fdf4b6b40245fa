"""A subscription on one topic as its reader needs it: who holds it, how to cut a holder off, whether all is read.

Admin REST calls; a consumer's own rights (to consume) suffice for each of them but `reload_if_terminated`. A broker
knows no owners: a reader leaves its owner's name and a mark of its own in the properties of its consumer, which the
statistics show.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller.dataplane.base import Ownership, Position
from controller.dataplane.pulsar.admin import AdminCalls, Ask, Deadline
from controller.dataplane.pulsar.asks import FAILED
from controller.dataplane.pulsar.names import cursor_name, subscription_path, topic_path
from controller.dataplane.pulsar.stored import (
    StoredPart,
    messages_in,
    messages_left,
    parts_of,
    place_before_instant,
    place_told,
)
from controller.dataplane.pulsar.versions import VERSION
from controller.domain.errors import (
    DataGone,
    DataPlaneUnavailable,
    SegmentNotFound,
    SubscriptionNotFound,
)
from controller.domain.hash_range import FULL_RANGE, MAX_HASH, HashRange

OWNER, READER, OWNERSHIP = "cleave.owner", "cleave.reader", "cleave.ownership"
"""Properties of a consumer: the owner's name, a mark that no other reader has, and what it was assigned by: `origin.generation`."""
_GONE = frozenset({404})


@dataclass(frozen=True, slots=True)
class Holder:
    """Who is connected to a subscription. `owner` is None for a consumer that is not Cleave's."""

    owner: str | None
    reader: str | None
    address: str
    slots: tuple[HashRange, ...] = (FULL_RANGE,)
    """What it is given; all of it where the subscription is not shared by key."""
    unacknowledged: int = 0
    """Messages that it was given and has not acknowledged."""
    permits: int = 1
    """How many more messages the broker may give to it now."""
    ownership: Ownership | None = None
    """None where it named none."""

    def holds_some_of(self, bucket: HashRange | None) -> bool:
        """Whether it is in the way of whoever wants that bucket, or everything."""
        return bucket is None or any(bucket.overlaps(one) for one in self.slots)


@dataclass(frozen=True, slots=True)
class Attachments:
    """Who is connected to a subscription now."""

    holders: tuple[Holder, ...]
    is_shared: bool
    """By key: consumers have ranges of slots, and one more may come."""
    backlog: int
    """Entries that are not acknowledged, without those whose time has not come."""

    def in_the_way_of(self, bucket: HashRange | None) -> tuple[Holder, ...]:
        """Those who hold what is wanted, or a part of it. A consumer of another kind is in everybody's way."""
        if self.holders and self.is_shared != (bucket is not None):
            return self.holders
        return tuple(one for one in self.holders if one.holds_some_of(bucket))

    @property
    def covers_all(self) -> bool:
        """Whether every slot has a consumer."""
        return sum(one.width for holder in self.holders for one in holder.slots) >= FULL_RANGE.width


class Cursors:
    """Looks at subscriptions and moves them, on behalf of readers."""

    def __init__(self, admin: AdminCalls) -> None:
        self._admin = admin

    def deadline(self) -> Deadline:
        """A new deadline, for a call that begins now."""
        return self._admin.deadline()

    def attachments(self, backing_topic: str, subscription: str, deadline: Deadline) -> Attachments:
        """Who reads for the subscription. Raises SegmentNotFound, SubscriptionNotFound.

        A consumer counts from when it asks for its place, even while the broker still makes sure of another one.
        """
        seen = self._subscription(backing_topic, subscription, deadline)
        is_shared = seen.get("type") == "Key_Shared"
        holders = tuple(_holder(one, is_shared=is_shared) for one in seen.get("consumers") or [])
        waiting = int(seen.get("msgBacklog", 0)) - int(seen.get("msgDelayed", 0))
        return Attachments(holders, is_shared, waiting)

    def version(self, deadline: Deadline) -> str:
        """The broker's version: `4.2.4`."""
        return str(self._admin.ask(VERSION, deadline).document)

    def is_contiguous(self, backing_topic: str, subscription: str, deadline: Deadline) -> bool:
        """Whether nothing is acknowledged behind the first message that is not. Moving the cursor would undo it."""
        cursor = self._cursor(self.internal(backing_topic, deadline), backing_topic, subscription)
        return int(cursor.get("totalNonContiguousDeletedMessagesRange", 0)) == 0

    def cut_off(self, backing_topic: str, subscription: str, deadline: Deadline) -> None:
        """Disconnect all holders. Moving a cursor, here to where it is, breaks its consumers' connections.

        What is acknowledged between the look and the move is delivered again, a batch acknowledged in part as well, and
        everything that is acknowledged behind the first message that is not.
        """
        cursor = self._cursor(self.internal(backing_topic, deadline), backing_topic, subscription)
        act = f"take over {subscription!r} on {backing_topic}"
        self._move_behind(
            backing_topic, subscription, place_told(cursor["markDeletePosition"]), act, deadline
        )

    def move_before(
        self, backing_topic: str, subscription: str, place: tuple[int, int], deadline: Deadline
    ) -> None:
        """Have the subscription go on with the entry at the place. Disconnects all holders."""
        act = f"move {subscription!r} on {backing_topic}"
        self._move_behind(backing_topic, subscription, (place[0], place[1] - 1), act, deadline)

    def move(self, backing_topic: str, subscription: str, instant_ms: int, deadline: Deadline) -> None:
        """Have the subscription go on with the first entry published at the instant or later. Disconnects all holders.

        A terminated topic without an entry has no place to go to. A broker that has loaded such a one anew (seen with 4.2.4) fails
        at any instant in it and leaves the subscription fenced, so that it can never be moved again; it is not asked.
        """
        if self._is_closed_and_empty(backing_topic, deadline):
            return
        act = f"seek {subscription!r} on {backing_topic}"
        path = f"{topic_path(backing_topic)}/subscription/{subscription_path(subscription)}/resetcursor/{instant_ms}"
        answer = self._admin.ask(Ask("POST", path, act, accept=FAILED), deadline)
        if answer.status in FAILED:  # it may not know where that is
            place = self.place_before(backing_topic, instant_ms, deadline)
            self._move_behind(backing_topic, subscription, place, act, deadline)

    def write_down_end(self, backing_topic: str, subscription: str, deadline: Deadline) -> bool:
        """Have the broker store the cursor of a subscription that has acknowledged all of a terminated topic; False, and nothing, for any
        other. Disconnects all holders. Raises SegmentNotFound, SubscriptionNotFound.

        A cursor that is moved is stored at once, and an acknowledgement up to a minute later.
        """
        if self.left(backing_topic, subscription, deadline) != 0:
            return False
        if self._is_closed_and_empty(backing_topic, deadline):
            return True
        self.cut_off(backing_topic, subscription, deadline)
        return self.left(backing_topic, subscription, deadline) == 0

    def _is_closed_and_empty(self, backing_topic: str, deadline: Deadline) -> bool:
        return is_closed_and_empty(self.internal(backing_topic, deadline))

    def _move_behind(
        self, backing_topic: str, subscription: str, place: tuple[int, int], act: str, deadline: Deadline
    ) -> None:
        path = f"{topic_path(backing_topic)}/subscription/{subscription_path(subscription)}/resetcursor"
        following = {"ledgerId": place[0], "entryId": place[1] + 1, "partitionIndex": -1, "batchIndex": -1}
        self._admin.ask(Ask("POST", path, act, body=following), deadline)

    def is_drained(self, backing_topic: str, subscription: str, deadline: Deadline) -> bool:
        """Whether the topic is terminated and the subscription has acknowledged all of it."""
        return self.left(backing_topic, subscription, deadline) == 0

    def left(
        self, backing_topic: str, subscription: str, deadline: Deadline, *, is_terminated: bool = False
    ) -> int | None:
        """Entries of a terminated topic that the subscription has not acknowledged; None while more may be appended. With
        `is_terminated` it is known to be. Raises SegmentNotFound, SubscriptionNotFound.
        """
        if not is_terminated:
            internal = self.internal(backing_topic, deadline)
            self._cursor(internal, backing_topic, subscription)
            if internal["state"] != "Terminated":
                return None
        seen = self._subscription(backing_topic, subscription, deadline, "?getPreciseBacklog=true")
        return int(seen["msgBacklog"])

    def messages_left(self, backing_topic: str, subscription: str, entries: int, deadline: Deadline) -> int:
        """How many messages the `entries` hold that are not acknowledged, where the broker does not count them itself; see
        `stored`. Raises SegmentNotFound, SubscriptionNotFound.
        """
        internal = self.internal(backing_topic, deadline)
        cursor = self._cursor(internal, backing_topic, subscription)
        return messages_left(self._admin, backing_topic, cursor, entries, internal, deadline)

    def is_terminated(self, backing_topic: str, deadline: Deadline) -> bool:
        """Whether nothing can be appended any more."""
        return bool(self.internal(backing_topic, deadline).get("state") == "Terminated")

    def reload_if_terminated(self, backing_topic: str, deadline: Deadline) -> bool:
        """Have the broker load a terminated topic anew; whether it was asked to.

        A broker (seen with 4.2.4) fences a topic whose termination comes between a message and its storing, to lift that
        when the message has failed, and now and then never does: nobody can subscribe any more, and only loading it anew
        helps. Nobody appends to a terminated topic, and its readers come back. It takes an administrator's rights.
        """
        if not self.is_terminated(backing_topic, deadline):
            return False
        act = f"have {backing_topic} loaded anew"
        self._admin.ask(Ask("PUT", f"{topic_path(backing_topic)}/unload", act, accept=_GONE), deadline)
        return True

    def end_of(self, backing_topic: str, deadline: Deadline) -> tuple[int, int]:
        """(ledger, entry) of the last entry, entry -1 in an empty topic. SegmentNotFound where there is no such topic:
        opening a producer might create it.
        """
        return place_told(self.internal(backing_topic, deadline)["lastConfirmedEntry"])

    def is_at_end(self, backing_topic: str, read: Position, deadline: Deadline) -> bool:
        """Whether the topic is terminated and `read` (empty: nothing) is its last message. SegmentNotFound."""
        internal = self.internal(backing_topic, deadline)
        if internal.get("state") != "Terminated":
            return False
        last = place_told(internal["lastConfirmedEntry"])
        if last[1] < 0 or read[:2] > last:
            return True
        if read[:2] != last:
            return False
        return read[2] + 1 >= messages_in(self._admin, backing_topic, last, deadline)

    def has_more(self, backing_topic: str, read: Position, deadline: Deadline) -> bool:
        """Whether an entry is stored behind that of `read` (empty: nothing was read). SegmentNotFound."""
        internal = self.internal(backing_topic, deadline)
        last = place_told(internal["lastConfirmedEntry"])
        return last[1] >= 0 and read[:2] < last and int(internal.get("numberOfEntries", 0)) > 0

    def demand_kept(self, backing_topic: str, after: Position, deadline: Deadline) -> None:
        """Raise DataGone unless the broker has everything that follows upon the position, or nothing does. SegmentNotFound."""
        internal = self.internal(backing_topic, deadline)
        ledgers = {int(one["ledgerId"]) for one in internal.get("ledgers") or ()}
        if after[0] in ledgers or after[:2] > place_told(internal["lastConfirmedEntry"]):
            return
        raise DataGone(
            f"{backing_topic}: the broker has deleted what follows upon {after[0]}:{after[1]}, or may have; begin anew where "
            "messages are left, and have retention or a subscription keep what you need"
        )

    def place_before(self, backing_topic: str, instant_ms: int | None, deadline: Deadline) -> tuple[int, int]:
        """(ledger, entry) before the first entry published at or after the instant, of those there are; None: the last one."""
        if instant_ms is None:
            return self.end_of(backing_topic, deadline)
        path = f"{topic_path(backing_topic)}/messageid/{max(0, instant_ms)}"
        act = f"look for an instant in {backing_topic}"
        answer = self._admin.ask(Ask("GET", path, act, accept=_GONE), deadline)
        if answer.status not in _GONE:
            ledger, entry = int(answer.document["ledgerId"]), int(answer.document["entryId"])
            if ledger >= 0:
                return ledger, entry - 1
        internal = self.internal(backing_topic, deadline)
        if answer.status in _GONE:
            if internal.get("state") != "Terminated":
                raise _missing(backing_topic)
            return place_before_instant(self._admin, backing_topic, instant_ms, internal, deadline)
        ledgers = internal.get("ledgers") or [{"ledgerId": 0}]
        return min(int(one["ledgerId"]) for one in ledgers), -1

    def internal(self, backing_topic: str, deadline: Deadline) -> Mapping[str, Any]:
        """Return the topic's internal statistics. Raises SegmentNotFound."""
        return self._ask(backing_topic, "internalStats", deadline)

    def internal_with_ledgers(self, backing_topic: str, deadline: Deadline) -> Mapping[str, Any]:
        """Return the topic's internal statistics with the metadata of each ledger. Raises SegmentNotFound."""
        return self._ask(backing_topic, "internalStats?metadata=true", deadline)

    def parts_of(
        self, backing_topic: str, places: Sequence[tuple[int, int]], deadline: Deadline
    ) -> dict[tuple[int, int], StoredPart | None]:
        """Return what entries hold; see `stored`."""
        return parts_of(self._admin, backing_topic, places, deadline)

    def _subscription(
        self, backing_topic: str, subscription: str, deadline: Deadline, query: str = ""
    ) -> Mapping[str, Any]:
        stats = self._ask(backing_topic, f"stats{query}", deadline)
        return _of(stats.get("subscriptions") or {}, backing_topic, subscription)

    def _cursor(
        self, internal: Mapping[str, Any], backing_topic: str, subscription: str
    ) -> Mapping[str, Any]:
        """A ledger's cursors go by their subscriptions' names as `cursor_name` writes them."""
        return _of(internal["cursors"], backing_topic, subscription, key=cursor_name(subscription))

    def _ask(self, backing_topic: str, what: str, deadline: Deadline) -> Mapping[str, Any]:
        act = f"look at {backing_topic}"
        answer = self._admin.ask(
            Ask("GET", f"{topic_path(backing_topic)}/{what}", act, accept=_GONE), deadline
        )
        if answer.status in _GONE:
            raise _missing(backing_topic)
        if not isinstance(answer.document, Mapping):
            raise DataPlaneUnavailable(f"{act}: the broker's answer says nothing of it; try again")
        return answer.document


def is_closed_and_empty(internal: Mapping[str, Any]) -> bool:
    """Return True if the topic with these internal statistics is terminated, and no entry is stored."""
    return internal.get("state") == "Terminated" and internal.get("numberOfEntries") == 0


def _missing(backing_topic: str) -> SegmentNotFound:
    return SegmentNotFound(
        f"no topic {backing_topic}; it was deleted or never created: look up the layout again"
    )


def _holder(consumer: Mapping[str, Any], *, is_shared: bool) -> Holder:
    marks = consumer.get("metadata") or {}
    return Holder(
        marks.get(OWNER),
        marks.get(READER),
        str(consumer.get("address", "unknown address")),
        _slots(consumer) if is_shared else (FULL_RANGE,),
        int(consumer.get("unackedMessages", 0)),
        int(consumer.get("availablePermits", 1)),
        ownership_told(marks.get(OWNERSHIP)),
    )


def ownership_text(ownership: Ownership) -> str:
    """As a consumer's property has it."""
    return f"{ownership.origin}.{ownership.generation}"


def ownership_told(written: str | None) -> Ownership | None:
    """What `ownership_text` wrote; None for anything else, since anybody may write a property."""
    found = re.fullmatch(r"(\d{1,19})\.(\d{1,19})", written or "")
    return None if found is None else Ownership(int(found[1]), int(found[2]))


def _slots(consumer: Mapping[str, Any]) -> tuple[HashRange, ...]:
    """Brokers write the ranges as pairs of numbers, those before 4.1 as text: `[0, 4095]`. Without any, everything
    counts.
    """
    ranges = consumer.get("keyHashRangeArrays")
    if ranges is None:
        ranges = [re.findall(r"\d+", str(one)) for one in consumer.get("keyHashRanges") or []]
    found = (HashRange(int(start), min(int(end), MAX_HASH)) for start, end in ranges)
    return tuple(found) or (FULL_RANGE,)


def _of(
    found: Mapping[str, Any], backing_topic: str, subscription: str, *, key: str | None = None
) -> Mapping[str, Any]:
    key = subscription if key is None else key
    if key not in found:
        raise SubscriptionNotFound(
            f"there is no subscription {subscription!r} on {backing_topic}; create the subscription first"
        )
    one: Mapping[str, Any] = found[key]
    return one
