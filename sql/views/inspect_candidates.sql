-- Views of candidates: policies proposed for a topic, their outcomes, and their shadow evaluations.

CREATE VIEW inspect.policy_candidates AS
SELECT c.candidate_id, t.name AS topic, c.topic_id, c.state, c.override, c.proposed_at, c.proposed_by, c.reason,
       c.ended_at, c.ended_by, c.outcome, c.run_id,
       (SELECT sum(b.cost) / nullif(sum(b.least_cost), 0) FROM cleave.backtest_result b
         WHERE b.run_id = c.run_id AND b.topic_id = c.topic_id AND b.policy = 'candidate') AS regret,
       (SELECT sum(b.cost) / nullif(sum(b.least_cost), 0) FROM cleave.backtest_result b
         WHERE b.run_id = c.run_id AND b.topic_id = c.topic_id AND b.policy = 'in-force') AS live_regret,
       (SELECT count(*) FROM cleave.shadow_decision s WHERE s.candidate_id = c.candidate_id) AS shadow_decisions,
       (SELECT max(s.decided_at) FROM cleave.shadow_decision s WHERE s.candidate_id = c.candidate_id) AS last_decided_at,
       (SELECT a.approval_id FROM cleave.approval a
         WHERE a.subject = 'promotion' AND a.subject_id = c.candidate_id AND a.state = 'pending') AS approval_id
  FROM cleave.policy_candidate c
  JOIN cleave.topic t USING (topic_id);
COMMENT ON VIEW inspect.policy_candidates IS
    'One row per policy proposed for a topic: the parameters that it sets on top of the policy in force, who proposed it and why, its outcome, and the regret of both policies in the backtest that is the evidence.';
COMMENT ON COLUMN inspect.policy_candidates.approval_id IS 'Pending approval of the promotion; NULL: none is pending.';

CREATE VIEW inspect.shadow_decisions AS
SELECT s.shadow_id, t.name AS topic, s.topic_id, s.candidate_id, s.decided_at, s.epoch, s.lanes,
       ARRAY(SELECT act ->> 'kind' || ' ' || coalesce(act ->> 'segment_id', (act ->> 'left_id') || '+' || (act ->> 'right_id'),
                    act ->> 'segment_ids') || ' (' || (act ->> 'reason') || ')'
               FROM jsonb_array_elements(s.decisions) AS act) AS acts,
       ARRAY(SELECT act ->> 'kind' || ' ' || coalesce(act ->> 'segment_id', (act ->> 'left_id') || '+' || (act ->> 'right_id'),
                    act ->> 'segment_ids') || ' (' || (act ->> 'reason') || ')'
               FROM jsonb_array_elements(s.live_decisions) AS act) AS live_acts,
       s.decisions = s.live_decisions AS acts_alike, s.decisions, s.refusals, s.live_decisions, s.live_refusals, s.decision_id,
       s.decided_by, s.code_version, s.situation::jsonb AS situation
  FROM cleave.shadow_decision s
  JOIN cleave.topic t USING (topic_id);
COMMENT ON VIEW inspect.shadow_decisions IS
    'Decisions of candidates, which are never performed, and the decisions of the live policy at the same evaluation. One row per evaluation at which the outcome of a candidate changed; decision_id is the row of the decision log for that evaluation, if there is one.';
