-- Views of approvals: actions that wait for a person, their expiry, the answers and the outcomes.

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
    'One row per action that needs, or needed, an approval. subject is operation, bundle-proposal or promotion; the row has the proposed action, its reason, the expiry, the default answer, and who answered.';
COMMENT ON COLUMN inspect.approvals.subject_id IS
    'Id of the decision that chose the operation, of the bundle proposal, or of the candidate to promote.';
COMMENT ON COLUMN inspect.approvals.level IS 'Topic of the subject, or cluster. Persons with rights at this level may answer.';
COMMENT ON COLUMN inspect.approvals.expires_at IS 'Time from which default_answer holds, if no person has answered.';
COMMENT ON COLUMN inspect.approvals.outcome IS 'Reason of the answer, or of the end of the approval.';
COMMENT ON COLUMN inspect.approvals.asked_in IS 'Airflow run, as dag/run, that requests the answer of a person; NULL: no run does.';
COMMENT ON COLUMN inspect.approvals.has_subject IS 'True if the topic is live and the segments that the operation seals are still ACTIVE.';
COMMENT ON COLUMN inspect.approvals.is_answerable IS 'True if the approval is pending, has not expired, and has its subject.';
COMMENT ON COLUMN inspect.approvals.segment_ids IS 'Segments that the operation seals.';
COMMENT ON COLUMN inspect.approvals.parts IS 'Number of segments that the operation creates; for a rebucket, the number of entry buckets.';
COMMENT ON COLUMN inspect.approvals.segments IS 'Number of segments that the operation seals or creates, whichever is greater.';
COMMENT ON COLUMN inspect.approvals.operation_id IS 'Operation that performs the approved action; NULL: none yet.';
