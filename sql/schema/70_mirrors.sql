-- Mirrored topics, whose layout a broker keeps (Pulsar 5): the earlier policy of the broker's auto-scaler, and the reason for a pause.

CREATE TABLE cleave.mirror (
    topic_id      bigint      PRIMARY KEY REFERENCES cleave.topic,
    policy_before jsonb,
    paused_reason text,
    seen_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    row_version   bigint      NOT NULL DEFAULT 1,
    checked_epoch bigint      NOT NULL DEFAULT -1,
    CONSTRAINT mirror_policy_is_object CHECK (policy_before IS NULL OR jsonb_typeof(policy_before) = 'object')
);
CREATE INDEX mirror_by_age ON cleave.mirror (seen_at);
COMMENT ON TABLE cleave.mirror IS 'One row per topic whose layout its broker keeps.';
COMMENT ON COLUMN cleave.mirror.policy_before IS 'Policy of the topic''s auto-scaler, put back by detaching; NULL: it had none.';
COMMENT ON COLUMN cleave.mirror.checked_epoch IS 'Newest layout epoch at which every ACTIVE segment had its log; -1: none yet.';
COMMENT ON CONSTRAINT mirror_policy_is_object ON cleave.mirror IS 'The policy of the auto-scaler is a JSON object, or NULL.';

-- The pause is an input of every decision about the topic.
CREATE TRIGGER mirror_paused AFTER UPDATE OF paused_reason ON cleave.mirror
    FOR EACH ROW WHEN (OLD.paused_reason IS DISTINCT FROM NEW.paused_reason) EXECUTE FUNCTION cleave.on_topic_input('cleave_policy');
