"""Request keys: a key is used once, and a repeated request gets the operation of the first, even if both run concurrently.

Intents about a whole topic use `once`. Reshapes, many of which are written in one statement, look up their keys with the topic
and use `repeat`. A constraint of the table `operation` keeps the keys unique. This module returns the operation of the first
request if that constraint, or another effect of the first request, makes the repeated request fail.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from textwrap import shorten

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from controller.domain.errors import CleaveError, Conflict
from controller.domain.operation import Operation, OperationKind
from controller.domain.policy import PolicyOverride
from controller.store.journal.operations import Request, find_by_request_key

MOST_CHARACTERS = 200
"""Maximum number of characters with which a message describes what one of two requests wants."""


@dataclass(frozen=True, slots=True)
class Intent:
    """The operation of a request. `repeated` is True if an earlier request with the same key wrote the operation."""

    operation: Operation
    repeated: bool


def once(
    tx: Connection,
    request: Request,
    write_intent: Callable[[], Operation],
    topic: int | str,
    kind: OperationKind,
    subscription: str | None = None,
    /,
    **wanted: object,
) -> Intent:
    """Return the operation of the request key. If the key is unused, call `write_intent`, which writes the operation,
    in a nested transaction, and return its operation with `repeated` False. Otherwise return the existing operation
    with `repeated` True.

    An error of `write_intent` may be an effect of the first request, which was committed while this request waited
    for a lock. So after an IntegrityError or CleaveError, the nested transaction is rolled back, and the operation
    that has the key by then is returned; if no operation has the key, the error is raised.

    Raises Conflict if the existing operation has another topic (its id or its name), kind or subscription (None:
    any), or other values of the parameters `wanted`, as `demand_same` compares them; and Unsupported if a newer
    version wrote the existing operation with a kind that is unknown here.
    """
    first = find_by_request_key(tx, request.request_key)
    if first is None:
        try:
            with tx.begin_nested():
                return Intent(write_intent(), repeated=False)
        except (IntegrityError, CleaveError):
            first = find_by_request_key(tx, request.request_key)
            if first is None:
                raise
    return demand_same(
        repeat(first, lambda operation: is_same(operation, topic, kind, subscription)), **wanted
    )


def repeated_intent(
    tx: Connection,
    request_key: str,
    topic: str,
    kinds: Collection[OperationKind],
    subscription: str | None = None,
) -> Intent | None:
    """Return the operation of the earlier request with this key as an intent with `repeated` True, even if the topic
    of the operation no longer exists. None if the key is unused.

    Raises Conflict if the key was used for another topic name, another subscription (`subscription` None: any) or a
    kind of operation that `kinds` does not contain; and Unsupported if a newer version wrote the operation with a
    kind that is unknown here.
    """
    first = find_by_request_key(tx, request_key)
    if first is None:
        return None
    return repeat(
        first, lambda operation: any(is_same(operation, topic, kind, subscription) for kind in kinds)
    )


def repeat(first: Operation, is_same: Callable[[Operation], bool]) -> Intent:
    """Return `first`, the operation that an earlier request with the key wrote, as an intent with `repeated` True. Raises Conflict if
    `is_same` returns False for it.
    """
    if not is_same(first):
        raise used_otherwise(first)
    return Intent(first, repeated=True)


def demand_same(intent: Intent, **wanted: object) -> Intent:
    """Return `intent`. If the intent is repeated, raises Conflict for each parameter in `wanted`, those of the repeated request as JSON
    values, that the first request had with another value. A parameter that the operation does not store, because an older version wrote
    it, is not compared.
    """
    first = intent.operation
    did = {
        "data_plane": first.data_plane,
        "segments": len(first.children),
        "segment_ids": list(first.parent_ids),
        **first.parameters,
    }
    if isinstance(policy := did.get("policy"), Mapping):
        # PostgreSQL returns a float of 1e16 or more as an integer, which may differ from the float.
        did["policy"] = PolicyOverride.from_document(policy).to_document()
    different = [name for name, value in wanted.items() if did.get(name, value) != value]
    if intent.repeated and different:
        raise used_otherwise(first, did=_described(did, different), wanted=_described(wanted, different))
    return intent


def _described(parameters: Mapping[str, object], names: Iterable[str]) -> str:
    """Return the named parameters with their values, for messages."""
    return ", ".join(f"{name.replace('_', ' ')} {parameters[name]}" for name in names)


def used_otherwise(first: Operation, *, did: str = "", wanted: str = "") -> Conflict:
    """Return the error for a request whose key an earlier request used for the operation `first`. `did` and `wanted` say what differs:
    what the first operation does, and what the refused request wants, each shortened to `MOST_CHARACTERS`.
    """
    did, wanted = shorten(did, MOST_CHARACTERS), shorten(wanted, MOST_CHARACTERS)
    return Conflict(
        f"request key {first.request_key} was used for {first.kind} of {first.topic_name} "
        f"(operation {first.operation_id}{did and f': {did}'}){wanted and f', not for {wanted}'}; take a fresh key"
    )


def is_same(first: Operation, topic: int | str, kind: OperationKind, subscription: str | None = None) -> bool:
    """Return True if the first operation of the request key has this topic (its id or its name), kind and subscription
    (None: any), so that the request is a repetition.
    """
    return (
        topic == (first.topic_id if isinstance(topic, int) else first.topic_name)
        and first.kind is kind
        and (subscription is None or first.parameters.get("subscription") == subscription)
    )
