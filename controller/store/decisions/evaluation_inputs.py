"""Reads evaluation inputs (situations) of many topics.

The number of statements is the same for any number of topics. They read only inputs of decisions: ACTIVE segments with their load, the
policies of all levels, consumers, and live reshapes. Whole layouts are read only for topics with `strict_pulsar`, because the merge
depths of Pulsar need the ancestors. The present time is that of the database. The inputs are consistent for topics whose `evaluation`
row the caller has locked (see `evaluations.lock_due`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import Any, TypedDict

from sqlalchemy import Connection, Row, text
from sqlalchemy.exc import DBAPIError

from controller.clock import to_ms
from controller.domain.approval_rule import requires_approvals
from controller.domain.decision import is_for_consumers
from controller.domain.entry_buckets import MOST_UNITS
from controller.domain.errors import Retryable
from controller.domain.evaluation_input import Capabilities, EvaluationInput, History, LiveReshape
from controller.domain.hash_range import HashRange
from controller.domain.key_sketch import share_within
from controller.domain.layout import SegmentLayout
from controller.domain.load_record import METRICS, LoadRecord, LoadStats
from controller.domain.policy import AutoScalePolicy
from controller.domain.reshape import ReshapeKind
from controller.domain.segment import Segment
from controller.store import approvals
from controller.store.postgres.prepared_statements import Prepared
from controller.store.postgres.rows_by_topic import RowsByTopic, rows_by_topic
from controller.store.topics.held_topics import MAY_ACT
from controller.store.topics.layouts import load_layouts
from controller.store.topics.policies import read_policy

_TOPICS = Prepared(
    "situation_topics",
    f"""
    SELECT t.topic_id, t.epoch, t.next_segment_id, t.data_plane, t.last_split_at, t.last_merge_at, t.last_rebucket_at,
           t.last_consumer_act_at,
           CAST(c.policy AS text) AS cluster, CAST(n.policy AS text) AS namespace, CAST(t.policy AS text) AS topic,
           m.paused_reason IS NOT NULL AS foreign_controller, NOT ({MAY_ACT}) AS is_held, e.consumers_changed_at, clock_timestamp() AS now,
           e.reconnections_left, e.reconnections_at, r.reconnections_left AS cluster_left, r.reconnections_at AS cluster_at,
           EXISTS (SELECT FROM cleave.operation o WHERE o.topic_id = t.topic_id AND o.kept_until > clock_timestamp()) AS keeps
      FROM cleave.topic t
      LEFT JOIN cleave.evaluation e ON e.topic_id = t.topic_id
      LEFT JOIN cleave.namespace_policy n ON n.namespace = t.namespace
      LEFT JOIN cleave.mirror m ON m.topic_id = t.topic_id
     CROSS JOIN cleave.cluster_policy c
     CROSS JOIN cleave.cluster_reconnections r
     WHERE t.topic_id = ANY (:topic_ids) AND t.state = 'live'
""",  # noqa: S608 - constants only
    {"topic_ids": "bigint[]"},
)
_SEGMENTS = Prepared(
    "situation_segments",
    """
    SELECT s.topic_id, s.segment_id, s.range_start, s.range_end, s.bucket_splits, s.merge_depth,
           s.created_epoch, s.created_at,
           ARRAY(SELECT p.parent_id FROM cleave.segment_parent p
                  WHERE p.topic_id = s.topic_id AND p.child_id = s.segment_id ORDER BY p.ordinal) AS parent_ids,
           l.msg_rate_in, l.byte_rate_in, l.msg_rate_out, l.byte_rate_out, l.modified_at, l.cold_since,
           coalesce(l.silent_since, o.observed_at, l.modified_at) AS observed_at
      FROM cleave.segment s
      LEFT JOIN cleave.segment_load l ON l.topic_id = s.topic_id AND l.segment_id = s.segment_id
      LEFT JOIN cleave.load_source o ON o.source = l.source
     WHERE s.topic_id = ANY (:topic_ids) AND s.state = 'ACTIVE'
