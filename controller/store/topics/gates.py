"""Records of gates: which segments are held back from which subscription of standard consumers (ADR 0024).

A row states what the data plane must show. The operation runner writes the row after it has closed the gate, the gate keeper changes
the row to `ready` and `open`, and a seek changes it back to `closed`. A caller that marks segments as drained, or gates as ready, first
compares the origin of the subscription with the origin at the time of its calls, so that no answer from before a seek counts after it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sqlalchemy import Connection, text

from controller.domain.errors import Conflict, HeldUp
from controller.domain.operation import Operation
from controller.store.shards import Shards
from controller.store.topics import subscriptions, topics
from controller.store.topics.bucket_owners import SubscriptionKey
from controller.store.topics.held_topics import MAY_ACT

OPENING_HELD_SECONDS = 0.1
_NAMED_SEGMENTS = 5


class GateRecord(StrEnum):
    """State of the row of a gate. A gate is shut in every state except OPEN."""

    CLOSED = "closed"
    READY = "ready"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class ShutGates:
    """The gates of one subscription that are not open, on segments that are not pruned."""

    key: SubscriptionKey
    topic: str
    data_plane: str
    waits_for_ancestors: bool
    """False if registered consumers read the subscription now: its gates may be opened at once."""
    logs: Mapping[int, str]
    """Backing topics of the shut segments, by segment id."""
    shut_seconds: float
    """Seconds since the gate that was closed last was closed."""


@dataclass(frozen=True, slots=True)
class Gate:
    """Row of a gate with the log of its segment."""

    segment_id: int
    backing_topic: str
    state: GateRecord
    is_breached: bool
    """True if the barrier was found acknowledged or missing while the gate was closed."""
    is_opening: bool
    """True while a call that opens the gate may be in progress."""


_NOTE = """
    INSERT INTO cleave.gate (topic_id, subscription, segment_id)
    SELECT o.topic_id, g.subscription, g.segment_id
      FROM cleave.operation o
     CROSS JOIN unnest(CAST(:subscriptions AS text[]), CAST(:segment_ids AS bigint[])) AS g (subscription, segment_id)
      JOIN cleave.subscription u ON u.topic_id = o.topic_id AND u.name = g.subscription
     WHERE o.operation_id = :operation_id AND o.claim_term = :term AND o.finished_at IS NULL AND o.epoch IS NULL
        ON CONFLICT DO NOTHING
"""
_CLOSE = """
    INSERT INTO cleave.gate AS g (topic_id, subscription, segment_id)
    SELECT :topic_id, :subscription, unnest(CAST(:segment_ids AS bigint[]))
        ON CONFLICT (topic_id, subscription, segment_id) DO UPDATE
       SET state = 'closed', closed_at = clock_timestamp(), ready_at = NULL, opened_at = NULL, breached_at = NULL, last_error = NULL
     WHERE g.state <> 'closed'
"""
_CLOSE_FOR_ALL = """
    INSERT INTO cleave.gate (topic_id, subscription, segment_id)
    SELECT u.topic_id, u.name, unnest(CAST(:segment_ids AS bigint[]))
      FROM cleave.subscription u WHERE u.topic_id = :topic_id AND u.consumers = 'stock' AND u.state = 'live'
        ON CONFLICT DO NOTHING
"""
_SHUT = text(f"""
    SELECT g.topic_id, g.subscription, t.name, t.data_plane, u.consumers = 'stock' AS waits_for_ancestors,
           array_agg(g.segment_id ORDER BY g.segment_id) AS segment_ids,
           array_agg(s.backing_topic ORDER BY g.segment_id) AS backing_topics,
           CAST(extract(epoch FROM clock_timestamp() - max(g.closed_at)) AS float8) AS shut_seconds
      FROM cleave.gate g
      JOIN cleave.segment s ON s.topic_id = g.topic_id AND s.segment_id = g.segment_id AND s.pruned_epoch IS NULL
      JOIN cleave.subscription u ON u.topic_id = g.topic_id AND u.name = g.subscription AND u.state = 'live'
      JOIN cleave.topic t ON t.topic_id = g.topic_id AND t.state = 'live'
     WHERE g.state <> 'open' AND g.topic_id % :shard_count = ANY (:shards) AND t.data_plane = ANY (:planes) AND {MAY_ACT}
     GROUP BY g.topic_id, g.subscription, t.name, t.data_plane, u.consumers
     ORDER BY g.topic_id, g.subscription
