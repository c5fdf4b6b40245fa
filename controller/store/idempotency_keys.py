"""Idempotency keys of changes over HTTP: the request that used each key, and the answer to that request.

A key belongs to the subject that used it. The key is freed if its request is refused or fails, and deleted after a week.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from controller.domain.errors import Conflict, Retryable

KEPT_DAYS = 7
TAKEN_OVER_AFTER_SECONDS = 300
"""Seconds after which a request without an answer counts as lost, and the next request with the key is performed.
Longer than the longest wait for an operation.
"""

_FORGET = text("""
    DELETE FROM cleave.api_request WHERE (subject, idempotency_key) IN (
        SELECT subject, idempotency_key FROM cleave.api_request
         WHERE asked_at < clock_timestamp() - make_interval(days => :days) ORDER BY asked_at LIMIT 100)
""")
_BEGIN = text("""
    INSERT INTO cleave.api_request AS r (subject, idempotency_key, digest) VALUES (:subject, :key, :digest)
    ON CONFLICT (subject, idempotency_key) DO UPDATE SET asked_at = clock_timestamp()
     WHERE r.digest = excluded.digest AND r.answer IS NULL
       AND r.asked_at < clock_timestamp() - make_interval(secs => :dead_seconds)
    RETURNING asked_at
""")
_FIRST = text(
    "SELECT digest, answer FROM cleave.api_request WHERE subject = :subject AND idempotency_key = :key"
)
_FINISH = text("""
    UPDATE cleave.api_request SET answer = CAST(:answer AS jsonb)
     WHERE subject = :subject AND idempotency_key = :key AND asked_at = :asked_at
""")
_FREE = text("""
    DELETE FROM cleave.api_request
     WHERE subject = :subject AND idempotency_key = :key AND asked_at = :asked_at AND answer IS NULL
""")


@dataclass(frozen=True, slots=True)
class Reservation:
    """A key that is reserved for one request. `asked_at` distinguishes the reservation from later ones of the key."""

    subject: str
    key: str
    asked_at: datetime


def begin(tx: Connection, subject: str, key: str, digest: str) -> Reservation | Mapping[str, Any]:
    """Reserve the key for a request, or return the stored answer to the earlier request with the key.

    After a reservation the caller commits the transaction, performs the request, and then calls `finish` or `free`. A
    key is reserved if it is unused, or if it was reserved with the same digest more than `TAKEN_OVER_AFTER_SECONDS`
    ago and has no answer. Concurrent calls with the same key wait for each other's transactions.

    `subject` is the subject of the caller's token; each subject has keys of its own. `digest` identifies the content
    of the request. Also deletes up to 100 keys, of any subjects, that are older than `KEPT_DAYS`. Raises Conflict if
    the key was used with another digest, and Retryable if the key is reserved for another request that has no answer
    yet.
    """
    parameters = {"subject": subject, "key": key}
    tx.execute(_FORGET, {"days": KEPT_DAYS})
    reserved = tx.execute(_BEGIN, {**parameters, "digest": digest, "dead_seconds": TAKEN_OVER_AFTER_SECONDS})
    asked_at = reserved.scalar_one_or_none()
    if asked_at is not None:
        return Reservation(subject, key, asked_at)
    row = tx.execute(_FIRST, parameters).one_or_none()
    if row is not None and row.digest != digest:
        raise Conflict(f"idempotency key {key} was used for another request; take a fresh key")
    if row is None or row.answer is None:
        raise Retryable(f"the first request with idempotency key {key} is being handled; retry in a moment")
    answer: Mapping[str, Any] = row.answer
    return answer


def finish(tx: Connection, reservation: Reservation, answer: Mapping[str, Any]) -> None:
    """Store the answer to the request that reserved the key, so that a repeated request gets the same answer.

    Does nothing if the reservation has ended: the key was freed, taken over by another request, or deleted.
    """
    tx.execute(_FINISH, {**asdict(reservation), "answer": json.dumps(answer)})


def free(tx: Connection, reservation: Reservation) -> None:
    """Free the key after its request was refused or failed, so that the key may be used again.

    Does nothing if the request has an answer, or if the reservation has ended.
    """
    tx.execute(_FREE, asdict(reservation))
