"""The statements of ``reshapes``: one for each act, however many operations it is for.

A data-modifying WITH sees one snapshot throughout; what is written hangs on the row that passed the checks, and a
locked row is compared anew with what others committed meanwhile. Read by ``reshapes`` alone, which says what each
is for.
"""

from __future__ import annotations

from controller.store.journal.rows import READ_COLUMNS
from controller.store.postgres.prepared import Prepared

_OPEN = "o.finished_at IS NULL AND o.not_before <= (SELECT clock_timestamp()) AND o.kind = ANY (:kinds)"
_FRESH = """o.state = 'intended' AND o.attempts = 0 AND o.claimed_by IS NULL AND o.kind = ANY (:reshapes)
            AND (SELECT t.state = 'live' AND t.data_plane = ANY ({planes}) FROM cleave.topic t
                  WHERE t.topic_id = o.topic_id)"""
_FRESH_TOGETHER, _FRESH_ALONE = (
    _FRESH.format(planes=":planes_together"),
    _FRESH.format(planes=":planes_alone"),
)
_CLAIMABLE = """(o.claimed_by IS NULL
                OR o.claim_expires_at <= (SELECT clock_timestamp()) - make_interval(secs => :call_timeout_seconds))"""
_FENCED = "o.state IN ('fencing', 'fenced')"
# Beside fresh reshapes that share calls, as many as asked for, one of whatever else is due, so that neither waits for
# the other for ever. What is fenced waits for nobody: its range has no log to write to until it commits.
_CLAIM = f"""
    WITH fenced AS MATERIALIZED (
        SELECT o.operation_id FROM cleave.operation o
         WHERE {_OPEN} AND {_FENCED} AND {{which}} AND {_CLAIMABLE}
         ORDER BY o.not_before, o.operation_id LIMIT 1 FOR UPDATE OF o SKIP LOCKED)
    , fresh AS MATERIALIZED (
        SELECT o.operation_id FROM cleave.operation o
         WHERE {_OPEN} AND {_FRESH_TOGETHER} AND {{which}}
         ORDER BY o.not_before, o.operation_id
         LIMIT (SELECT greatest(:limit - 1, 1 - count(*)) FROM fenced) FOR UPDATE OF o SKIP LOCKED)
    , other AS MATERIALIZED (
        SELECT o.operation_id, {_FRESH_ALONE} AS is_fresh FROM cleave.operation o
         WHERE {_OPEN} AND NOT ({_FRESH_TOGETHER}) AND NOT {_FENCED} AND {{which}} AND {_CLAIMABLE}
         ORDER BY o.not_before, o.operation_id
         LIMIT CASE WHEN EXISTS (SELECT FROM fenced) THEN 0
                    ELSE (SELECT CASE WHEN count(*) < :limit THEN 1 ELSE 0 END FROM fresh) END
           FOR UPDATE OF o SKIP LOCKED)
    , taken AS (
        UPDATE cleave.operation o
           SET claimed_by = :runner, claim_term = o.claim_term + 1, row_version = o.row_version + 1,
               claim_expires_at = clock_timestamp() + make_interval(secs => :lease_seconds)
          FROM (SELECT operation_id, true AS is_fresh FROM fresh
                UNION ALL SELECT operation_id, is_fresh FROM other
                UNION ALL SELECT operation_id, false FROM fenced) due
         WHERE o.operation_id = due.operation_id
     RETURNING o.*, due.is_fresh)
    SELECT {READ_COLUMNS}, o.is_fresh, clock_timestamp() AS now, t.epoch AS topic_epoch, t.next_segment_id,
           t.subscription_version AS topic_subscription_version,
           ARRAY(SELECT u.name FROM cleave.subscription u
                  WHERE u.topic_id = o.topic_id AND u.state = :live ORDER BY u.name) AS live_subscriptions,
           ARRAY(SELECT u.name FROM cleave.subscription u
                  WHERE u.topic_id = o.topic_id AND u.state <> :live ORDER BY u.name) AS ending_subscriptions,
           CASE WHEN o.is_fresh THEN
               (SELECT jsonb_agg(jsonb_build_array(
                           s.segment_id, s.range_start, s.range_end, s.merge_depth, s.bucket_splits,
                           ARRAY(SELECT l.parent_id FROM cleave.segment_parent l
                                  WHERE l.topic_id = s.topic_id AND l.child_id = s.segment_id ORDER BY l.ordinal)))
                  FROM cleave.operation_parent p JOIN cleave.segment s USING (topic_id, segment_id)
                 WHERE p.operation_id = o.operation_id) END AS parents
      FROM taken o JOIN cleave.topic t USING (topic_id)
     ORDER BY o.operation_id
"""  # noqa: S608 - constants only, as below
_CLAIM_TYPES = {
    "runner": "text",
    "lease_seconds": "float8",
    "call_timeout_seconds": "float8",
    "limit": "bigint",
    "kinds": "text[]",
    "reshapes": "text[]",
    "planes_together": "text[]",
    "planes_alone": "text[]",
    "live": "text",
}
CLAIM = Prepared("claim_reshapes", _CLAIM.replace("{which}", "TRUE"), _CLAIM_TYPES)
CLAIM_IN_SHARDS = Prepared(
    "claim_reshapes_in_shards",
    _CLAIM.replace("{which}", "o.topic_id % :shard_count = ANY (:shards)"),
    _CLAIM_TYPES | {"shard_count": "bigint", "shards": "bigint[]"},
)

