-- Approvals for people: what waits for somebody, since when and until when, and what became of what was answered.

CREATE VIEW inspect.approvals AS
SELECT a.approval_id, t.name AS topic, a.topic_id, a.state, a.kind, a.segment_ids, a.parts, a.segments, a.reason,
       a.proposed_at, a.proposed_by, a.expires_at, a.default_answer, a.answered_at, a.answered_by, a.outcome, a.ended_at,
       a.operation_id, a.decision_id, a.epoch,
       a.state = 'pending' AND t.state = 'live' AND NOT EXISTS (
           SELECT FROM unnest(a.segment_ids) AS sealed(segment_id)
             LEFT JOIN cleave.segment s ON s.topic_id = a.topic_id AND s.segment_id = sealed.segment_id AND s.state = 'ACTIVE'
            WHERE s.segment_id IS NULL) AS is_answerable
  FROM cleave.approval a
  JOIN cleave.topic t USING (topic_id);
COMMENT ON VIEW inspect.approvals IS
    'Acts that wait for a person, or waited: what was proposed and why, until when an answer counts and what holds without one, who answered, and which operation carried it out. is_answerable: it waits, and its segments are still there.';
