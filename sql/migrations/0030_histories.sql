-- What the load was, and what the policy was: without a history neither a decision nor an act by hand can be judged later.

-- One row for each load record as it was written. Only material changes are written, so this grows with what happens,
-- not with the number of segments; maintenance deletes what is older than the ledger's days.
CREATE TABLE cleave.load_history (
    topic_id      bigint           NOT NULL,
    segment_id    bigint           NOT NULL,
    msg_rate_in   double precision NOT NULL,
    byte_rate_in  double precision NOT NULL,
    msg_rate_out  double precision NOT NULL,
    byte_rate_out double precision NOT NULL,
    source        text             NOT NULL,
    modified_at   timestamptz      NOT NULL,
    cold_since    timestamptz,
    silent_since  timestamptz,
    recorded_at   timestamptz      NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX load_history_of_segment ON cleave.load_history (topic_id, segment_id, recorded_at);
CREATE INDEX load_history_by_age ON cleave.load_history USING brin (recorded_at);
COMMENT ON TABLE cleave.load_history IS 'Every load record as it was written; recorded_at is when, by the database''s clock.';
INSERT INTO cleave.load_history
SELECT topic_id, segment_id, msg_rate_in, byte_rate_in, msg_rate_out, byte_rate_out, source, modified_at, cold_since, silent_since, modified_at
  FROM cleave.segment_load;

CREATE OR REPLACE FUNCTION cleave.on_load_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO cleave.load_history (topic_id, segment_id, msg_rate_in, byte_rate_in, msg_rate_out, byte_rate_out,
                                     source, modified_at, cold_since, silent_since)
    SELECT topic_id, segment_id, msg_rate_in, byte_rate_in, msg_rate_out, byte_rate_out, source, modified_at, cold_since, silent_since
      FROM changed;
    PERFORM cleave.raise_input(ARRAY(SELECT DISTINCT topic_id FROM changed));
    IF EXISTS (SELECT FROM changed) THEN
        PERFORM pg_notify('cleave_load', '');
    END IF;
    RETURN NULL;
END $$;

-- One row for each change of a stored policy, at any level, by whatever path it came.
CREATE TABLE cleave.policy_change (
    change_id  bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    level      text        NOT NULL,
    name       text,
    topic_id   bigint,
    actor      text        NOT NULL,
    before     jsonb       NOT NULL,
    after      jsonb       NOT NULL,
    CONSTRAINT policy_change_level_known CHECK (level IN ('cluster', 'namespace', 'topic')),
    CONSTRAINT policy_change_named CHECK ((level = 'cluster') = (name IS NULL) AND (level = 'topic') = (topic_id IS NOT NULL))
);
CREATE INDEX policy_change_of ON cleave.policy_change (level, name, change_id);
COMMENT ON CONSTRAINT policy_change_level_known ON cleave.policy_change IS 'A policy is of the cluster, a namespace or a topic.';
COMMENT ON CONSTRAINT policy_change_named ON cleave.policy_change IS 'A namespace and a topic are named, and a topic has its id.';
CREATE TRIGGER policy_change_is_history BEFORE UPDATE OR DELETE ON cleave.policy_change
    FOR EACH ROW EXECUTE FUNCTION cleave.refuse_rewriting_history();

-- The program says who changes a policy in the transaction's setting cleave.actor; else it is the login. The actor of the row
-- does not count: a hand that writes the policy alone leaves the name of whoever wrote it before.
CREATE FUNCTION cleave.note_policy_change() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    was jsonb := CASE WHEN TG_OP = 'INSERT' THEN '{}' ELSE coalesce(OLD.policy, '{}') END;
    now jsonb := CASE WHEN TG_OP = 'DELETE' THEN '{}' ELSE coalesce(NEW.policy, '{}') END;
    who text := coalesce(nullif(current_setting('cleave.actor', true), ''), session_user::text);
BEGIN
    IF was = now THEN
        RETURN NULL;
    ELSIF TG_ARGV[0] = 'topic' THEN
        INSERT INTO cleave.policy_change (level, name, topic_id, actor, before, after) VALUES ('topic', NEW.name, NEW.topic_id, who, was, now);
    ELSIF TG_ARGV[0] = 'cluster' THEN
        INSERT INTO cleave.policy_change (level, actor, before, after) VALUES ('cluster', who, was, now);
    ELSE
        INSERT INTO cleave.policy_change (level, name, actor, before, after)
        VALUES ('namespace', coalesce(NEW.namespace, OLD.namespace), who, was, now);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER cluster_policy_history AFTER UPDATE ON cleave.cluster_policy
    FOR EACH ROW EXECUTE FUNCTION cleave.note_policy_change('cluster');
CREATE TRIGGER namespace_policy_history AFTER INSERT OR UPDATE OR DELETE ON cleave.namespace_policy
    FOR EACH ROW EXECUTE FUNCTION cleave.note_policy_change('namespace');
CREATE TRIGGER topic_policy_history AFTER UPDATE OF policy ON cleave.topic
    FOR EACH ROW WHEN (OLD.policy IS DISTINCT FROM NEW.policy) EXECUTE FUNCTION cleave.note_policy_change('topic');
CREATE TRIGGER topic_policy_first AFTER INSERT ON cleave.topic
    FOR EACH ROW WHEN (NEW.policy IS NOT NULL) EXECUTE FUNCTION cleave.note_policy_change('topic');

GRANT SELECT, INSERT, DELETE ON cleave.load_history TO cleave_controller;
GRANT SELECT, INSERT ON cleave.policy_change TO cleave_controller;