""",
    {"topic_ids": "bigint[]"},
)
# If a subscription has registered consumers, their number counts. Otherwise, and for subscriptions that standard consumers read, the
# number that brokers list counts, except for a queue. Consumers that brokers list do not know entry buckets, so each of them needs its own
# segment.
_CONSUMERS = Prepared(
    "situation_consumers",
    """
    SELECT u.topic_id, u.name, coalesce(nullif(count(c.name), 0), max(o.consumers), 0) AS consumers,
           count(c.name) > 0 OR coalesce(max(o.consumers), 0) = 0 AS can_share
      FROM cleave.subscription u
      LEFT JOIN cleave.consumer c ON c.topic_id = u.topic_id AND c.subscription = u.name AND u.consumers = 'cleave'
      LEFT JOIN cleave.observed_subscription o
             ON o.topic_id = u.topic_id AND o.name = u.name AND o.subscription_type <> 'Shared'
     WHERE u.topic_id = ANY (:topic_ids) AND u.kind = 'STREAM' AND u.state = 'live'
     GROUP BY u.topic_id, u.name
     UNION ALL
    SELECT o.topic_id, o.name, o.consumers, false
      FROM cleave.observed_subscription o
     WHERE o.topic_id = ANY (:topic_ids) AND o.subscription_type <> 'Shared'
       AND NOT EXISTS (SELECT FROM cleave.subscription u WHERE u.topic_id = o.topic_id AND u.name = o.name)
     ORDER BY topic_id, name
""",
    {"topic_ids": "bigint[]"},
)
_MEMORIES = Prepared(
    "situation_memories",
    """
    SELECT m.topic_id, m.segment_id, m.rates, m.strikes
      FROM cleave.load_memory m
     WHERE m.topic_id = ANY (:topic_ids)
       AND (SELECT s.state FROM cleave.segment s
             WHERE s.topic_id = m.topic_id AND s.segment_id = m.segment_id) = 'ACTIVE'
""",
    {"topic_ids": "bigint[]"},
)
# Expected load of a segment without a load record, from its nearest ancestors with load records, in proportion to its
# part of their key histograms, or of their widths. The range of a row is the part of the segment that came from the
# ancestor's child on the way to the segment, because the rest came from other segments, which may have load records of
# their own. So a burst need not wait for a load record after each reshape. Without any load record of the topic the
# search would visit all ancestors, which takes 0.1 s after some hundred reshapes.
_EXPECTED = Prepared(
    "situation_expected",
    """
    WITH RECURSIVE above AS (
        SELECT s.topic_id, s.segment_id, s.range_end - s.range_start + 1 AS width, s.range_start, s.range_end, p.parent_id
          FROM cleave.segment s
          JOIN cleave.segment_parent p ON p.topic_id = s.topic_id AND p.child_id = s.segment_id
         WHERE s.topic_id = ANY (:topic_ids) AND s.state = 'ACTIVE'
           AND EXISTS (SELECT FROM cleave.segment_load l WHERE l.topic_id = s.topic_id)
           AND NOT EXISTS (SELECT FROM cleave.segment_load l
                            WHERE l.topic_id = s.topic_id AND l.segment_id = s.segment_id)
         UNION
        SELECT a.topic_id, a.segment_id, a.width, greatest(a.range_start, q.range_start), least(a.range_end, q.range_end), p.parent_id
          FROM above a
          JOIN cleave.segment q ON q.topic_id = a.topic_id AND q.segment_id = a.parent_id
          JOIN cleave.segment_parent p ON p.topic_id = q.topic_id AND p.child_id = q.segment_id
         WHERE q.range_start <= a.range_end AND a.range_start <= q.range_end
           AND NOT EXISTS (SELECT FROM cleave.segment_load l
                            WHERE l.topic_id = a.topic_id AND l.segment_id = a.parent_id)
    )
    SELECT a.topic_id, a.segment_id, l.msg_rate_in, l.byte_rate_in, l.msg_rate_out, l.byte_rate_out, l.modified_at,
           coalesce(l.silent_since, o.observed_at, l.modified_at) AS observed_at,
           greatest(0, least(a.range_end, q.range_end) - greatest(a.range_start, q.range_start) + 1)
               / (q.range_end - q.range_start + 1)::float8 AS share,
           k.bins, a.range_start, a.range_end, q.range_start AS parent_start, q.range_end AS parent_end,
           least(a.range_end, q.range_end) - greatest(a.range_start, q.range_start) + 1 AS covered, a.width
      FROM above a
      JOIN cleave.segment q ON q.topic_id = a.topic_id AND q.segment_id = a.parent_id
      JOIN cleave.segment_load l ON l.topic_id = a.topic_id AND l.segment_id = a.parent_id
      LEFT JOIN cleave.load_source o ON o.source = l.source
      LEFT JOIN cleave.segment_sketch k ON k.topic_id = a.topic_id AND k.segment_id = a.parent_id
                                       AND k.fresh_until > clock_timestamp()
     WHERE q.range_start <= a.range_end AND a.range_start <= q.range_end
     ORDER BY a.topic_id, a.segment_id, a.parent_id
