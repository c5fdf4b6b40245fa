-- Approvals: permissions of a person. The subject of an approval is an operation that a policy holds back, a proposal of the bundle
-- balancer, or the promotion of a candidate. Proposals and candidates have rows in their own tables. An operation has no row before it
-- is approved, so its plan is stored here.

CREATE TABLE cleave.approval (
    approval_id    bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    subject_id     bigint      NOT NULL,
    topic_id       bigint      REFERENCES cleave.topic,
    proposed_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at     timestamptz NOT NULL,
    answered_at    timestamptz,
    ended_at       timestamptz,
    epoch          bigint,
    operation_id   bigint      REFERENCES cleave.operation,
    parts          integer,
    segments       integer,
    subject        text        NOT NULL,
    action         text        NOT NULL,
    reason         text        NOT NULL,
    proposed_by    text        NOT NULL,
    default_answer text        NOT NULL,
    state          text        NOT NULL DEFAULT 'pending',
    answered_by    text,
    outcome        text,
    asked_in       text,
    kind           text,
    segment_ids    bigint[],
    CONSTRAINT approval_subject_known CHECK (subject IN ('operation', 'bundle-proposal', 'promotion')),
    CONSTRAINT approval_operation_whole CHECK (
        num_nonnulls(kind, segment_ids, parts, segments, epoch) = CASE subject WHEN 'operation' THEN 5 ELSE 0 END
        AND (subject <> 'operation' OR topic_id IS NOT NULL)),
    CONSTRAINT approval_kind_known CHECK (kind IN ('split', 'merge', 'rebucket', 'recut')),
    CONSTRAINT approval_seals_something CHECK (cardinality(segment_ids) BETWEEN 1 AND 65536 AND parts >= 1 AND segments >= 1),
    CONSTRAINT approval_default_known CHECK (default_answer IN ('approve', 'reject')),
    CONSTRAINT approval_state_known CHECK (state IN ('pending', 'approved', 'rejected', 'expired', 'done')),
    CONSTRAINT approval_answered CHECK (
        (answered_at IS NULL) = (answered_by IS NULL) AND (state <> 'pending' OR answered_at IS NULL)
        AND (state NOT IN ('approved', 'rejected', 'done') OR answered_at IS NOT NULL)),
    CONSTRAINT approval_ended CHECK (
        (state IN ('expired', 'done')) = (ended_at IS NOT NULL) AND (state = 'pending') = (outcome IS NULL)),
    CONSTRAINT approval_done_by_operation CHECK ((state = 'done' AND subject = 'operation') = (operation_id IS NOT NULL))
);
CREATE UNIQUE INDEX approval_one_pending ON cleave.approval (topic_id, kind, segment_ids) WHERE state = 'pending' AND subject = 'operation';
CREATE UNIQUE INDEX approval_one_of_subject ON cleave.approval (subject, subject_id) WHERE state = 'pending' AND subject <> 'operation';
CREATE INDEX approval_last_word ON cleave.approval (topic_id)
    WHERE state IN ('pending', 'approved', 'rejected') AND subject = 'operation';
CREATE INDEX approval_open ON cleave.approval (approval_id) WHERE state IN ('pending', 'approved');
CREATE INDEX approval_open_of_subject ON cleave.approval (subject, subject_id) WHERE state IN ('pending', 'approved');
CREATE INDEX approval_by_topic ON cleave.approval (topic_id, approval_id);
COMMENT ON TABLE cleave.approval IS
    'One row per action that needs, or needed, an approval: the proposal, its expiry, the answer, and the outcome.';
COMMENT ON COLUMN cleave.approval.subject_id IS
    'Id of the subject: the decision that chose the operation, the bundle proposal, or the candidate to promote.';