""")  # noqa: S608 - constants only
_READY = """
    UPDATE cleave.gate
       SET state = 'ready', ready_at = coalesce(ready_at, clock_timestamp()),
           opening_until = greatest(opening_until, clock_timestamp() + make_interval(secs => :opening_seconds))
     WHERE topic_id = :topic_id AND subscription = :subscription AND segment_id = ANY (:segment_ids) AND state <> 'open'
 RETURNING segment_id
"""
_OPENED = """
    UPDATE cleave.gate
       SET state = 'open', opened_at = clock_timestamp(), opening_until = '-infinity', breached_at = NULL, last_error = NULL
     WHERE topic_id = :topic_id AND subscription = :subscription AND segment_id = :segment_id AND state = 'ready'
 RETURNING CAST(extract(epoch FROM opened_at - ready_at) AS float8) AS seconds
"""
_FAILED = """
    UPDATE cleave.gate SET last_error = :error
     WHERE topic_id = :topic_id AND subscription = :subscription AND segment_id = ANY (:segment_ids) AND state <> 'open'
       AND last_error IS DISTINCT FROM :error
"""
_BREACHED = """
    UPDATE cleave.gate
       SET breached_at = CASE WHEN :is_breached THEN coalesce(breached_at, clock_timestamp()) END
     WHERE topic_id = :topic_id AND subscription = :subscription AND segment_id = :segment_id AND state = 'closed'
       AND (breached_at IS NOT NULL) <> :is_breached
 RETURNING segment_id
"""
_REOPEN = """
    UPDATE cleave.gate SET state = 'ready', ready_at = clock_timestamp(), opened_at = NULL
     WHERE topic_id = :topic_id AND subscription = :subscription AND segment_id = ANY (:segment_ids) AND state = 'open'
"""
_CLOSED_LOGS = """
    SELECT s.backing_topic, g.subscription FROM cleave.gate g JOIN cleave.segment s USING (topic_id, segment_id)
     WHERE g.topic_id = :topic_id AND g.state = 'closed' AND s.pruned_epoch IS NULL
"""
_OPENING_SECONDS = """
    SELECT CAST(extract(epoch FROM max(opening_until) - clock_timestamp()) AS float8) AS seconds FROM cleave.gate
     WHERE topic_id = :topic_id AND subscription = :subscription AND opening_until > clock_timestamp()
"""
_GATES = """
    SELECT g.segment_id, s.backing_topic, g.state, g.breached_at IS NOT NULL AS is_breached,
           g.opening_until > clock_timestamp() AS is_opening
      FROM cleave.gate g JOIN cleave.segment s USING (topic_id, segment_id)
     WHERE g.topic_id = :topic_id AND g.subscription = :subscription AND s.pruned_epoch IS NULL
     ORDER BY g.segment_id
"""
_STOCK = """
    SELECT name FROM cleave.subscription
     WHERE topic_id = :topic_id AND consumers = 'stock' AND state = 'live' ORDER BY name
"""
_WITH_GATES = """
    SELECT DISTINCT topic_id FROM cleave.gate WHERE topic_id = ANY (:topic_ids) ORDER BY topic_id
"""
# Segments that descend, by the links of the layout, from sealed segments which the subscription reads.
_BEHIND = """
    WITH RECURSIVE unread AS (
        SELECT s.segment_id FROM cleave.segment s
         WHERE s.topic_id = :topic_id AND s.state = 'SEALED' AND s.pruned_epoch IS NULL AND s.sealed_epoch > :after_epoch
           AND (CAST(:since AS timestamptz) IS NULL OR s.sealed_at >= CAST(:since AS timestamptz))
    ), heir (segment_id) AS (
        SELECT l.child_id FROM unread r
          JOIN cleave.segment_parent l ON l.topic_id = :topic_id AND l.parent_id = r.segment_id
         UNION
        SELECT l.child_id FROM heir h
          JOIN cleave.segment_parent l ON l.topic_id = :topic_id AND l.parent_id = h.segment_id)
    SELECT s.segment_id, s.backing_topic,
           EXISTS (SELECT FROM cleave.gate g WHERE g.topic_id = s.topic_id AND g.segment_id = s.segment_id) AS has_barrier
      FROM heir h JOIN cleave.segment s ON s.topic_id = :topic_id AND s.segment_id = h.segment_id
     WHERE s.pruned_epoch IS NULL ORDER BY s.segment_id
