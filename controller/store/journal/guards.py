"""What every intent is checked against: its key, the inputs it was decided on, and who else is at the segments.

Serves ``intents`` alone, under the topic's lock; reshapes have ``reshape_intents`` for it. The rules are the door's;
they stand here so that the door can be read in one sitting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from controller.domain.errors import CleaveError, Conflict, LostRace, SegmentBusy, TopicExists
from controller.domain.operation import Operation, OperationKind
from controller.store.journal.rows import Request, find_by_request_key
from controller.store.topics.topics import TopicRow, TopicState


@dataclass(frozen=True, slots=True)
class Intent:
    """What a request led to; ``repeated`` when an earlier one with the same key wrote the operation."""

    operation: Operation
    repeated: bool


_LAST_OF_NAME = """
    SELECT state, next_segment_id FROM cleave.topic WHERE name = :name ORDER BY topic_id DESC LIMIT 1
"""
_INPUT_VERSION = "SELECT input_version FROM cleave.evaluation WHERE topic_id = :topic_id"
_BUSY = """
    SELECT segment_id, operation_id FROM cleave.operation_parent
     WHERE live AND topic_id = :topic_id AND segment_id = ANY (:segment_ids) ORDER BY segment_id LIMIT 1
"""


def once(
    tx: Connection, request: Request, act: Callable[[], Operation], is_same: Callable[[Operation], bool]
) -> Intent:
    """The first operation of the request key, written now or before.

    Whatever stopped ``act`` may be the first request's own effect, committed while this one waited for a lock;
    so every refusal is answered with the key's operation if there is one by now.
    """
    first = find_by_request_key(tx, request.request_key)
    if first is None:
        try:
            with tx.begin_nested():
                return Intent(act(), repeated=False)
        except (IntegrityError, CleaveError):
            first = find_by_request_key(tx, request.request_key)
            if first is None:
                raise
    return repeat(first, request, is_same)


def repeat(first: Operation, request: Request, is_same: Callable[[Operation], bool]) -> Intent:
    """The key's first operation again. Raises Conflict when it is not what is asked for now."""
    if not is_same(first):
        raise Conflict(
            f"request key {request.request_key} was used for {first.kind} of {first.topic_name} "
            f"(operation {first.operation_id}); take a fresh key"
        )
    return Intent(first, repeated=True)


def first_free_id(tx: Connection, name: str) -> int:
    """One above every id a topic of this name has reserved; a deleted topic reserves no more. Raises TopicExists.

    Should the name be used and freed before our row is in, the database refuses the row.
    """
    last = tx.execute(text(_LAST_OF_NAME), {"name": name}).one_or_none()
    if last is None:
        return 0
    if last.state != TopicState.DELETED:
        raise TopicExists(
            f"topic {name} exists already ({last.state}); delete it first or choose another name"
        )
    return int(last.next_segment_id)


def is_same(first: Operation, topic_id: int, kind: OperationKind, subscription: str | None = None) -> bool:
    """Whether the key's first operation is what is asked for now."""
    return (
        first.topic_id == topic_id
        and first.kind is kind
        and (subscription is None or first.parameters.get("subscription") == subscription)
    )


def demand_unchanged(
    tx: Connection, topic: TopicRow, seen_epoch: int | None, seen_input_version: int | None
) -> None:
    """Raises LostRace when the epoch or the inputs are not those decided on; None: whatever they are."""
    if seen_epoch not in (None, topic.epoch):
        raise LostRace(f"topic {topic.name} is at epoch {topic.epoch}, not {seen_epoch}; read it again", 0.0)
    if seen_input_version is not None:
        present = tx.execute(text(_INPUT_VERSION), {"topic_id": topic.topic_id}).scalar_one()
        if present != seen_input_version:
            raise LostRace(
                f"inputs of topic {topic.name} are at version {present}, not {seen_input_version}; decide again",
                0.0,
            )


def demand_free(tx: Connection, topic: TopicRow, segment_ids: Sequence[int]) -> None:
    """Raises SegmentBusy naming the live operation one of the segments is in."""
    busy = tx.execute(
        text(_BUSY), {"topic_id": topic.topic_id, "segment_ids": list(segment_ids)}
    ).one_or_none()
    if busy is not None:
        raise SegmentBusy(
            f"segment {busy.segment_id} of topic {topic.name} is in live operation {busy.operation_id}; wait for it"
        )