_GIVEN = """
    WITH given AS MATERIALIZED (
        SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS g (
            operation_id bigint, topic_id bigint, term bigint, subscription_version bigint, detail jsonb, stamps text[],
            children jsonb))
"""
# States are parameters where one row is sought by its key: of a state that it knows the planner may think that so few
# rows have it that it had better read all of them.
_STEP_TYPES = {
    "given": "text",
    "runner": "text",
    "state": "text",
    "started_at": "timestamptz",
    "first": "text",
}
_HELD = "o.claimed_by = :runner AND o.claim_term = g.term AND o.claim_expires_at > clock_timestamp()"
# Rows of two steps that one transaction records: the second begins where the first ended.
_JOURNAL = """
        INSERT INTO cleave.operation_step (operation_id, sequence, step, runner, claim_term, started_at, detail)
        SELECT m.operation_id,
               n.ordinal + (SELECT coalesce(max(sequence), 0) FROM cleave.operation_step j
                             WHERE j.operation_id = m.operation_id),
               n.step, :runner, m.claim_term, n.started_at, CASE WHEN n.ordinal = 1 THEN m.detail ELSE '{}' END
          FROM moved m CROSS JOIN (VALUES {steps}) AS n (ordinal, step, started_at)
"""
_FIRST = "(1, :first, CAST(:started_at AS timestamptz))"
_TWO_STEPS = _JOURNAL.replace("{steps}", f"{_FIRST}, (2, :second, clock_timestamp())")
_ONE_STEP = _JOURNAL.replace("{steps}", _FIRST)

ANNOUNCE = Prepared(
    "announce_fences",
    f"""{_GIVEN}
    , moved AS (
        UPDATE cleave.operation o
           SET state = 'fencing', row_version = o.row_version + 1, subscription_version = g.subscription_version
          FROM given g
         WHERE o.operation_id = g.operation_id AND {_HELD} AND o.state = :state AND o.deadline > clock_timestamp()
           AND (SELECT t.state FROM cleave.topic t WHERE t.topic_id = g.topic_id) = 'live'
     RETURNING o.operation_id, o.claim_term, g.detail)
    , journal AS ({_TWO_STEPS})
    SELECT operation_id, clock_timestamp() AS now,
           CASE WHEN :may_be_late THEN set_config('synchronous_commit', 'off', true) END FROM moved
""",  # noqa: S608
    _STEP_TYPES | {"second": "text", "may_be_late": "boolean"},
)