COMMENT ON COLUMN cleave.approval.topic_id IS 'Topic of the subject; NULL for a subject of the cluster.';
COMMENT ON COLUMN cleave.approval.action IS 'Short text of the action that needs the approval.';
COMMENT ON CONSTRAINT approval_subject_known ON cleave.approval IS 'An approval is about an operation, a bundle proposal or a promotion.';
COMMENT ON CONSTRAINT approval_operation_whole ON cleave.approval IS
    'The approval of an operation has the plan of the operation and a topic; the approval of another subject has no plan.';
COMMENT ON CONSTRAINT approval_kind_known ON cleave.approval IS 'The kind of an approved operation is split, merge, rebucket or recut.';
COMMENT ON CONSTRAINT approval_seals_something ON cleave.approval IS 'An operation seals at least one segment and creates at least one.';
COMMENT ON CONSTRAINT approval_default_known ON cleave.approval IS 'The default answer of an approval is approve or reject.';
COMMENT ON CONSTRAINT approval_state_known ON cleave.approval IS 'An approval is pending, approved, rejected, expired or done.';
COMMENT ON CONSTRAINT approval_answered ON cleave.approval IS
    'An approved, rejected or done approval has the time of the answer and the person who answered; a pending approval has neither.';
COMMENT ON CONSTRAINT approval_ended ON cleave.approval IS
    'An expired or done approval has the time of its end, and an approval that is not pending has an outcome.';
COMMENT ON CONSTRAINT approval_done_by_operation ON cleave.approval IS
    'The approval of an operation is done exactly when it has the id of the operation that performs the action.';
COMMENT ON INDEX cleave.approval_one_pending IS 'An action of a topic has one pending approval at a time; answer that approval.';
COMMENT ON INDEX cleave.approval_one_of_subject IS 'A subject has one pending approval at a time; answer that approval.';

-- `controller/domain/approval_states.py` declares these transitions too; a test compares the two lists.
CREATE FUNCTION cleave.approval_before_update() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE changing CONSTANT text[] := '{state, answered_at, answered_by, outcome, ended_at, asked_in, operation_id}';
BEGIN
    IF (OLD.state, NEW.state) NOT IN (('pending', 'approved'), ('pending', 'rejected'), ('pending', 'expired'),
                                      ('approved', 'done'), ('approved', 'expired'))
       AND NOT (OLD.state = 'pending' AND NEW.state = 'pending' AND OLD.asked_in IS NULL AND NEW.asked_in IS NOT NULL)
       OR (OLD.asked_in IS NOT NULL AND NEW.asked_in IS DISTINCT FROM OLD.asked_in)
       OR (OLD.answered_at IS NOT NULL AND (NEW.answered_at, NEW.answered_by) IS DISTINCT FROM (OLD.answered_at, OLD.answered_by))
       OR to_jsonb(NEW) - changing IS DISTINCT FROM to_jsonb(OLD) - changing THEN
        RAISE EXCEPTION 'Rows of approval are history: an approval is answered once, and only an approved action is done.'
            USING ERRCODE = 'restrict_violation', CONSTRAINT = 'approval_is_history';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER approval_before_update BEFORE UPDATE ON cleave.approval
    FOR EACH ROW EXECUTE FUNCTION cleave.approval_before_update();

-- The answer about an operation is an input of the next decision; the state `done` is not, because a decision itself sets it. The trigger
-- runs once per statement, so that two statements that answer many approvals lock the topics in the same order.
CREATE FUNCTION cleave.approval_after_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM cleave.raise_input(ARRAY(
        SELECT DISTINCT now.topic_id FROM now_answered now JOIN was_pending was USING (approval_id)
         WHERE now.state <> was.state AND now.state <> 'done' AND now.subject = 'operation'));
    RETURN NULL;
END $$;
CREATE TRIGGER approval_after_update AFTER UPDATE ON cleave.approval
    REFERENCING OLD TABLE AS was_pending NEW TABLE AS now_answered
    FOR EACH STATEMENT EXECUTE FUNCTION cleave.approval_after_update();
