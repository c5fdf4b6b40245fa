"""Request keys: a key is used once, and a repeat gets the first one's operation, also when both come at the same time.

Intents about a whole topic go through `once`; reshapes, which are written many in a statement, look their keys up in
that statement's own look and answer by `repeat`. The key's uniqueness is a constraint of the table `operation`; what
is here turns a broken constraint, or whatever else the first request has caused meanwhile, into the first request's
answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from controller.domain.errors import CleaveError, Conflict
from controller.domain.operation import Operation, OperationKind
from controller.store.journal.operations import Request, find_by_request_key


@dataclass(frozen=True, slots=True)
class Intent:
    """What a request led to; `repeated` when an earlier one with the same key wrote the operation."""

    operation: Operation
    repeated: bool


def once(
    tx: Connection, request: Request, act: Callable[[], Operation], is_same: Callable[[Operation], bool]
) -> Intent:
    """The first operation of the request key, written now or before.

    Whatever stopped `act` may be the first request's own effect, committed while this one waited for a lock.
    So every refusal is answered with the key's operation if there is one by now; the look before it saves the attempt.
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


def is_same(first: Operation, topic_id: int, kind: OperationKind, subscription: str | None = None) -> bool:
    """Whether the key's first operation is what is asked for now."""
    return (
        first.topic_id == topic_id
        and first.kind is kind
        and (subscription is None or first.parameters.get("subscription") == subscription)
    )