COMMIT = Prepared(
    "commit_reshapes",
    f"""{_GIVEN}
    , locked AS MATERIALIZED (
        SELECT topic_id FROM cleave.topic WHERE topic_id = ANY (:topic_ids) ORDER BY topic_id FOR NO KEY UPDATE)
    , held AS MATERIALIZED (
        SELECT o.operation_id, o.intended_at, g.topic_id, g.subscription_version, g.stamps, g.detail, g.children
          FROM given g JOIN cleave.operation o USING (operation_id)
         WHERE g.topic_id = ANY (ARRAY(SELECT topic_id FROM locked)) AND {_HELD} AND o.state = :state
           FOR NO KEY UPDATE OF o)
    , raised AS (
        UPDATE cleave.topic t
           SET epoch = t.epoch + 1, row_version = t.row_version + 1,
               last_split_at = CASE WHEN 'last_split_at' = ANY (h.stamps)
                                    THEN greatest(t.last_split_at, h.intended_at) ELSE t.last_split_at END,
               last_merge_at = CASE WHEN 'last_merge_at' = ANY (h.stamps)
                                    THEN greatest(t.last_merge_at, h.intended_at) ELSE t.last_merge_at END,
               last_rebucket_at = CASE WHEN 'last_rebucket_at' = ANY (h.stamps)
                                       THEN greatest(t.last_rebucket_at, h.intended_at) ELSE t.last_rebucket_at END
          FROM held h
         WHERE t.topic_id = h.topic_id AND t.subscription_version = h.subscription_version
           AND t.state IN ('live', 'deleting')
     RETURNING t.topic_id, t.epoch, h.operation_id, h.detail, h.children)
    , moved AS (
        UPDATE cleave.operation o
           SET state = 'committed', row_version = o.row_version + 1, epoch = r.epoch,
               fenced_at = clock_timestamp(), committed_at = clock_timestamp()
          FROM raised r WHERE o.operation_id = r.operation_id
     RETURNING o.operation_id, o.topic_id, o.claim_term, o.kind, o.origin, o.actor, o.reason, o.epoch, r.detail,
               r.children)
    , change AS (
        INSERT INTO cleave.layout_change (topic_id, epoch, kind, operation_id, origin, actor, reason)
        SELECT topic_id, epoch, kind, operation_id, origin, actor, reason FROM moved ORDER BY topic_id
     RETURNING topic_id, epoch, operation_id, committed_at)
    , placed AS MATERIALIZED (
        SELECT operation_id, c.topic_id, c.epoch, c.committed_at, m.detail -> 'positions' AS positions, m.children
          FROM change c JOIN moved m USING (operation_id))
    , sealed AS (
        UPDATE cleave.segment s
           SET state = 'SEALED', sealed_epoch = c.epoch, sealed_at = c.committed_at,
               terminated_position = c.positions ->> s.backing_topic
          FROM placed c JOIN cleave.operation_parent p USING (operation_id)
         WHERE s.topic_id = p.topic_id AND s.segment_id = p.segment_id AND s.sealed_epoch IS NULL)
    , child AS (
        INSERT INTO cleave.segment (topic_id, segment_id, range_start, range_end, merge_depth, bucket_splits,
                                    created_epoch, created_at, backing_topic)
        SELECT c.topic_id, r.segment_id, r.range_start, r.range_end, d.merge_depth, r.bucket_splits, c.epoch,
               c.committed_at, r.backing_topic
          FROM placed c JOIN cleave.operation_child r USING (operation_id)
          JOIN LATERAL jsonb_to_recordset(c.children) AS d (segment_id bigint, merge_depth integer)
            ON d.segment_id = r.segment_id)
    , link AS (
        INSERT INTO cleave.segment_parent (topic_id, child_id, parent_id, ordinal)
        SELECT c.topic_id, d.segment_id, p.parent_id, p.ordinal - 1
          FROM placed c
         CROSS JOIN LATERAL jsonb_to_recordset(c.children) AS d (segment_id bigint, parent_ids bigint[])
         CROSS JOIN LATERAL unnest(d.parent_ids) WITH ORDINALITY AS p (parent_id, ordinal))
    , freed AS (
        UPDATE cleave.operation_parent p SET live = false FROM moved m
         WHERE p.operation_id = m.operation_id AND p.live)
    , journal AS ({_TWO_STEPS})
    SELECT m.operation_id, m.epoch, clock_timestamp() AS now,
           ARRAY(SELECT u.name FROM cleave.subscription u WHERE u.topic_id = m.topic_id) AS subscriptions
      FROM moved m
""",  # noqa: S608
    _STEP_TYPES | {"second": "text", "topic_ids": "bigint[]"},
)

FINISH = Prepared(
    "finish_reshapes",
    f"""{_GIVEN}
    , moved AS (
        UPDATE cleave.operation o
           SET state = 'done', row_version = o.row_version + 1, finished_at = clock_timestamp(),
               claimed_by = NULL, claim_expires_at = NULL
          FROM given g
         WHERE o.operation_id = ANY (:operation_ids) AND o.operation_id = g.operation_id AND {_HELD} AND o.state = :state
     RETURNING o.operation_id, o.claim_term, g.detail)
    , journal AS ({_ONE_STEP})
    SELECT operation_id, set_config('synchronous_commit', 'off', true) FROM moved
""",  # noqa: S608
    _STEP_TYPES | {"operation_ids": "bigint[]"},
)
