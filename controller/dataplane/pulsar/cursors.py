"""A subscription on one topic as its reader needs it: who holds it, how to cut a holder off, whether all is read.

Admin REST calls; a consumer's own rights (to consume) suffice for each of them but `reload_if_terminated`. A broker
knows no owners: a reader leaves its owner's name and a mark of its own in the properties of its consumer, which the
statistics show.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controller.dataplane.pulsar.admin import AdminCalls, Ask, Deadline
from controller.dataplane.pulsar.names import cursor_name, subscription_path, topic_path
from controller.dataplane.pulsar.stored import SentBatch, stored_of
from controller.domain.errors import DataPlaneUnavailable, SegmentNotFound, SubscriptionNotFound

OWNER, READER = "cleave.owner", "cleave.reader"
"""Properties of a consumer: the owner's name, and a mark that no other reader has."""
_GONE = frozenset({404})


@dataclass(frozen=True, slots=True)
class Holder:
    """Who is connected to a subscription. `owner` is None for a consumer that is not Cleave's."""

    owner: str | None
    reader: str | None
    address: str


class Cursors:
    """Looks at subscriptions and moves them, on behalf of readers."""

    def __init__(self, admin: AdminCalls) -> None:
        self._admin = admin

    def deadline(self) -> Deadline:
        """A new deadline, for a call that begins now."""
        return self._admin.deadline()

    def holder(self, backing_topic: str, subscription: str, deadline: Deadline) -> Holder | None:
        """Who reads for the subscription; None when nobody does. Raises SegmentNotFound, SubscriptionNotFound."""
        consumers = self._subscription(backing_topic, subscription, deadline).get("consumers") or []
        if not consumers:
            return None
        marks = consumers[0].get("metadata") or {}
        return Holder(
            marks.get(OWNER), marks.get(READER), str(consumers[0].get("address", "unknown address"))
        )

    def cut_off(self, backing_topic: str, subscription: str, deadline: Deadline) -> None:
        """Disconnect the holder. Moving a cursor, here to where it is, breaks its consumers' connections.

        What is acknowledged between the look and the move is delivered again, a batch acknowledged in part as well.
        """
        cursor = self._cursor(self._internal(backing_topic, deadline), backing_topic, subscription)
        ledger, _, entry = str(cursor["markDeletePosition"]).partition(":")
        path = f"{topic_path(backing_topic)}/subscription/{subscription_path(subscription)}/resetcursor"
        next_entry = {
            "ledgerId": int(ledger),
            "entryId": int(entry) + 1,
            "partitionIndex": -1,
            "batchIndex": -1,
        }
        self._admin.ask(
            Ask("POST", path, f"take over {subscription!r} on {backing_topic}", body=next_entry), deadline
        )

    def is_drained(self, backing_topic: str, subscription: str, deadline: Deadline) -> bool:
        """Whether the topic is terminated and the subscription has acknowledged all of it."""
        internal = self._internal(backing_topic, deadline)
        self._cursor(internal, backing_topic, subscription)
        if internal["state"] != "Terminated":
            return False
        seen = self._subscription(backing_topic, subscription, deadline, "?getPreciseBacklog=true")
        return int(seen["msgBacklog"]) == 0

    def is_terminated(self, backing_topic: str, deadline: Deadline) -> bool:
        """Whether nothing can be appended any more."""
        return bool(self._internal(backing_topic, deadline).get("state") == "Terminated")

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
        last = self._internal(backing_topic, deadline)["lastConfirmedEntry"]
        ledger, _, entry = str(last).partition(":")
        return int(ledger), int(entry)

    def stored_of(
        self, backing_topic: str, batch: SentBatch, behind: tuple[int, int], deadline: Deadline
    ) -> int:
        """How much of the batch lies in the terminated topic; see `stored`."""
        internal = self._internal(backing_topic, deadline)
        return stored_of(self._admin, backing_topic, batch, behind, internal, deadline)

    def _subscription(
        self, backing_topic: str, subscription: str, deadline: Deadline, query: str = ""
    ) -> Mapping[str, Any]:
        stats = self._ask(backing_topic, f"stats{query}", deadline)
        return _of(stats.get("subscriptions") or {}, backing_topic, subscription)

    def _internal(self, backing_topic: str, deadline: Deadline) -> Mapping[str, Any]:
        return self._ask(backing_topic, "internalStats", deadline)

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
            raise SegmentNotFound(
                f"no topic {backing_topic}; it was deleted or never created: look up the layout again"
            )
        if not isinstance(answer.document, Mapping):
            raise DataPlaneUnavailable(f"{act}: the broker's answer says nothing of it; try again")
        return answer.document


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
