"""Idempotency keys of changes over HTTP: of what request a key was, and what that was answered with.

A key belongs to who used it. It is freed when its request is refused or fails, and forgotten after a week.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, text

from controller.domain.errors import Conflict, Retryable

KEPT_DAYS = 7
TAKEN_OVER_AFTER_SECONDS = 300
"""Whoever has not answered by then is dead: the next one with the key begins anew. Longer than anybody waits for an operation."""

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
    RETURNING true
""")
_FOUND = text(
    "SELECT digest, answer FROM cleave.api_request WHERE subject = :subject AND idempotency_key = :key"
)
_FINISH = text("""
    UPDATE cleave.api_request SET answer = CAST(:answer AS jsonb) WHERE subject = :subject AND idempotency_key = :key
""")
_FREE = text("""
    DELETE FROM cleave.api_request WHERE subject = :subject AND idempotency_key = :key AND answer IS NULL
""")


def begin(tx: Connection, subject: str, key: str, digest: str) -> Mapping[str, Any] | None:
    """The answer of the first request with the key; None for the first itself, which answers with `finish` or `free`.

    Raises Conflict where the key was used for another request, Retryable while the first one is being answered.
    """
    named = {"subject": subject, "key": key}
    tx.execute(_FORGET, {"days": KEPT_DAYS})
    begun = tx.execute(_BEGIN, {**named, "digest": digest, "dead_seconds": TAKEN_OVER_AFTER_SECONDS})
    if begun.scalar_one_or_none():
        return None
    found = tx.execute(_FOUND, named).one_or_none()
    if found is not None and found.digest != digest:
        raise Conflict(f"idempotency key {key} was used for another request; take a fresh one")
    if found is None or found.answer is None:
        raise Retryable(
            f"the first request with idempotency key {key} is being answered; ask again in a moment"
        )
    answer: Mapping[str, Any] = found.answer
    return answer


def finish(tx: Connection, subject: str, key: str, answer: Mapping[str, Any]) -> None:
    """What the request was answered with."""
    tx.execute(_FINISH, {"subject": subject, "key": key, "answer": json.dumps(answer)})


def free(tx: Connection, subject: str, key: str) -> None:
    """The request was refused, or failed: the key may be used again."""
    tx.execute(_FREE, {"subject": subject, "key": key})
