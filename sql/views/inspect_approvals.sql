-- Approvals for people: what waits for somebody, since when and until when, and what became of what was answered.

CREATE VIEW inspect.approvals AS
SELECT a.approval_id, t.name AS topic, a.topic_id, a.state, a.kind,
       a.kind || CASE cardinality(a.segment_ids) WHEN 1 THEN ' segment ' ELSE ' segments ' END || array_to_string(a.segment_ids, ', ')
           || CASE a.kind WHEN 'rebucket' THEN ' to ' || a.parts || ' entry buckets' ELSE ' into ' || a.parts END AS act, a.segment_ids, a.parts, a.segments, a.reason,
       a.proposed_at, a.proposed_by, a.expires_at, a.default_answer, a.answered_at, a.answered_by, a.outcome, a.ended_at,
       a.operation_id, a.decision_id, a.epoch, a.asked_in, there.segments AS has_segments,
       a.state = 'pending' AND there.segments AND a.expires_at > clock_timestamp() AS is_answerable
  FROM cleave.approval a
  JOIN cleave.topic t USING (topic_id)
 CROSS JOIN LATERAL (
       SELECT t.state = 'live' AND NOT EXISTS (
           SELECT FROM unnest(a.segment_ids) AS sealed(segment_id)
             LEFT JOIN cleave.segment s ON s.topic_id = a.topic_id AND s.segment_id = sealed.segment_id AND s.state = 'ACTIVE'
            WHERE s.segment_id IS NULL) AS segments) there;
COMMENT ON VIEW inspect.approvals IS
    'Acts that wait for a person, or waited: what was proposed (act, in a few words) and why, until when an answer counts and what holds without one, who answered, and which operation carried it out. asked_in: the run of Airflow, as dag/run, in which somebody is asked. has_segments: its segments are still there. is_answerable: it waits, is in time, and has its segments.';