"""
_FORGET = "DELETE FROM cleave.gate WHERE topic_id = :topic_id AND segment_id = ANY (:segment_ids)"


def stock_subscriptions(tx: Connection, topic_id: int) -> tuple[str, ...]:
    """Return the names of the topic's live subscriptions that standard consumers read."""
    return tuple(tx.execute(text(_STOCK), {"topic_id": topic_id}).scalars())


def topics_with_gates(tx: Connection, topic_ids: Collection[int]) -> list[int]:
    """Return the ids of the topics among `topic_ids` that have rows of gates, in any state, ascending."""
    return list(tx.execute(text(_WITH_GATES), {"topic_ids": list(topic_ids)}).scalars())


def note_closed(tx: Connection, operation: Operation, closed: Collection[tuple[str, int]]) -> None:
    """Record the gates in `closed`, each the name of a subscription and the id of a reserved child, that the runner of the operation has
    closed. Existing rows are kept, and subscriptions that do not exist are ignored.

    No row is written, and no error raised, if the runner has lost its claim, or after the commit: the gate may be open by then.
    """
    pairs = sorted(closed)
    tx.execute(
        text(_NOTE),
        {
            "operation_id": operation.operation_id,
            "term": operation.claim_term,
            "subscriptions": [name for name, _ in pairs],
            "segment_ids": [segment_id for _, segment_id in pairs],
        },
    )


def close(tx: Connection, key: SubscriptionKey, segment_ids: Collection[int]) -> None:
    """Record that the gates of the subscription on these segments are closed, whatever their state was. A gate without a row gets a row.
    The caller commits this before the data plane closes the gates.
    """
    if segment_ids:
        tx.execute(text(_CLOSE), {**key.parameters, "segment_ids": sorted(segment_ids)})


def close_for_all(tx: Connection, topic_id: int, segment_ids: Collection[int]) -> None:
    """Record that the gates of these segments, which no reshape created, are closed for each live subscription of standard consumers.

    Existing rows are kept, in their state.
    """
    if segment_ids:
        tx.execute(text(_CLOSE_FOR_ALL), {"topic_id": topic_id, "segment_ids": sorted(segment_ids)})


def shut(tx: Connection, shards: Shards, planes: Collection[str]) -> list[ShutGates]:
    """Return the shut gates on these shards and data planes, grouped by subscription. Topics and subscriptions that are not live, and
    topics that are held or have to be verified first, are absent.
    """
    rows = tx.execute(_SHUT, {**shards.parameters, "planes": sorted(planes)})
    return [
        ShutGates(
            SubscriptionKey(row.topic_id, row.subscription),
            row.name,
            row.data_plane,
            row.waits_for_ancestors,
            dict(zip(row.segment_ids, row.backing_topics, strict=True)),
            row.shut_seconds,
        )
        for row in rows
    ]


def make_ready(
    tx: Connection, key: SubscriptionKey, segment_ids: Collection[int], *, opening_seconds: float
) -> list[int]:
    """Set the gates of the subscription on these segments to `ready`, because every ancestor of the segments is
    drained, and record that a call which opens the gates may be in progress for the next `opening_seconds` or longer.
    Return the segment ids of these gates, ascending, including gates that were ready already. Open gates are not
    changed, and are absent from the result, like segments without a gate.

    The caller holds the lock of the subscription, and has checked that no seek has changed the origin of the
    subscription since the drains were read.
    """
    if not segment_ids:
        return []
    parameters = {**key.parameters, "segment_ids": sorted(segment_ids), "opening_seconds": opening_seconds}
    return sorted(tx.execute(text(_READY), parameters).scalars())


def note_opened(tx: Connection, key: SubscriptionKey, segment_id: int) -> float | None:
    """Record that the data plane has opened the gate. Return the seconds for which the gate was ready; None, without a record, if the gate
    is not `ready`, for example because a seek closed it again.
    """
    row = tx.execute(text(_OPENED), {**key.parameters, "segment_id": segment_id}).one_or_none()
    return None if row is None else float(row.seconds)


def note_failure(tx: Connection, key: SubscriptionKey, segment_ids: Collection[int], error: str) -> None:
    """Store the error on those gates of these segments that are not open."""
    tx.execute(text(_FAILED), {**key.parameters, "segment_ids": sorted(segment_ids), "error": error})


