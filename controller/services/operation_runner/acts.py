"""What each step does on the data plane. Every act looks at what is there and may be repeated.

Reads the store for the subscriptions and segments in force, writes nothing to it; recording is `claimed`'s. All
calls go through `call_all`, which keeps the claim alive around them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

from controller.dataplane.base import DataPlane, LogState
from controller.domain.errors import Conflict, SegmentNotFound
from controller.domain.operation import Operation, Step
from controller.store.postgres.engine import Store
from controller.store.topics import backing_logs, subscriptions

Result = TypeVar("Result")
Detail = Mapping[str, object]


class CallAll(Protocol):
    """Make calls under the claim, several at a time; results in order, the first error raised."""

    def __call__(self, calls: Sequence[Callable[[], Result]]) -> list[Result]: ...


def subscriptions_noted(wanted: Collection[str], recorded: Collection[str]) -> Detail:
    """What the journal keeps of the children's subscriptions: all, and those no row told of."""
    unrecorded = sorted({*wanted} - {*recorded})
    return {"subscriptions": sorted(wanted)} | ({"made by applications": unrecorded} if unrecorded else {})


class Acts:
    """The acts of one operation."""

    def __init__(
        self, store: Store, plane: Callable[[], DataPlane], operation: Operation, call_all: CallAll
    ) -> None:
        """`plane` is asked only when a step needs one, so that a pure commit runs anywhere."""
        self._store = store
        self._plane = plane
        self._operation = operation
        self._call_all = call_all

    def perform(self, step: Step) -> Detail:
        """Do the step's part on the data plane; returns what is worth keeping in the journal."""
        match step:
            case Step.CREATE_CHILDREN | Step.SYNC_SUBSCRIPTIONS:
                return self._create_children()
            case Step.SET_FENCING:
                return self._confirm_children()
            case Step.TERMINATE_PARENTS:
                return self._terminate_parents()
            case Step.FINISH if self._operation.kind.succeeds_logs:
                return self._complete_children()
            case Step.CREATE_CURSORS:
                return self._create_cursors()
            case Step.DELETE_CURSORS:
                return self._delete_cursors()
            case _:
                return {}

    def _create_children(self) -> Detail:
        """Each reserved log, with every subscription at earliest: the recorded and those found on the parents."""
        wanted = self._wanted_subscriptions()
        self._create(self._child_topics, wanted)
        return subscriptions_noted(wanted, self._recorded_subscriptions()[0])

    def _confirm_children(self) -> Detail:
        """Look once more while giving up is still free: from the next step on there is no way back.

        Raises Conflict when somebody terminated a child by hand: it could never take a write.
        """
        plane = self._plane()
        states = self._call_all([partial(plane.segment_state, topic) for topic in self._child_topics])
        by_state = {
            state: [topic for topic, seen in zip(self._child_topics, states, strict=True) if seen is state]
            for state in LogState
        }
        if by_state[LogState.TERMINATED]:
            raise Conflict(
                f"{', '.join(by_state[LogState.TERMINATED])} terminated before taking over; reshape again"
            )
        self._create(
            by_state[LogState.MISSING], self._wanted_subscriptions() if by_state[LogState.MISSING] else []
        )
        return {"created again": by_state[LogState.MISSING]} if by_state[LogState.MISSING] else {}

    def _terminate_parents(self) -> Detail:
        """The fence, parent by parent. One that was deleted by hand is put back empty, so that it can be closed:
        a name that does not exist could be created and written by anybody.
        """
        plane, positions, missing = self._plane(), {}, []
        for topic in self._operation.fenced_topics:
            try:
                [positions[topic]] = self._call_all([partial(plane.terminate_segment, topic)])
            except SegmentNotFound:
                missing.append(topic)
                self._create([topic], self._recorded_subscriptions()[0])
                [positions[topic]] = self._call_all([partial(plane.terminate_segment, topic)])
        return {"positions": positions} | ({"found missing": missing} if missing else {})

    def _complete_children(self) -> Detail:
        """What an application subscribed on a parent while it was being closed also exists on the children."""
        recorded, deleting = self._recorded_subscriptions()
        late = sorted(self._found_on_parents() - set(recorded) - set(deleting))
        if not late:
            return {}
        missing = [self._add_cursors(self._child_topics, name) for name in late]
        return {"subscriptions": late, "logs found missing": sorted(set().union(*missing))}

    def _create_cursors(self) -> Detail:
        """On every log that held data at or after the subscription's first epoch, sealed meanwhile or not."""
        with self._store.single_statement() as tx:
            logs = backing_logs.carrying_subscription(tx, self._operation.topic_id, self._subscription)
        return {"logs": len(logs), "logs found missing": self._add_cursors(logs, self._subscription)}

    def _add_cursors(self, topics: Sequence[str], name: str) -> list[str]:
        """Returns the logs that do not exist: whoever puts those back (the reconciler) gives them every cursor."""
        plane = self._plane()

        def is_missing(topic: str) -> bool:
            try:
                plane.create_subscription(topic, name)
            except SegmentNotFound:
                return True
            return False

        missing = self._call_all([partial(is_missing, topic) for topic in topics])
        return [topic for topic, gone in zip(topics, missing, strict=True) if gone]

    def _delete_cursors(self) -> Detail:
        with self._store.single_statement() as tx:
            logs = backing_logs.backing_topics(tx, self._operation.topic_id)
        self._call_all(
            [partial(self._plane().delete_subscription, topic, self._subscription) for topic in logs]
        )
        return {"logs": len(logs)}

    def _create(self, topics: Sequence[str], wanted: Sequence[str]) -> None:
        plane = self._plane()
        self._call_all([partial(plane.create_segment, topic, wanted) for topic in topics])

    def _wanted_subscriptions(self) -> list[str]:
        """Recorded ones and those applications made on the parents; not those being deleted.

        The rows are read first: a subscription whose row is gone by then has no cursor on any parent either.
        """
        recorded, deleting = self._recorded_subscriptions()
        return sorted({*recorded, *self._found_on_parents()} - set(deleting))

    def _found_on_parents(self) -> set[str]:
        plane = self._plane()
        found = self._call_all(
            [partial(plane.list_subscriptions, topic) for topic in self._operation.fenced_topics]
        )
        return {name for names in found for name in names}

    def _recorded_subscriptions(self) -> tuple[list[str], list[str]]:
        """Names that are live, and names being deleted."""
        with self._store.single_statement() as tx:
            rows = subscriptions.list_subscriptions(tx, self._operation.topic_id)
        live = [row.name for row in rows if row.state == "live"]
        return live, [row.name for row in rows if row.state != "live"]

    @property
    def _child_topics(self) -> list[str]:
        return [child.backing_topic for child in self._operation.children]

    @property
    def _subscription(self) -> str:
        return str(self._operation.parameters["subscription"])
