-- Views of operations: live and stuck operations, their steps, open deletion entries, unmanaged logs, held topics and leases.

CREATE VIEW inspect.operations AS
SELECT o.operation_id, t.name AS topic, o.topic_id, o.kind, o.state,
       o.finished_at IS NULL AS live, o.origin, o.actor, o.reason, o.decision_id, sealed.parents,
       ARRAY(SELECT c.segment_id FROM cleave.operation_child c WHERE c.operation_id = o.operation_id ORDER BY c.ordinal) AS children,
       (SELECT coalesce(jsonb_agg(jsonb_build_object('segment_id', c.segment_id, 'hash_range',
               inspect.hash_range_text(c.range_start, c.range_end), 'buckets', cardinality(c.bucket_splits) + 1,
               'backing_topic', c.backing_topic) ORDER BY c.ordinal), '[]')
          FROM cleave.operation_child c WHERE c.operation_id = o.operation_id) AS creates,
       o.epoch, o.attempts, o.last_error, o.claimed_by, o.claim_term, o.claim_expires_at, o.not_before,
       o.intended_at, o.fenced_at, o.committed_at, o.finished_at, o.deadline,
       round(extract(epoch FROM coalesce(o.finished_at, clock_timestamp()) - o.intended_at), 3) AS age_seconds,
       round(extract(epoch FROM o.committed_at - o.fenced_at), 3) AS fenced_seconds,
       o.request_key, o.parameters, CASE WHEN o.finished_at IS NULL THEN stuck.reason END AS stuck_because, o.kept_until
  FROM cleave.operation o
  JOIN cleave.topic t USING (topic_id)
 CROSS JOIN LATERAL (
       SELECT CASE WHEN o.state IN ('fencing', 'fenced') THEN clock_timestamp() - coalesce(o.fenced_at, o.intended_at) END AS lasts) fence
 CROSS JOIN LATERAL (
       SELECT coalesce(array_agg(p.segment_id ORDER BY p.ordinal), '{}') AS parents, count(*) AS segments
         FROM cleave.operation_parent p WHERE p.operation_id = o.operation_id) sealed
 CROSS JOIN LATERAL (
       SELECT o.finished_at IS NULL AND fence.lasts IS NULL
              AND coalesce(o.claim_expires_at, greatest(o.not_before, o.intended_at)) < clock_timestamp() - interval '60 seconds'
                  AS is_left) claim
 CROSS JOIN LATERAL (
       SELECT (SELECT min(e.operation_id) FROM cleave.operation e
                WHERE claim.is_left AND o.parameters ? 'child_ranges'  -- a broker performs its reshapes of a topic one after the other
                  AND e.topic_id = o.topic_id AND e.operation_id < o.operation_id AND e.finished_at IS NULL
                  AND e.parameters ? 'child_ranges') AS operation_id) older
 CROSS JOIN LATERAL (SELECT CASE
       WHEN o.state IN ('fencing', 'fenced') AND o.deadline < clock_timestamp()
           THEN 'past its deadline behind the fence: ' || sealed.segments || ' segment(s) take no writes until it is committed'
       WHEN claim.is_left AND t.held_reason IS NOT NULL THEN 'waits for the recovery of its held topic'
       WHEN older.operation_id IS NOT NULL THEN 'waits for operation ' || older.operation_id || ' of its topic'
       WHEN o.deadline < clock_timestamp() AND o.kind <> 'seek' THEN 'past its deadline'  -- a seek waits for its consumers
       WHEN fence.lasts > interval '10 seconds'
           THEN 'behind its fence for ' || round(extract(epoch FROM fence.lasts)) || ' s: '
                || CASE WHEN sealed.segments > 0 THEN sealed.segments || ' segment(s) take no writes until it is committed'
                        ELSE 'it can only be committed' END
       WHEN o.attempts >= 3 THEN 'fails repeatedly'
       WHEN claim.is_left AND o.claimed_by IS NOT NULL THEN 'its runner has died and no other runner has taken over'
       WHEN claim.is_left THEN 'no runner has claimed it; check that a worker is running (inspect.leases)'
       END AS reason) stuck;
COMMENT ON VIEW inspect.operations IS
    'The operation journal: one row per operation. fenced_seconds: time from the fence to the commit; age_seconds: time from the intent to the end, or until now. kept_until: no policy joins the segments of the split with others before that time.';

