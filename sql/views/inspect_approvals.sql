-- Approvals for people: what waits for somebody, since when and until when, and what became of what was answered.

CREATE VIEW inspect.approvals AS
SELECT a.approval_id, a.subject, a.subject_id, coalesce(t.name, 'cluster') AS level, t.name AS topic, a.topic_id, a.state, a.action,
       a.reason, a.proposed_at, a.proposed_by, a.expires_at, a.default_answer, a.answered_at, a.answered_by, a.outcome, a.ended_at,
       a.asked_in, there.subject AS has_subject,
       a.state = 'pending' AND there.subject AND a.expires_at > clock_timestamp() AS is_answerable,
       a.kind, a.segment_ids, a.parts, a.segments, CASE a.subject WHEN 'operation' THEN a.subject_id END AS decision_id, a.epoch,
       a.operation_id
  FROM cleave.approval a
  LEFT JOIN cleave.topic t USING (topic_id)
 CROSS JOIN LATERAL (
       SELECT coalesce(t.state = 'live', true) AND NOT EXISTS (
           SELECT FROM unnest(a.segment_ids) AS sealed(segment_id)
             LEFT JOIN cleave.segment s ON s.topic_id = a.topic_id AND s.segment_id = sealed.segment_id AND s.state = 'ACTIVE'
            WHERE s.segment_id IS NULL) AS subject) there;
COMMENT ON VIEW inspect.approvals IS
    'Actions that wait for a person, or waited, whatever they are about (subject: operation, bundle-proposal or promotion): what was proposed (action, in a few words) and why, until when an answer counts and what holds without one, and who answered.';
COMMENT ON COLUMN inspect.approvals.subject_id IS
    'The decision that wants the operation, the bundle proposal, or the candidate to promote.';
COMMENT ON COLUMN inspect.approvals.level IS 'Topic of the subject, or cluster; who may answer.';
COMMENT ON COLUMN inspect.approvals.expires_at IS 'Time from which default_answer holds, if no person has answered.';
COMMENT ON COLUMN inspect.approvals.outcome IS 'Reason of the answer, or why the approval ended.';
COMMENT ON COLUMN inspect.approvals.asked_in IS 'Run of Airflow, as dag/run, in which a person is asked.';
COMMENT ON COLUMN inspect.approvals.has_subject IS 'The topic is live, and the segments that the operation seals are still there.';
COMMENT ON COLUMN inspect.approvals.is_answerable IS 'The action waits, is in time, and has its subject.';
COMMENT ON COLUMN inspect.approvals.segment_ids IS 'Segments that the operation seals.';
COMMENT ON COLUMN inspect.approvals.parts IS 'Segments that the operation makes; of a rebucket the entry buckets.';
COMMENT ON COLUMN inspect.approvals.segments IS 'Segments that the operation seals or makes, whichever are more.';
COMMENT ON COLUMN inspect.approvals.operation_id IS 'Operation that carries the action out.';