""",
    {"topic_ids": "bigint[]"},
)
_SKETCHES = Prepared(
    "situation_sketches",
    """
    SELECT k.topic_id, k.segment_id, k.bins
      FROM cleave.segment_sketch k
     WHERE k.topic_id = ANY (:topic_ids) AND k.fresh_until > clock_timestamp()
       AND (SELECT s.state FROM cleave.segment s
             WHERE s.topic_id = k.topic_id AND s.segment_id = k.segment_id) = 'ACTIVE'
""",
    {"topic_ids": "bigint[]"},
)
# Each consumer of a queue reads all segments; the consumers of any other subscription divide the segments.
_QUEUES = Prepared(
    "situation_queues",
    """
    SELECT o.topic_id, sum(o.consumers) AS consumers FROM cleave.observed_subscription o
     WHERE o.topic_id = ANY (:topic_ids) AND o.subscription_type = 'Shared' GROUP BY o.topic_id
""",
    {"topic_ids": "bigint[]"},
)
# Largest number of producers of any segment, because producers connect to a created segment only later. Producers that report key counts
# are used for five minutes, and only if no broker reports producers, because that number is a claim of the producers themselves.
_PRODUCERS = Prepared(
    "situation_producers",
    """
    SELECT p.topic_id, max(coalesce(p.connected, CASE WHEN p.counted_at > clock_timestamp() - interval '5 minutes' THEN p.counting END))
               AS producers
      FROM cleave.segment_producers p
     WHERE p.topic_id = ANY (:topic_ids)
       AND (SELECT s.state FROM cleave.segment s
             WHERE s.topic_id = p.topic_id AND s.segment_id = p.segment_id) = 'ACTIVE'
     GROUP BY p.topic_id
""",
    {"topic_ids": "bigint[]"},
)
# A committed reshape is already part of the layout and of the cooldowns. An aborting reshape still holds its parents.
_IN_FLIGHT = Prepared(
    "situation_in_flight",
    """
    SELECT o.topic_id, o.operation_id, o.kind, o.intended_at,
           ARRAY(SELECT p.segment_id FROM cleave.operation_parent p
                  WHERE p.operation_id = o.operation_id ORDER BY p.ordinal) AS parent_ids,
           CASE WHEN jsonb_typeof(o.parameters -> 'child_ranges') = 'array' THEN jsonb_array_length(o.parameters -> 'child_ranges')
                ELSE (SELECT count(*) FROM cleave.operation_child c WHERE c.operation_id = o.operation_id)
           END AS child_count,
           (SELECT coalesce(sum(least(cardinality(c.bucket_splits) + 1, :most_units)), 0) FROM cleave.operation_child c
             WHERE c.operation_id = o.operation_id) AS child_places,
           o.reason
      FROM cleave.operation o
     WHERE o.topic_id = ANY (:topic_ids) AND o.finished_at IS NULL AND o.state <> 'committed'
       AND o.kind = ANY (:kinds)
     ORDER BY o.operation_id
