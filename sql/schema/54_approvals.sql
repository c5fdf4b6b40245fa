-- Approvals. The actions that a policy marks wait for a person: the autoscaler proposes the action, a person answers, and an
-- approved action is carried out when the next evaluation still wants it.

CREATE TABLE cleave.approval (
    approval_id    bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic_id       bigint      NOT NULL,
    proposed_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at     timestamptz NOT NULL,
    decision_id    bigint      NOT NULL,
    epoch          bigint      NOT NULL,
    operation_id   bigint,
    answered_at    timestamptz,
    ended_at       timestamptz,
    parts          integer     NOT NULL,
    segments       integer     NOT NULL,
    kind           text        NOT NULL,
    reason         text        NOT NULL,
    proposed_by    text        NOT NULL,
    default_answer text        NOT NULL,
    state          text        NOT NULL DEFAULT 'pending',
    answered_by    text,
    outcome        text,
    asked_in       text,
    segment_ids    bigint[]    NOT NULL,
    CONSTRAINT approval_of_topic FOREIGN KEY (topic_id) REFERENCES cleave.topic,
    CONSTRAINT approval_of_operation FOREIGN KEY (operation_id) REFERENCES cleave.operation,
    CONSTRAINT approval_kind_known CHECK (kind IN ('split', 'merge', 'rebucket', 'recut')),
    CONSTRAINT approval_seals_something CHECK (cardinality(segment_ids) BETWEEN 1 AND 65536 AND parts >= 1 AND segments >= 1),
    CONSTRAINT approval_default_known CHECK (default_answer IN ('approve', 'reject')),
    CONSTRAINT approval_state_known CHECK (state IN ('pending', 'approved', 'rejected', 'expired', 'done')),
    CONSTRAINT approval_answered CHECK (
        (answered_at IS NULL) = (answered_by IS NULL) AND (state <> 'pending' OR answered_at IS NULL)
        AND (state NOT IN ('approved', 'rejected', 'done') OR answered_at IS NOT NULL)),
    CONSTRAINT approval_ended CHECK (
        (state IN ('expired', 'done')) = (ended_at IS NOT NULL) AND (state = 'pending') = (outcome IS NULL)),
    CONSTRAINT approval_done_by_operation CHECK ((state = 'done') = (operation_id IS NOT NULL))
);
CREATE UNIQUE INDEX approval_one_pending ON cleave.approval (topic_id, kind, segment_ids) WHERE state = 'pending';
CREATE INDEX approval_last_word ON cleave.approval (topic_id) WHERE state IN ('pending', 'approved', 'rejected');
CREATE INDEX approval_open ON cleave.approval (approval_id) WHERE state IN ('pending', 'approved');
CREATE INDEX approval_by_topic ON cleave.approval (topic_id, approval_id);
CREATE INDEX approval_by_operation ON cleave.approval (operation_id) WHERE operation_id IS NOT NULL;
COMMENT ON TABLE cleave.approval IS
    'Acts that wait for a person, or waited: what was proposed, until when an answer counts, who answered, and what came of it.';
COMMENT ON COLUMN cleave.approval.expires_at IS 'When the default holds, if nobody has answered.';
COMMENT ON COLUMN cleave.approval.parts IS 'Segments the act makes; of a rebucket the entry buckets.';
COMMENT ON COLUMN cleave.approval.segments IS 'Segments the act seals or makes, whichever are more.';
COMMENT ON COLUMN cleave.approval.segment_ids IS 'What the act seals, in the order of the ranges.';
COMMENT ON COLUMN cleave.approval.reason IS 'Why the act was decided, as an operation has it.';
COMMENT ON COLUMN cleave.approval.asked_in IS
    'Run of Airflow, as dag/run, in which somebody is asked under Required Actions; null while nobody is.';
COMMENT ON COLUMN cleave.approval.outcome IS 'Why it was answered so, or why it ended.';
COMMENT ON CONSTRAINT approval_of_topic ON cleave.approval IS 'What is proposed is proposed for a topic that there is.';
COMMENT ON CONSTRAINT approval_of_operation ON cleave.approval IS
    'What was approved is carried out by an operation of the journal.';
COMMENT ON CONSTRAINT approval_kind_known ON cleave.approval IS 'What is proposed is a split, merge, rebucket or recut.';
COMMENT ON CONSTRAINT approval_seals_something ON cleave.approval IS 'An act seals at least one segment and makes at least one.';
COMMENT ON CONSTRAINT approval_default_known ON cleave.approval IS 'Without an answer an act is approved or rejected.';
COMMENT ON CONSTRAINT approval_state_known ON cleave.approval IS 'A proposal is pending, approved, rejected, expired or done.';
COMMENT ON CONSTRAINT approval_answered ON cleave.approval IS
    'An answer is given at an instant by somebody, and what is pending has none.';
COMMENT ON CONSTRAINT approval_ended ON cleave.approval IS
    'What is expired or done ended at an instant, and what is not pending says why.';
COMMENT ON CONSTRAINT approval_done_by_operation ON cleave.approval IS 'An approved act is done when an operation carries it out.';
COMMENT ON INDEX cleave.approval_one_pending IS 'An act of a topic is proposed once at a time: answer that proposal.';

CREATE FUNCTION cleave.approval_before_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (OLD.state, NEW.state) NOT IN (('pending', 'approved'), ('pending', 'rejected'), ('pending', 'expired'),
                                      ('approved', 'done'), ('approved', 'expired'))
       AND NOT (OLD.state = 'pending' AND NEW.state = 'pending' AND OLD.asked_in IS NULL AND NEW.asked_in IS NOT NULL)
       OR (OLD.asked_in IS NOT NULL AND NEW.asked_in IS DISTINCT FROM OLD.asked_in)
       OR (OLD.answered_at IS NOT NULL AND (NEW.answered_at, NEW.answered_by) IS DISTINCT FROM (OLD.answered_at, OLD.answered_by))
       OR (NEW.approval_id, NEW.topic_id, NEW.proposed_at, NEW.expires_at, NEW.decision_id, NEW.epoch, NEW.parts, NEW.segments,
           NEW.kind, NEW.reason, NEW.proposed_by, NEW.default_answer, NEW.segment_ids)
          IS DISTINCT FROM
          (OLD.approval_id, OLD.topic_id, OLD.proposed_at, OLD.expires_at, OLD.decision_id, OLD.epoch, OLD.parts, OLD.segments,
           OLD.kind, OLD.reason, OLD.proposed_by, OLD.default_answer, OLD.segment_ids) THEN
        RAISE EXCEPTION 'Rows of approval are history: a proposal is answered once, and only what was approved is done.'
            USING ERRCODE = 'restrict_violation', CONSTRAINT = 'approval_is_history';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER approval_before_update BEFORE UPDATE ON cleave.approval
    FOR EACH ROW EXECUTE FUNCTION cleave.approval_before_update();

-- An answer is an input of the next decision. What is done was written by a decision itself. Once a statement, so that two that
-- settle many proposals raise their topics in the same order.
CREATE FUNCTION cleave.approval_after_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM cleave.raise_input(ARRAY(
        SELECT DISTINCT now.topic_id FROM now_answered now JOIN was_pending was USING (approval_id)
         WHERE now.state <> was.state AND now.state <> 'done'));
    RETURN NULL;
END $$;
CREATE TRIGGER approval_after_update AFTER UPDATE ON cleave.approval
    REFERENCING OLD TABLE AS was_pending NEW TABLE AS now_answered
    FOR EACH STATEMENT EXECUTE FUNCTION cleave.approval_after_update();