def note_breach(tx: Connection, key: SubscriptionKey, segment_id: int, *, is_breached: bool) -> bool:
    """Record that the barrier of a closed gate is acknowledged or missing, or, if `is_breached` is False, that it is in place and unread.

    Return True if the row changed. A gate that is not closed is ignored. The time of the first record of a breach is kept.
    """
    parameters = {**key.parameters, "segment_id": segment_id, "is_breached": is_breached}
    return tx.execute(text(_BREACHED), parameters).one_or_none() is not None


def reopen(tx: Connection, key: SubscriptionKey, segment_ids: Collection[int]) -> None:
    """Set open gates back to `ready`, so that the keeper opens them again. The caller holds the lock of the subscription."""
    tx.execute(text(_REOPEN), {**key.parameters, "segment_ids": sorted(segment_ids)})


def closed_logs(tx: Connection, topic_id: int) -> frozenset[tuple[str, str]]:
    """Return the gates of the topic in state `closed`, each as backing topic and name of the subscription. Ready gates, which are not open
    either, are absent.
    """
    return frozenset(
        (row.backing_topic, row.subscription)
        for row in tx.execute(text(_CLOSED_LOGS), {"topic_id": topic_id})
    )


def demand_no_opening(tx: Connection, key: SubscriptionKey) -> None:
    """Raise HeldUp while a call that opens a gate of the subscription may be in progress. The caller holds the lock of the subscription."""
    seconds = tx.execute(text(_OPENING_SECONDS), key.parameters).scalar_one()
    if seconds is not None:
        raise HeldUp(
            f"a gate of subscription {key.name} of {topics.name_of(tx, key.topic_id)} is being opened for up to {seconds:.1f} s; "
            "trying again",
            OPENING_HELD_SECONDS,
        )


def gates_of(tx: Connection, key: SubscriptionKey) -> list[Gate]:
    """Return the gates of the subscription in any state, on segments that are not pruned, ordered by segment."""
    return [
        Gate(row.segment_id, row.backing_topic, GateRecord(row.state), row.is_breached, row.is_opening)
        for row in tx.execute(text(_GATES), key.parameters)
    ]


@dataclass(frozen=True, slots=True)
class LogBehind:
    """Segment with a sealed ancestor that a subscription reads."""

    segment_id: int
    backing_topic: str
    has_barrier: bool
    """True if the segment has a gate of any subscription, so that its log begins with a barrier."""


def behind_unread(
    tx: Connection, topic_id: int, *, after_epoch: int, since: datetime | None = None
) -> list[LogBehind]:
    """Return the segments, by id, that descend from a sealed segment which a subscription reads: an ancestor that was
    sealed after `after_epoch`, and at or after `since` (an aware datetime; None: at any time). Pruned segments are
    absent.
    """
    parameters = {"topic_id": topic_id, "after_epoch": after_epoch, "since": since}
    return [LogBehind(*row) for row in tx.execute(text(_BEHIND), parameters)]


def behind_read_by(tx: Connection, key: SubscriptionKey, since: datetime | None = None) -> list[LogBehind]:
    """Return the segments, by id, that descend from a sealed segment which the subscription reads: an ancestor that was
    sealed after the creation epoch of the subscription, and at or after `since` (an aware datetime; None: at any
    time). Pruned segments are absent. Raises SubscriptionNotFound.
    """
    row = subscriptions.get_subscription(tx, key.topic_id, key.name)
    return behind_unread(tx, key.topic_id, after_epoch=row.created_epoch, since=since)


def demand_barriers(topic: str, subscription: str, logs: Sequence[LogBehind]) -> None:
    """Raise Conflict if one of the logs has no barrier before its messages: standard consumers would read the log too early. `topic` and
    `subscription` are names for the message.
    """
    lacking = [log.segment_id for log in logs if not log.has_barrier]
    if lacking:
        named = ", ".join(map(str, lacking[:_NAMED_SEGMENTS]))
        more = f" and {len(lacking) - _NAMED_SEGMENTS} more" if len(lacking) > _NAMED_SEGMENTS else ""
        raise Conflict(
            f"segment(s) {named}{more} of {topic} have messages and no barrier, so no gate can hold them back from standard "
            f"consumers of {subscription} until older segments are read; begin at latest, or at an instant after the last reshape"
        )


def forget(tx: Connection, topic_id: int, segment_ids: Collection[int]) -> None:
    """Delete the rows of the gates, of all subscriptions, on segments that were pruned or that an aborted operation had reserved."""
    tx.execute(text(_FORGET), {"topic_id": topic_id, "segment_ids": list(segment_ids)})