""",
    {"topic_ids": "bigint[]", "kinds": "text[]", "most_units": "integer"},
)
# A split with kept_until keeps the ranges of its children: each segment within such a range is kept, and a segment that a person has
# joined across a boundary is not. If several splits apply, the one that ends last counts.
_KEPT = Prepared(
    "situation_kept",
    """
    SELECT s.topic_id, s.segment_id, kept.intended_at, kept.kept_until
      FROM cleave.segment s
     CROSS JOIN LATERAL (
           SELECT o.intended_at, o.kept_until FROM cleave.operation o
            WHERE o.topic_id = s.topic_id AND o.kept_until > clock_timestamp() AND o.committed_at IS NOT NULL
              AND (SELECT count(*)
                     FROM cleave.operation_parent p
                     JOIN cleave.segment_parent l ON l.topic_id = s.topic_id AND l.parent_id = p.segment_id
                     JOIN cleave.segment c ON c.topic_id = s.topic_id AND c.segment_id = l.child_id
                    WHERE p.operation_id = o.operation_id
                      AND c.range_start <= s.range_start AND s.range_end <= c.range_end) > 0
            ORDER BY o.kept_until DESC LIMIT 1) kept
     WHERE s.topic_id = ANY (:topic_ids) AND s.state = 'ACTIVE'
""",
    {"topic_ids": "bigint[]"},
)
_RESHAPES: Mapping[str, object] = {
    "kinds": [kind.value for kind in ReshapeKind],
    "most_units": MOST_UNITS,
}
_LOCK = Prepared(
    "lock_free_topics",
    """
    SELECT topic_id, name, data_plane, epoch, next_segment_id FROM cleave.topic
     WHERE topic_id = ANY (:topic_ids) AND state = 'live' ORDER BY topic_id FOR NO KEY UPDATE SKIP LOCKED
""",
    {"topic_ids": "bigint[]"},
)
_ELSEWHERE = text("""
    SELECT topic_id, data_plane FROM cleave.topic
     WHERE topic_id = ANY (:topic_ids) AND state = 'live' AND data_plane <> ALL (:planes)
