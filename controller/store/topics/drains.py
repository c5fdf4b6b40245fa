"""Drain marks: records which sealed segments a subscription has drained.

A client marks a segment that it has drained. The garbage collector marks segments that it finds drained, and removes the mark if a
later check finds unread messages. Assignment and pruning read the marks. Segments that were sealed by the creation epoch of the
subscription count as drained without a mark. Changes of marks take the topic lock, so that a prune does not lose a race with them.
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
_UNDRAINED_SUBSCRIPTIONS = """
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
_NOTIFY = "SELECT pg_notify('cleave_drains', CAST(:topic_id AS text))"


def drained(tx: Connection, topic_id: int, subscription: str) -> set[int]:
    """Return the ids of the sealed segments that the subscription has drained or that were sealed by its creation epoch, without
    pruned segments. Empty if the subscription does not exist.
    """
    parameters = {"topic_id": topic_id, "subscription": subscription}
    return set(tx.execute(text(_DRAINED), parameters).scalars())


def undrained_subscriptions(
    tx: Connection, topic_id: int, segment_ids: Collection[int]
) -> dict[int, list[str]]:
    """Return, by segment id, the sorted names of the live subscriptions (not those being deleted) that read the
    segment and have no drain mark on the segment. Every live subscription reads an ACTIVE segment. A subscription
    does not read a segment that was sealed by its creation epoch.

    A segment is absent if the segment is unknown, or if no subscription is left that has to read it. Pruned segments
    are treated like other sealed segments.
    """
    names_by_segment: dict[int, list[str]] = {}
    parameters = {"topic_id": topic_id, "segment_ids": list(segment_ids)}
    for row in tx.execute(text(_UNDRAINED_SUBSCRIPTIONS), parameters):
        names_by_segment.setdefault(row.segment_id, []).append(row.subscription)
    return names_by_segment


def mark_drained(tx: Connection, topic_id: int, subscription: str, segment_ids: Collection[int]) -> None:
    """Record that the subscription has drained these SEALED segments, delete the subscription's counts of deliveries
    in these segments, and notify the leader. Segments that are marked already or are pruned are ignored. Waits for
    the lock of the topic.

    Raises TopicNotFound; SubscriptionNotFound; and Conflict if one of the segments is ACTIVE or unknown, in which
    case no segment is marked.
    """
    parameters = _locked(tx, topic_id, subscription, segment_ids)
    not_sealed = tx.execute(text(_NOT_SEALED), parameters).scalars().all()
    if not_sealed:
        raise Conflict(
            f"segment {not_sealed[0]} of topic {topics.name_of(tx, topic_id)} is not sealed, so it cannot be drained; continue to read it"
        )
    tx.execute(text(_MARK), parameters)
    notify_leader(tx, topic_id)


def undrain(tx: Connection, topic_id: int, subscription: str, segment_ids: Collection[int]) -> None:
    """Remove the subscription's drain marks of these segments, which have unread messages again, and notify the
    leader. Segments without a mark are ignored. Waits for the lock of the topic. Raises TopicNotFound and
    SubscriptionNotFound.
    """
    parameters = _locked(tx, topic_id, subscription, segment_ids)
    tx.execute(text(_UNMARK), parameters)
    notify_leader(tx, topic_id)


def replace_marks(
    tx: Connection, topic_id: int, subscription: str, *, drained: Collection[int], kept: Collection[int]
) -> None:
    """Replace the drain marks of the subscription: mark the segments in `drained`, keep the marks that segments in
    `kept` have, remove all other marks, and notify the leader. The subscription's counts of deliveries in the newly
    marked segments are deleted.

    Pruned and unknown segments are not marked. The function does not check that the segments are SEALED. Waits for
    the lock of the topic. Raises TopicNotFound and SubscriptionNotFound.
    """
    parameters = _locked(tx, topic_id, subscription, drained)
    tx.execute(text(_UNMARK_OTHERS), {**parameters, "kept": sorted({*drained, *kept})})
    tx.execute(text(_MARK), parameters)
    notify_leader(tx, topic_id)


def notify_leader(tx: Connection, topic_id: int) -> None:
    """Notify the leader of the topic, when the transaction has committed, that readable segments may have changed."""
    tx.execute(text(_NOTIFY), {"topic_id": topic_id})


def _locked(
    tx: Connection, topic_id: int, subscription: str, segment_ids: Collection[int]
) -> dict[str, object]:
    """Lock the topic row, and return the given values as parameters of statements, by name: `topic_id`, `subscription` (its name) and
    `segment_ids` (a list). Raises TopicNotFound, and SubscriptionNotFound if the topic has no such subscription, live or being deleted.
    """
    topics.get_topic(tx, topic_id, lock=True)
    subscriptions.get_subscription(tx, topic_id, subscription)
    return {"topic_id": topic_id, "subscription": subscription, "segment_ids": list(segment_ids)}
