-- Candidates, which are proposed policies. A candidate is evaluated along with the live policy, and its decisions are never performed.
-- A candidate is promoted only if a backtest on the topic's own history shows a lower cost.

CREATE TABLE cleave.policy_candidate (
    candidate_id bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic_id     bigint      NOT NULL REFERENCES cleave.topic,
    override     jsonb       NOT NULL,
    proposed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    proposed_by  text        NOT NULL,
    reason       text        NOT NULL,
    state        text        NOT NULL DEFAULT 'shadow',
    run_id       bigint      REFERENCES cleave.backtest_run,
    ended_at     timestamptz,
    ended_by     text,
    outcome      text,
    CONSTRAINT policy_candidate_state_known CHECK (state IN ('shadow', 'promoted', 'refused', 'withdrawn')),
    CONSTRAINT policy_candidate_sets_something CHECK (jsonb_typeof(override) = 'object' AND override <> '{}'),
    CONSTRAINT policy_candidate_ended CHECK (
        (state = 'shadow') = (ended_at IS NULL) AND (state = 'shadow') = (ended_by IS NULL)
        AND (state = 'shadow') = (outcome IS NULL))
);
CREATE UNIQUE INDEX policy_candidate_one_in_shadow ON cleave.policy_candidate (topic_id) WHERE state = 'shadow';
CREATE INDEX policy_candidate_by_topic ON cleave.policy_candidate (topic_id, candidate_id);
CREATE INDEX policy_candidate_by_evidence ON cleave.policy_candidate (run_id) WHERE run_id IS NOT NULL;
COMMENT ON TABLE cleave.policy_candidate IS
    'One row per proposed policy: the parameters that it sets on top of the policy in force, who proposed it, and the outcome.';
COMMENT ON COLUMN cleave.policy_candidate.run_id IS 'Backtest that is evidence for or against the candidate; NULL: no backtest yet.';
COMMENT ON CONSTRAINT policy_candidate_state_known ON cleave.policy_candidate IS
    'A candidate is in shadow, promoted, refused or withdrawn.';
COMMENT ON CONSTRAINT policy_candidate_sets_something ON cleave.policy_candidate IS
    'A candidate is a JSON object of parameters and sets at least one.';
COMMENT ON CONSTRAINT policy_candidate_ended ON cleave.policy_candidate IS
    'A candidate that is not in shadow has the time of its end, the person who ended it, and an outcome.';
COMMENT ON INDEX cleave.policy_candidate_one_in_shadow IS
    'A topic has at most one candidate in shadow; promote or withdraw that candidate first.';

CREATE FUNCTION cleave.policy_candidate_before_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state <> 'shadow'
       OR (NEW.candidate_id, NEW.topic_id, NEW.override, NEW.proposed_at, NEW.proposed_by, NEW.reason)
          IS DISTINCT FROM (OLD.candidate_id, OLD.topic_id, OLD.override, OLD.proposed_at, OLD.proposed_by, OLD.reason) THEN
        RAISE EXCEPTION 'Rows of policy_candidate are history: only the state, evidence and outcome of a candidate in shadow may change.'
            USING ERRCODE = 'restrict_violation', CONSTRAINT = 'policy_candidate_is_history';
    ELSIF NEW.state = 'promoted' AND NOT EXISTS (
        SELECT FROM cleave.backtest_result c JOIN cleave.backtest_result l USING (run_id, topic_id)
         WHERE run_id = NEW.run_id AND topic_id = NEW.topic_id AND c.policy = 'candidate' AND l.policy = 'in-force'
        HAVING sum(c.cost) < sum(l.cost)) THEN
        RAISE EXCEPTION 'Candidate % is promoted only on a backtest of its topic in which it cost less than the policy in force.',
            NEW.candidate_id USING ERRCODE = 'check_violation', CONSTRAINT = 'policy_candidate_proved';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER policy_candidate_before_update BEFORE UPDATE ON cleave.policy_candidate
    FOR EACH ROW EXECUTE FUNCTION cleave.policy_candidate_before_update();

-- One row for each evaluation at which the candidate's outcome changed. Maintenance deletes rows older than the decision log's
-- days.
CREATE TABLE cleave.shadow_decision (
    shadow_id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    candidate_id   bigint      NOT NULL REFERENCES cleave.policy_candidate,
    topic_id       bigint      NOT NULL,
    decided_at     timestamptz NOT NULL,
    epoch          bigint      NOT NULL,
    lanes          text[]      NOT NULL,
    decided_by     text        NOT NULL,
    code_version   text        NOT NULL,
    decisions      jsonb       NOT NULL,
    refusals       jsonb       NOT NULL,
    live_decisions jsonb       NOT NULL,
    live_refusals  jsonb       NOT NULL,
    decision_id    bigint,
    outcome_digest text,
    situation      text        NOT NULL
);
CREATE INDEX shadow_decision_newest ON cleave.shadow_decision (candidate_id, shadow_id);
CREATE INDEX shadow_decision_by_age ON cleave.shadow_decision USING brin (decided_at);
COMMENT ON TABLE cleave.shadow_decision IS
    'Decisions and refusals of a candidate, with those of the live policy at the same evaluation; the former are never performed.';
COMMENT ON COLUMN cleave.shadow_decision.decision_id IS 'Decision of the live policy at the same evaluation; NULL if it wrote none.';
COMMENT ON COLUMN cleave.shadow_decision.outcome_digest IS 'Digest of the outcome; another row is written when the digest changes.';
CREATE TRIGGER shadow_decision_is_history BEFORE UPDATE ON cleave.shadow_decision
    FOR EACH ROW EXECUTE FUNCTION cleave.refuse_rewriting_history();