""")


def load_evaluation_inputs(
    tx: Connection,
    topic_ids: Collection[int],
    capabilities: Mapping[str, Capabilities],
    *,
    instead: Mapping[int, AutoScalePolicy] | None = None,
) -> dict[int, EvaluationInput]:
    """Return the evaluation inputs of the live topics, by topic id, at the present time of the database. Topics that
    are not live, and topics whose data plane is not a key of `capabilities`, are absent.

    `capabilities` are by name of the data plane. `instead` contains, by topic id, policies that replace the policies in
    force; a stored policy that cannot be read is an `UnreadablePolicy`. The layout has only ACTIVE segments unless the
    policy has `strict_pulsar`. A segment without a load record gets an expected load if the profile is `adaptive` and
    the load of the segment's ancestors determines the load. `approvals` are read only for policies that require
    approvals. `recent_loads`, `strikes`, `clients`, `producers`, `reconnections_left` and `cluster_reconnections_left`
    are read only for the profile `adaptive`, and `sketches` only if the data plane can also split at any hash.

    `stream_consumers` contains the registered consumers of a stream subscription. If a stream subscription has no
    registered consumers or is read by standard clients, the number that brokers list counts instead. Subscriptions that
    only brokers know are included, except queues. A subscription whose number of consumers above 0 comes from brokers
    turns `shared_buckets` off for its topic.

    The inputs of a topic are consistent only if the caller has locked the topic's `evaluation` row
    (`evaluations.lock_due`). An error in the rows of one topic fails the whole call; `load_readable` separates such
    topics.
    """
    parameters: dict[str, object] = {"topic_ids": list(topic_ids)}
    topics = [row for row in _TOPICS.execute(tx, parameters) if row.data_plane in capabilities]
    parameters["topic_ids"] = [row.topic_id for row in topics]
    segments = _grouped(tx, parameters, _SEGMENTS)
    consumers = _grouped(tx, parameters, _CONSUMERS)
    in_flight = _grouped(tx, {**parameters, **_RESHAPES}, _IN_FLIGHT)
    kept_parameters: dict[str, object] = {"topic_ids": [row.topic_id for row in topics if row.keeps]}
    kept = _grouped(tx, kept_parameters, _KEPT)
    policies = {row.topic_id: read_policy(row.cluster, row.namespace, row.topic) for row in topics}
    policies |= instead or {}
    adaptive_parameters: dict[str, object] = {
        "topic_ids": [t for t, p in policies.items() if p.profile == "adaptive"]
    }
    memories = _grouped(tx, adaptive_parameters, _MEMORIES)
    queues = _grouped(tx, adaptive_parameters, _QUEUES)
    producers = _grouped(tx, adaptive_parameters, _PRODUCERS)
    expected = _grouped(tx, adaptive_parameters, _EXPECTED)
    midpoint_only = {row.topic_id for row in topics if capabilities[row.data_plane].midpoint_only}
    sketch_parameters: dict[str, object] = {
        "topic_ids": [t for t, p in policies.items() if p.profile == "adaptive" and t not in midpoint_only]
    }
    sketches = _grouped(tx, sketch_parameters, _SKETCHES)
    strict_topic_ids = [topic_id for topic_id, policy in policies.items() if policy.strict_pulsar]
    layouts = load_layouts(tx, strict_topic_ids) if strict_topic_ids else {}
    approving_topic_ids = [topic_id for topic_id, policy in policies.items() if requires_approvals(policy)]
    approvals_by_topic = approvals.last_words(tx, approving_topic_ids) if approving_topic_ids else {}
    return {
        row.topic_id: EvaluationInput(
            layout=layouts.get(row.topic_id) or _layout(row, segments[row.topic_id]),
            loads={s.segment_id: _load(s) for s in segments[row.topic_id] if s.modified_at is not None}
            | _expected(expected[row.topic_id]),
            stream_consumers={c.name: c.consumers for c in consumers[row.topic_id]},
            recent_loads={m.segment_id: _ticks(m.rates) for m in memories[row.topic_id]},
            policy=policies[row.topic_id],
            history=_history(row),
            in_flight=tuple(_reshape(o) for o in in_flight[row.topic_id]),
            capabilities=_with(capabilities[row.data_plane], consumers[row.topic_id]),
            foreign_controller=row.foreign_controller,
            is_held=row.is_held,
            consumers_changed_at=_ms(row.consumers_changed_at),
            sketches={k.segment_id: tuple(k.bins) for k in sketches[row.topic_id]},
            strikes={m.segment_id: m.strikes for m in memories[row.topic_id] if m.strikes},
            kept={k.segment_id: (to_ms(k.intended_at), to_ms(k.kept_until)) for k in kept[row.topic_id]},
            approvals=approvals_by_topic.get(row.topic_id, ()),
            **_clients(row, policies[row.topic_id], segments, consumers, queues, producers),
            now=to_ms(row.now),
        )
        for row in topics
    }


def load_readable(
    tx: Connection,
    topic_ids: Collection[int],
    capabilities: Mapping[str, Capabilities],
    *,
    instead: Mapping[int, AutoScalePolicy] | None = None,
) -> tuple[dict[int, EvaluationInput], dict[int, Exception]]:
    """Return the evaluation inputs of the topics that can be read, and the errors of the topics that cannot be read,
    both by topic id. The parameters and the inputs are those of `load_evaluation_inputs`. A topic that
    `load_evaluation_inputs` skips is in neither result.

    After an error, the topics are read again in halves until only the topics with faulty rows are left. Errors that
    concern no single topic are raised: DBAPIError, after which the transaction cannot be used, and Retryable errors.
    """
    try:
        return load_evaluation_inputs(tx, topic_ids, capabilities, instead=instead), {}
    except (DBAPIError, Retryable):
        raise
    except Exception as error:  # noqa: BLE001 - the caller gets the error and reports it
        if len(topic_ids) == 1:
            return {}, dict.fromkeys(topic_ids, error)
    ordered = sorted(topic_ids)
    middle = len(ordered) // 2
    results = [
        load_readable(tx, half, capabilities, instead=instead)
        for half in (ordered[:middle], ordered[middle:])
    ]
    return results[0][0] | results[1][0], results[0][1] | results[1][1]


@dataclass(frozen=True, slots=True)
class LockedTopic:
    """A topic whose row this transaction has locked, and its layout epoch and next segment id at that time."""

    topic_id: int
    topic: str
    data_plane: str
    epoch: int
    next_segment_id: int

    def is_unmoved(self, layout: SegmentLayout) -> bool:
        """Return True if the topic row has the epoch and the next segment id of `layout`: since `layout` was read, no layout change was
        committed, and no intent reserved segment ids. An intent that reserves none (a prune, a seek) is not noticed.
        """
        return (self.epoch, self.next_segment_id) == (layout.epoch, layout.next_segment_id)


def lock_free_topics(tx: Connection, topic_ids: Collection[int]) -> dict[int, LockedTopic]:
    """Lock the live topics that no other transaction has locked, until the end of the transaction, and return them by id. Other topics
    are skipped.

    The function never waits, so it may be called while `evaluation` rows are locked, against the usual order of locks (topic before
    evaluation). Later intents of the transaction already have the lock.
    """
    rows = _LOCK.execute(tx, {"topic_ids": sorted(topic_ids)})
    return {
        row.topic_id: LockedTopic(row.topic_id, row.name, row.data_plane, row.epoch, row.next_segment_id)
        for row in rows
    }


def live_elsewhere(tx: Connection, topic_ids: Collection[int], planes: Collection[str]) -> dict[int, str]:
    """Return the data planes, by topic, of the live topics whose data plane is not one of `planes`."""
    rows = tx.execute(_ELSEWHERE, {"topic_ids": list(topic_ids), "planes": list(planes)})
    return {row.topic_id: row.data_plane for row in rows}


def _with(capabilities: Capabilities, consumers: Iterable[Row[Any]]) -> Capabilities:
    """Return the capabilities for a topic with these rows of `_CONSUMERS`: `shared_buckets` is False if the consumers
    of any row cannot share buckets (`can_share`). Otherwise, and without rows, the capabilities are unchanged.
    """
    if capabilities.shared_buckets and not all(row.can_share for row in consumers):
        return replace(capabilities, shared_buckets=False)
    return capabilities


def _grouped(tx: Connection, parameters: Mapping[str, object], statement: Prepared) -> RowsByTopic:
    """Execute the statement, and return its rows by topic id, in the order of the statement. The statement must
    return a column `topic_id`, and `parameters` must contain `topic_ids`.

    If `topic_ids` is empty, the statement is not executed, and the result has no rows.
    """
    return rows_by_topic(statement.execute(tx, parameters) if parameters["topic_ids"] else ())


def _layout(topic: Row[Any], segments: list[Row[Any]]) -> SegmentLayout:
    """Return the layout of a topic with its ACTIVE segments only."""
    return SegmentLayout.from_segments(
        topic.epoch,
        topic.next_segment_id,
        (
            Segment(
                row.segment_id,
                HashRange(row.range_start, row.range_end),
                parent_ids=tuple(row.parent_ids),
                created_epoch=row.created_epoch,
                created_at_ms=to_ms(row.created_at),
                bucket_splits=tuple(row.bucket_splits),
                merge_depth=row.merge_depth,
            )
            for row in segments
        ),
    )


class _Clients(TypedDict):
    clients: int
    producers: int
    reconnections_left: float | None
    cluster_reconnections_left: float | None


_NO_CLIENTS = _Clients(clients=0, producers=0, reconnections_left=None, cluster_reconnections_left=None)


def _clients(
    row: Row[Any],
    policy: AutoScalePolicy,
    segments: RowsByTopic,
    consumers: RowsByTopic,
    queues: RowsByTopic,
    producers: RowsByTopic,
) -> _Clients:
    """Return the figures about the connected clients of the topic of `row`, a row of `_TOPICS`. The other rows are by
    topic id.

    `clients` is the number of consumers that read an average segment: for each subscription in `consumers`, its
    consumers divided by the ACTIVE segments, rounded up; plus all consumers of queues. `producers` is the largest
    number of producers of any ACTIVE segment. `reconnections_left` and `cluster_reconnections_left` are the present
    reconnection budgets of the topic and of the cluster.

    If no client is connected or the profile is not `adaptive`, both numbers are 0 and both budgets are None.
    """
    if policy.profile != "adaptive":
        return _NO_CLIENTS
    count = max(1, len(segments[row.topic_id]))
    stream_consumers = sum(-(-subscription.consumers // count) for subscription in consumers[row.topic_id])
    clients = stream_consumers + sum(int(queue.consumers) for queue in queues[row.topic_id])
    producer_count = sum(segment.producers or 0 for segment in producers[row.topic_id])
    if not clients + producer_count:
        return _NO_CLIENTS
    topic_budget = _refilled(
        row.reconnections_left, row.reconnections_at, policy.reconnections_per_minute, row.now
    )
    cluster_budget = _refilled(
        row.cluster_left, row.cluster_at, policy.cluster_reconnections_per_minute, row.now
    )
    return _Clients(
        clients=clients,
        producers=producer_count,
        reconnections_left=topic_budget,
        cluster_reconnections_left=cluster_budget,
    )


def _refilled(remaining: float | None, at: datetime | None, per_minute: float, now: datetime) -> float:
    """Return the reconnection budget at `now`: `remaining`, which was stored at `at`, and `per_minute` for each
    minute since, at most `per_minute`. Without a stored budget, return `per_minute`. Nothing is added if `at` is later
    than `now`, because the clock was set back.
    """
    if remaining is None or at is None:
        return per_minute
    elapsed_seconds = max(0.0, (now - at).total_seconds())
    return float(min(per_minute, remaining + per_minute * elapsed_seconds / 60))


def _ticks(rates: Sequence[float]) -> tuple[LoadStats, ...]:
    """Return the loads of the ticks, oldest first. `rates` holds four rates per tick."""
    return tuple(map(LoadStats, rates[0::4], rates[1::4], rates[2::4], rates[3::4]))


def _load(row: Row[Any]) -> LoadRecord:
    stats = LoadStats(row.msg_rate_in, row.byte_rate_in, row.msg_rate_out, row.byte_rate_out)
    return LoadRecord(stats, to_ms(row.modified_at), _ms(row.cold_since), to_ms(row.observed_at))


def _expected(rows: Iterable[Row[Any]]) -> dict[int, LoadRecord]:
    """Return expected load records, by segment id, for segments whose ranges are completely covered by ancestors with
    load records. Other segments are absent. `rows` are the rows of `_EXPECTED` for one topic, ordered by segment;
    each row is one ancestor of one part of a segment.

    The rates of a segment are the sum of its shares (`_share`) of the ancestors' rates. `modified_at` and
    `observed_at` are the earliest ones of the ancestors' load records, and `cold_since` is None. A segment with an
    unknown share of any ancestor is absent.
    """
    records: dict[int, LoadRecord] = {}
    for segment_id, group in groupby(rows, key=lambda row: int(row.segment_id)):
        parts = list(group)
        if sum(part.covered for part in parts) < parts[0].width:
            continue
        shares = [_share(part) for part in parts]
        if any(share is None for share in shares):
            continue
        totals = [
            sum(getattr(part, metric) * share for part, share in zip(parts, shares, strict=True))
            for metric in METRICS
        ]
        records[segment_id] = LoadRecord(
            LoadStats(*totals),
            min(to_ms(part.modified_at) for part in parts),
            None,
            min(to_ms(part.observed_at) for part in parts),
        )
    return records


def _share(row: Row[Any]) -> float | None:
    """Return the share (0 to 1) of the ancestor's load that the part of the segment in this row of `_EXPECTED` is
    expected to have. The share comes from the ancestor's key histogram or, if the ancestor has no histogram, from the
    widths of the ranges.

    None: the hashes that both ranges have in common lie within one bin of several hashes, so that the share is not
    known.
    """
    if row.bins is None:
        return float(row.share)
    ancestor_range, segment_range = (
        HashRange(row.parent_start, row.parent_end),
        HashRange(row.range_start, row.range_end),
    )
    return share_within(ancestor_range, row.bins, segment_range)


def _history(row: Row[Any]) -> History:
    return History(
        _ms(row.last_split_at),
        _ms(row.last_merge_at),
        _ms(row.last_rebucket_at),
        _ms(row.last_consumer_act_at),
    )


def _reshape(row: Row[Any]) -> LiveReshape:
    return LiveReshape(
        row.operation_id,
        ReshapeKind(row.kind),
        tuple(row.parent_ids),
        row.child_count,
        to_ms(row.intended_at),
        int(row.child_places),
        is_for_consumers(row.kind, row.reason),
    )


def _ms(instant: datetime | None) -> int | None:
    return None if instant is None else to_ms(instant)
