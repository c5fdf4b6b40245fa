"""The two statements of ``reshape_drafts``, each for any number of topics: one looks, one writes.

The write hangs on each topic's row version, and topics are locked in the order of their ids, as every statement does
that locks several.
"""

from __future__ import annotations

from controller.store.postgres.prepared import Prepared

_LOOK = """
    SELECT w.ordinal, t.topic_id, t.name, t.state, t.data_plane, t.epoch, t.next_segment_id, t.row_version,
           e.input_version,
           (SELECT o.operation_id FROM cleave.operation o WHERE o.request_key = w.request_key) AS first_id,
           (SELECT CAST(c.policy AS text) FROM cleave.cluster_policy c) AS cluster_policy,
           (SELECT jsonb_agg(jsonb_build_array(s.segment_id, s.range_start, s.range_end, s.bucket_splits, s.merge_depth,
                                               s.created_epoch, s.backing_topic))
              FROM cleave.segment s WHERE s.topic_id = t.topic_id AND s.state = 'ACTIVE') AS segments,
           (SELECT jsonb_agg(jsonb_build_array(p.segment_id, p.operation_id))
              FROM cleave.operation_parent p WHERE p.topic_id = t.topic_id AND p.live) AS busy
      FROM unnest(:topics, :request_keys) WITH ORDINALITY AS w (topic, request_key, ordinal)
      JOIN cleave.topic t ON {which}
      LEFT JOIN cleave.evaluation e USING (topic_id)
"""
LOOK_BY_ID = Prepared(
    "look_by_id",
    _LOOK.format(which="t.topic_id = w.topic"),
    {"topics": "bigint[]", "request_keys": "text[]"},
)
LOOK_BY_NAME = Prepared(
    "look_by_name",
    _LOOK.format(which="t.name = w.topic AND t.state <> 'deleted'"),
    {"topics": "text[]", "request_keys": "text[]"},
)
# What hangs on the row that passed the comparison is written with it or not at all.
WRITE = Prepared(
    "write_reshapes",
    """
    WITH given AS MATERIALIZED (
        SELECT g.*
          FROM unnest(:topic_ids, :row_versions, :input_versions, :reserved, :kinds, :request_keys, :origins, :actors,
                      :reasons, :decision_ids, :deadline_seconds, :parents, :children)
            AS g (topic_id, row_version, input_version, reserved, kind, request_key, origin, actor, reason, decision_id,
                  deadline_seconds, parents, children))
    , locked AS MATERIALIZED (
        SELECT topic_id FROM cleave.topic WHERE topic_id = ANY (:topic_ids) ORDER BY topic_id FOR NO KEY UPDATE)
    , topic AS (
        UPDATE cleave.topic t
           SET next_segment_id = greatest(t.next_segment_id, g.reserved), row_version = t.row_version + 1
          FROM locked JOIN given g USING (topic_id)
         WHERE t.topic_id = g.topic_id AND t.row_version = g.row_version AND t.state = 'live'
           AND (g.input_version IS NULL
                OR g.input_version = (SELECT e.input_version FROM cleave.evaluation e WHERE e.topic_id = g.topic_id))
     RETURNING t.topic_id)
    , operation AS (
        INSERT INTO cleave.operation
               (topic_id, kind, request_key, origin, actor, reason, decision_id, deadline)
        SELECT g.topic_id, g.kind, g.request_key, g.origin, g.actor, g.reason, g.decision_id,
               clock_timestamp() + make_interval(secs => g.deadline_seconds)
          FROM topic JOIN given g USING (topic_id) ORDER BY g.topic_id
     RETURNING operation_id, topic_id, deadline)
    , parent AS (
        INSERT INTO cleave.operation_parent (operation_id, topic_id, segment_id, ordinal)
        SELECT o.operation_id, o.topic_id, CAST(p.segment_id AS bigint), p.ordinal - 1
          FROM operation o JOIN given g USING (topic_id)
         CROSS JOIN LATERAL jsonb_array_elements_text(CAST(g.parents AS jsonb)) WITH ORDINALITY AS p (segment_id, ordinal))
    , child AS (
        INSERT INTO cleave.operation_child
               (operation_id, topic_id, segment_id, range_start, range_end, ordinal, bucket_splits, backing_topic)
        SELECT o.operation_id, o.topic_id, c.segment_id, c.range_start, c.range_end, c.ordinal, c.bucket_splits,
               c.backing_topic
          FROM operation o JOIN given g USING (topic_id)
         CROSS JOIN LATERAL jsonb_to_recordset(CAST(g.children AS jsonb)) AS c (
               segment_id bigint, range_start integer, range_end integer, ordinal integer, bucket_splits integer[],
               backing_topic text))
    SELECT operation_id, topic_id, deadline FROM operation
""",
    {
        "topic_ids": "bigint[]",
        "row_versions": "bigint[]",
        "input_versions": "bigint[]",
        "reserved": "bigint[]",
        "kinds": "text[]",
        "request_keys": "text[]",
        "origins": "text[]",
        "actors": "text[]",
        "reasons": "text[]",
        "decision_ids": "bigint[]",
        "deadline_seconds": "float8[]",
        "parents": "text[]",
        "children": "text[]",
    },
)
