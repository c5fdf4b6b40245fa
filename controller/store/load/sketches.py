"""Stores key histograms of segments, and lists the segments that are due for a sample.

A sample is added to the stored key histogram, whose counts halve every `HALF_LIFE_SECONDS`. `domain/key_sketch.py` defines the bins;
`decisions/evaluation_inputs.py` reads the key histograms for decisions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, text

from controller.domain.hash_range import HashRange
from controller.store.shards import Shards

HALF_LIFE_SECONDS = 30.0
NEW_FOR_SECONDS = 300.0
"""Maximum age in seconds at which a segment created by a reshape is due although its load is not known yet, so that a hot part of it can
be split again at once.
"""
KEPT_SECONDS = 3_600.0
"""Minimum time in seconds for which a key histogram is kept for views after its last sample."""

# Policies are resolved once for each combination of documents, because most topics of a namespace share a combination.
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
    """Log of a segment whose keys are to be sampled."""

    data_plane: str
    topic_id: int
    segment_id: int
    hash_range: HashRange
    backing_topic: str


@dataclass(frozen=True, slots=True)
class Sketch:
    """Number of messages in each bin of a segment's range. The sum is above 0."""

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
    """Return the logs of up to `limit` ACTIVE segments on these data planes and shards that are due for a sample.

    A segment is due if its range has more than one hash, its topic is live and has the profile `adaptive`, its load reaches `from_load` (0
    to 1) of its capacity in some metric or is not known yet within `NEW_FOR_SECONDS` after a reshape, and its key histogram is missing or
    older than `older_than_seconds`. Hot segments come first, then segments without known load, then segments without or with the oldest key
    histogram.
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
    """Add the counts to the key histograms of their segments, which decisions then use for `fresh_seconds`. The stored counts are first
    reduced by half for each `HALF_LIFE_SECONDS` since the last sample. Skip segments that are not ACTIVE.

    Also deletes the key histograms of all segments whose last sample is older than `KEPT_SECONDS` and than `fresh_seconds`.
    """
    for sketch in sorted(sketches, key=lambda sketch: (sketch.topic_id, sketch.segment_id)):
        tx.execute(
            _KEEP,
            {
                "topic_id": sketch.topic_id,
                "segment_id": sketch.segment_id,
                "bins": list(sketch.bins),
                "fresh_for": fresh_seconds,
                "half_life": HALF_LIFE_SECONDS,
            },
        )
    tx.execute(_FORGET, {"kept": max(KEPT_SECONDS, fresh_seconds)})


def merge(tx: Connection, run_id: str, *, fresh_seconds: float) -> None:
    """Add the staged key counts of an aggregation run to the key histograms, for a loader, and store the numbers of
    producers that count. Skips segments that are not ACTIVE, counts without a message, and counts whose number of bins
    does not fit the range of the segment.
    """
    tx.execute(_MERGE, {"run_id": run_id, "fresh_for": fresh_seconds, "half_life": HALF_LIFE_SECONDS})
