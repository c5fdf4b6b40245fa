"""Sketches of where in a segment's range its load lies: which segments are due for one, and how they are kept.

A new sketch of a segment is added to what an older one counted, which counts half as much after `HALF_LIFE_SECONDS`.
What the bins are: `domain/key_sketch.py`. Decisions read them in `decisions/situations.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, text

from controller.domain.hash_range import HashRange
from controller.store.shards import Shards

HALF_LIFE_SECONDS = 30.0
NEW_FOR_SECONDS = 300.0
"""A segment that a reshape made so recently is due before anybody knows its load: what is hot there is cut again at once."""
KEPT_SECONDS = 3_600.0
"""So long after it was sampled, a sketch is still there for people to see."""

# Policies are resolved once for each combination of documents: most topics of a namespace share one.
_DUE = text("""
    WITH live AS MATERIALIZED (
        SELECT t.topic_id, t.data_plane, coalesce(t.policy, '{}') AS of_topic, coalesce(n.policy, '{}') AS of_namespace
          FROM cleave.topic t LEFT JOIN cleave.namespace_policy n ON n.namespace = t.namespace
         WHERE t.state = 'live' AND t.data_plane = ANY (:planes) AND t.topic_id % :shard_count = ANY (:shards)
    ), capacity AS MATERIALIZED (
        SELECT p.of_topic, p.of_namespace,
               max(cleave.parameter_number(k.value)) FILTER (WHERE k.parameter = 'split_msg_rate_in') AS msg_in,
               max(cleave.parameter_number(k.value)) FILTER (WHERE k.parameter = 'split_byte_rate_in') AS byte_in,
               max(cleave.parameter_number(k.value)) FILTER (WHERE k.parameter = 'split_msg_rate_out') AS msg_out,
               max(cleave.parameter_number(k.value)) FILTER (WHERE k.parameter = 'split_byte_rate_out') AS byte_out
          FROM (SELECT DISTINCT of_topic, of_namespace FROM live) p
         CROSS JOIN cleave.cluster_policy c
         CROSS JOIN LATERAL (
               SELECT d.parameter, coalesce(cleave.parameter_stored(d.parameter, p.of_topic, p.of_namespace, c.policy), d.value) AS value
                 FROM cleave.policy_default d
                WHERE d.parameter = 'profile' OR d.parameter ~ '^split_(msg|byte)_rate_(in|out)$') k
         GROUP BY p.of_topic, p.of_namespace
        HAVING bool_or(k.parameter = 'profile' AND k.value = '"adaptive"')
    ), adaptive AS MATERIALIZED (
        SELECT live.topic_id, live.data_plane, msg_in, byte_in, msg_out, byte_out
          FROM live JOIN capacity USING (of_topic, of_namespace)
    )
    SELECT a.data_plane, s.topic_id, s.segment_id, s.range_start, s.range_end, s.backing_topic
      FROM adaptive a
      JOIN cleave.segment s ON s.topic_id = a.topic_id AND s.state = 'ACTIVE' AND s.range_start < s.range_end
      LEFT JOIN cleave.segment_load l ON l.topic_id = s.topic_id AND l.segment_id = s.segment_id
      LEFT JOIN cleave.segment_sketch k ON k.topic_id = s.topic_id AND k.segment_id = s.segment_id
     CROSS JOIN LATERAL (
           SELECT CASE WHEN l.topic_id IS NULL
                       THEN s.created_epoch > 0 AND s.created_at > clock_timestamp() - make_interval(secs => :new_for)
                       ELSE l.msg_rate_in >= :share * a.msg_in OR l.byte_rate_in >= :share * a.byte_in
                            OR l.msg_rate_out >= :share * a.msg_out OR l.byte_rate_out >= :share * a.byte_out END AS counts,
                  l.msg_rate_in > a.msg_in OR l.byte_rate_in > a.byte_in
                      OR l.msg_rate_out > a.msg_out OR l.byte_rate_out > a.byte_out AS is_hot) load
     WHERE load.counts
       AND (k.sampled_at IS NULL OR k.sampled_at <= clock_timestamp() - make_interval(secs => :older_than))
     ORDER BY load.is_hot IS TRUE DESC, l.topic_id IS NULL DESC, k.sampled_at NULLS FIRST, s.topic_id, s.segment_id
     LIMIT :limit
""")
_KEEP = text(
    "SELECT cleave.keep_sketch(:topic_id, :segment_id, CAST(:bins AS real[]), :fresh_for, :half_life)"
)
_MERGE = text("SELECT cleave.merge_sketches(:run_id, :fresh_for, :half_life)")
_FORGET = text("""
    DELETE FROM cleave.segment_sketch WHERE sampled_at < clock_timestamp() - make_interval(secs => :kept)
""")


@dataclass(frozen=True, slots=True)
class LogToSample:
    """The log of a segment whose keys are to be sampled."""

    data_plane: str
    topic_id: int
    segment_id: int
    hash_range: HashRange
    backing_topic: str


@dataclass(frozen=True, slots=True)
class Sketch:
    """Messages in each bin of a segment's range; the sum is above 0."""

    topic_id: int
    segment_id: int
    bins: Sequence[float]


def due(
    tx: Connection,
    planes: Collection[str],
    shards: Shards,
    *,
    from_load: float,
    older_than_seconds: float,
    limit: int,
) -> list[LogToSample]:
    """ACTIVE segments of topics on `adaptive` whose load is at least `from_load` of their capacity in some metric (0..1), or
    that are new, without a sketch or with an older one: what is hot first, then what is new, then whose sketch is oldest.
    """
    rows = tx.execute(
        _DUE,
        {
            **shards.parameters,
            "planes": list(planes),
            "share": from_load,
            "older_than": older_than_seconds,
            "new_for": NEW_FOR_SECONDS,
            "limit": limit,
        },
    )
    return [
        LogToSample(
            row.data_plane,
            row.topic_id,
            row.segment_id,
            HashRange(row.range_start, row.range_end),
            row.backing_topic,
        )
        for row in rows
    ]


def write(tx: Connection, sketches: Sequence[Sketch], *, fresh_seconds: float) -> None:
    """Add these to what is known of their segments; what is not ACTIVE any more is left out. Forgets what nobody can use."""
    for one in sorted(sketches, key=lambda sketch: (sketch.topic_id, sketch.segment_id)):
        tx.execute(
            _KEEP,
            {
                "topic_id": one.topic_id,
                "segment_id": one.segment_id,
                "bins": list(one.bins),
                "fresh_for": fresh_seconds,
                "half_life": HALF_LIFE_SECONDS,
            },
        )
    tx.execute(_FORGET, {"kept": max(KEPT_SECONDS, fresh_seconds)})


def merge(tx: Connection, run_id: str, *, fresh_seconds: float) -> int:
    """Add what a run of the aggregation has staged, for a loader; returns how many segments have a sketch of it."""
    kept: int = tx.execute(
        _MERGE, {"run_id": run_id, "fresh_for": fresh_seconds, "half_life": HALF_LIFE_SECONDS}
    ).scalar_one()
    return kept