CREATE VIEW inspect.operation_loads AS
SELECT o.operation_id, t.name AS topic, o.topic_id, o.kind, o.origin, o.actor, o.reason, o.intended_at, p.segment_id,
       inspect.hash_range_text(s.range_start, s.range_end) AS hash_range,
       l.msg_rate_in, l.byte_rate_in, l.msg_rate_out, l.byte_rate_out, l.modified_at, l.cold_since, l.source
  FROM cleave.operation o
  JOIN cleave.topic t USING (topic_id)
  JOIN cleave.operation_parent p USING (operation_id)
  JOIN cleave.segment s ON s.topic_id = p.topic_id AND s.segment_id = p.segment_id
  LEFT JOIN LATERAL (
       SELECT * FROM cleave.load_history h
        WHERE h.topic_id = p.topic_id AND h.segment_id = p.segment_id AND h.recorded_at <= o.intended_at
        ORDER BY h.recorded_at DESC LIMIT 1) l ON true;
COMMENT ON VIEW inspect.operation_loads IS
    'Load of each segment that an operation seals, as recorded when the operation was requested; empty: no load was recorded.';

CREATE VIEW inspect.operation_steps AS
SELECT s.operation_id, t.name AS topic, o.kind, s.sequence, s.step, s.runner, s.claim_term, s.started_at, s.finished_at,
       round(extract(epoch FROM s.finished_at - s.started_at), 3) AS seconds, s.detail
  FROM cleave.operation_step s
  JOIN cleave.operation o USING (operation_id)
  JOIN cleave.topic t USING (topic_id);
COMMENT ON VIEW inspect.operation_steps IS 'One row per step that a runner performed for an operation.';

CREATE VIEW inspect.stuck_operations AS
SELECT operation_id, topic, kind, state, stuck_because, age_seconds, attempts, last_error, claimed_by, claim_expires_at, not_before,
       deadline, parents, children
  FROM inspect.operations WHERE live AND stuck_because IS NOT NULL;
COMMENT ON VIEW inspect.stuck_operations IS 'Live operations that make no progress, with the reason (stuck_because).';

CREATE VIEW inspect.deletion_entries_open AS
SELECT d.deletion_entry_id, t.name AS topic, d.segment_id, d.data_plane, d.backing_topic, d.reason, d.operation_id,
       d.attempts, d.last_error, d.absences, d.absent_since, d.not_before, d.created_at,
       round(extract(epoch FROM clock_timestamp() - d.created_at), 3) AS age_seconds
  FROM cleave.deletion_entry d
  JOIN cleave.topic t USING (topic_id)
 WHERE d.closed_at IS NULL;
COMMENT ON VIEW inspect.deletion_entries_open IS 'Open deletion entries: logs still to be deleted from a data plane. An entry closes after the log was absent twice.';

CREATE VIEW inspect.unmanaged_logs AS
SELECT t.name AS topic, f.topic_id, f.data_plane, f.backing_topic, f.segment_id, f.reason, f.unread, f.token, f.epoch, f.found_at, f.seen_at
  FROM cleave.unmanaged_log f
  JOIN cleave.topic t USING (topic_id)
 WHERE NOT EXISTS (SELECT FROM cleave.topic n JOIN cleave.segment s ON s.topic_id = n.topic_id
                    WHERE n.name = t.name AND n.state <> 'deleted' AND s.backing_topic = f.backing_topic AND s.pruned_epoch IS NULL);
COMMENT ON VIEW inspect.unmanaged_logs IS
    'Unmanaged logs, which have the name of a segment and which Cleave must not delete: another journal created them, or they hold unread messages.';

CREATE VIEW inspect.held_topics AS
SELECT t.name AS topic, t.topic_id, t.data_plane, t.epoch, t.held_reason, t.held_at,
       round(extract(epoch FROM clock_timestamp() - t.held_at), 1) AS held_seconds, t.held_reason IS NULL AS unverified
  FROM cleave.topic t
 WHERE t.state <> 'deleted'
   AND (t.held_reason IS NOT NULL
        OR NOT (SELECT pg_is_in_recovery()) AND t.verified_under IS DISTINCT FROM (SELECT cleave.database_identity()));
COMMENT ON VIEW inspect.held_topics IS
    'One row per topic on which nothing acts. held_reason: evidence that the logs of the topic are ahead of the journal. unverified: the logs are not yet compared with the journal; a standby lists no unverified topic.';

CREATE VIEW inspect.leases AS
SELECT l.name, l.holder, l.term, l.acquired_at, l.expires_at, l.expires_at > clock_timestamp() AS live, l.address,
       l.incarnation, l.schema_version
  FROM cleave.lease l;
COMMENT ON VIEW inspect.leases IS
    'Leases and their holders, by the clock of the database. Rows worker/... are the running workers, with the address at which they serve consumers, and the newest migration they know (empty: the program is older than the column). The holder of shard-count is the number of shards into which the workers divide the topics.';
