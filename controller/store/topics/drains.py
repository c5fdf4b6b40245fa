"""Which sealed segments a subscription has read to the end.

The client that reads a segment to its end marks it. The garbage collector marks what it finds read, and takes the mark
back where another look finds something to read. Assignment and pruning read the marks. Segments sealed before the
subscription's first epoch count as drained with no row. Marking and un-marking take the topic lock, so that a segment
found drained while pruning stays so until the prune is committed.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, text

from controller.domain.errors import Conflict
from controller.store.topics import subscriptions, topics

_DRAINED = """
    SELECT s.segment_id
      FROM cleave.subscription u JOIN cleave.segment s USING (topic_id)
     WHERE u.topic_id = :topic_id AND u.name = :subscription AND s.state = 'SEALED' AND s.pruned_epoch IS NULL
       AND (s.sealed_epoch <= u.created_epoch
            OR EXISTS (SELECT FROM cleave.segment_drain d WHERE d.topic_id = s.topic_id
                          AND d.subscription = u.name AND d.segment_id = s.segment_id))
"""
_UNDRAINED_BY_ANYBODY = """
    SELECT s.segment_id, u.name AS subscription
      FROM cleave.segment s JOIN cleave.subscription u USING (topic_id)
     WHERE s.topic_id = :topic_id AND s.segment_id = ANY (:segment_ids) AND u.state = 'live'
       AND (s.state = 'ACTIVE' OR s.sealed_epoch > u.created_epoch)
       AND NOT EXISTS (SELECT FROM cleave.segment_drain d WHERE d.topic_id = s.topic_id
                          AND d.subscription = u.name AND d.segment_id = s.segment_id)
     ORDER BY s.segment_id, u.name
"""
_NOT_SEALED = """
    SELECT wanted.segment_id
      FROM unnest(CAST(:segment_ids AS bigint[])) AS wanted (segment_id)
      LEFT JOIN cleave.segment s ON s.topic_id = :topic_id AND s.segment_id = wanted.segment_id
     WHERE s.state IS DISTINCT FROM 'SEALED' ORDER BY 1
"""
_MARK = """
    INSERT INTO cleave.segment_drain (topic_id, subscription, segment_id)
    SELECT topic_id, :subscription, segment_id FROM cleave.segment
     WHERE topic_id = :topic_id AND segment_id = ANY (:segment_ids) AND pruned_epoch IS NULL
    ON CONFLICT DO NOTHING
"""
_UNMARK = """
    DELETE FROM cleave.segment_drain
     WHERE topic_id = :topic_id AND subscription = :subscription AND segment_id = ANY (:segment_ids)
"""

_UNMARK_OTHERS = """
    DELETE FROM cleave.segment_drain
     WHERE topic_id = :topic_id AND subscription = :subscription AND segment_id <> ALL (:kept)
"""
_TELL = "SELECT pg_notify('cleave_drains', CAST(:topic_id AS text))"


def drained(tx: Connection, topic_id: int, subscription: str) -> set[int]:
    """Sealed segments without anything left to read for the subscription. Pruned ones are left out."""
    parameters = {"topic_id": topic_id, "subscription": subscription}
    return set(tx.execute(text(_DRAINED), parameters).scalars())


def undrained_by_anybody(tx: Connection, topic_id: int, segment_ids: Collection[int]) -> dict[int, list[str]]:
    """Those of the segments that some live subscription still has to read, with the subscriptions' names."""
    waiting: dict[int, list[str]] = {}
    parameters = {"topic_id": topic_id, "segment_ids": list(segment_ids)}
    for row in tx.execute(text(_UNDRAINED_BY_ANYBODY), parameters):
        waiting.setdefault(row.segment_id, []).append(row.subscription)
    return waiting


def mark_drained(tx: Connection, topic_id: int, subscription: str, segment_ids: Collection[int]) -> None:
    """The subscription has read these SEALED segments to the end; marking twice changes nothing, nor does
    marking what is pruned.

    Raises Conflict for a segment that is not sealed, SubscriptionNotFound.
    """
    parameters = _locked(tx, topic_id, subscription, segment_ids)
    not_sealed = tx.execute(text(_NOT_SEALED), parameters).scalars().all()
    if not_sealed:
        raise Conflict(
            f"segment {not_sealed[0]} of topic {topics.name_of(tx, topic_id)} is not sealed, so it cannot be drained; read on in it"
        )
    tx.execute(text(_MARK), parameters)
    tell(tx, topic_id)


def undrain(tx: Connection, topic_id: int, subscription: str, segment_ids: Collection[int]) -> None:
    """Takes the marks back, after a seek into these segments. Raises SubscriptionNotFound."""
    parameters = _locked(tx, topic_id, subscription, segment_ids)
    tx.execute(text(_UNMARK), parameters)
    tell(tx, topic_id)


def replace_marks(
    tx: Connection, topic_id: int, subscription: str, *, drained: Collection[int], kept: Collection[int]
) -> None:
    """Marks these sealed segments and no others; what is marked of those that are `kept` stays. Raises SubscriptionNotFound."""
    parameters = _locked(tx, topic_id, subscription, drained)
    tx.execute(text(_UNMARK_OTHERS), {**parameters, "kept": sorted({*drained, *kept})})
    tx.execute(text(_MARK), parameters)
    tell(tx, topic_id)


def tell(tx: Connection, topic_id: int) -> None:
    """Wake up whoever hands out what subscriptions of the topic have to read, when the transaction has committed."""
    tx.execute(text(_TELL), {"topic_id": topic_id})


def _locked(
    tx: Connection, topic_id: int, subscription: str, segment_ids: Collection[int]
) -> dict[str, object]:
    topics.get_topic(tx, topic_id, lock=True)
    subscriptions.get_subscription(tx, topic_id, subscription)
    return {"topic_id": topic_id, "subscription": subscription, "segment_ids": list(segment_ids)}
