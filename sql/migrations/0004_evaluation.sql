-- Work to do has one source: the table evaluation. Whatever could change an answer raises the topic's
-- input_version here, by trigger, so that no path (psql included) can forget to.

CREATE TABLE cleave.evaluation (
    topic_id         bigint PRIMARY KEY REFERENCES cleave.topic,
    input_version    bigint      NOT NULL DEFAULT 1,
    consumer_version bigint      NOT NULL DEFAULT 0,
    load_version     bigint      NOT NULL DEFAULT 0,
    merge_version    bigint      NOT NULL DEFAULT 0,
    consumer_due     timestamptz NOT NULL DEFAULT 'infinity',
    load_due         timestamptz NOT NULL DEFAULT 'infinity',
    merge_due        timestamptz NOT NULL DEFAULT 'infinity',
    not_before       timestamptz NOT NULL DEFAULT '-infinity',
    outcome_digest   text,
    CONSTRAINT evaluation_versions_known CHECK (greatest(consumer_version, load_version, merge_version) <= input_version)
) WITH (fillfactor = 70);
COMMENT ON CONSTRAINT evaluation_versions_known ON cleave.evaluation IS 'A lane has never looked at inputs that are not there yet.';
CREATE INDEX evaluation_consumer_dirty ON cleave.evaluation (topic_id) WHERE consumer_version < input_version;
CREATE INDEX evaluation_load_dirty ON cleave.evaluation (topic_id) WHERE load_version < input_version;
CREATE INDEX evaluation_merge_dirty ON cleave.evaluation (topic_id) WHERE merge_version < input_version;
CREATE INDEX evaluation_consumer_due ON cleave.evaluation (consumer_due) WHERE consumer_due < 'infinity';
CREATE INDEX evaluation_load_due ON cleave.evaluation (load_due) WHERE load_due < 'infinity';
CREATE INDEX evaluation_merge_due ON cleave.evaluation (merge_due) WHERE merge_due < 'infinity';

-- The ledger: one row for each evaluation that decided or refused something, by day.
CREATE SEQUENCE cleave.decision_id_seq;
CREATE TABLE cleave.decision (
    decision_id   bigint      NOT NULL DEFAULT nextval('cleave.decision_id_seq'),
    topic_id      bigint      NOT NULL,
    decided_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    epoch         bigint      NOT NULL,
    input_version bigint      NOT NULL,
    lanes         text[]      NOT NULL,
    decided_by    text        NOT NULL,
    code_version  text        NOT NULL,
    decisions     jsonb       NOT NULL,
    refusals      jsonb       NOT NULL,
    valid_until   timestamptz,
    situation     text        NOT NULL,
    PRIMARY KEY (decided_at, decision_id)
) PARTITION BY RANGE (decided_at);
CREATE INDEX decision_of_topic ON cleave.decision (topic_id, decision_id);
CREATE TABLE cleave.decision_default PARTITION OF cleave.decision DEFAULT;

CREATE FUNCTION cleave.raise_input(topics bigint[]) RETURNS void LANGUAGE sql AS $$
    -- ordered, so that two raisers never wait for each other crosswise
    UPDATE cleave.evaluation SET input_version = input_version + 1
     WHERE topic_id IN (SELECT topic_id FROM cleave.evaluation WHERE topic_id = ANY (topics) ORDER BY topic_id FOR UPDATE);
$$;

CREATE FUNCTION cleave.on_topic_insert() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO cleave.evaluation (topic_id) SELECT topic_id FROM added;
    RETURN NULL;
END $$;
CREATE TRIGGER topic_insert AFTER INSERT ON cleave.topic
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION cleave.on_topic_insert();

CREATE FUNCTION cleave.on_topic_policy() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM cleave.raise_input(ARRAY[NEW.topic_id]);
    PERFORM pg_notify('cleave_policy', NEW.topic_id::text);
    RETURN NULL;
END $$;
CREATE TRIGGER topic_policy AFTER UPDATE OF policy ON cleave.topic
    FOR EACH ROW WHEN (OLD.policy IS DISTINCT FROM NEW.policy) EXECUTE FUNCTION cleave.on_topic_policy();

CREATE FUNCTION cleave.on_namespace_policy() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM cleave.raise_input(ARRAY(SELECT topic_id FROM cleave.topic
        WHERE namespace = coalesce(NEW.namespace, OLD.namespace) AND state <> 'deleted'));
    PERFORM pg_notify('cleave_policy', '');
    RETURN NULL;
END $$;
CREATE TRIGGER namespace_policy_change AFTER INSERT OR UPDATE OR DELETE ON cleave.namespace_policy
    FOR EACH ROW EXECUTE FUNCTION cleave.on_namespace_policy();

CREATE FUNCTION cleave.on_cluster_policy() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM cleave.raise_input(ARRAY(SELECT topic_id FROM cleave.topic WHERE state <> 'deleted'));
    PERFORM pg_notify('cleave_policy', '');
    RETURN NULL;
END $$;
CREATE TRIGGER cluster_policy_change AFTER UPDATE ON cleave.cluster_policy
    FOR EACH ROW EXECUTE FUNCTION cleave.on_cluster_policy();

CREATE FUNCTION cleave.on_consumer_change() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE topics bigint[];
BEGIN
    topics := ARRAY(SELECT DISTINCT topic_id FROM changed ORDER BY 1);
    PERFORM cleave.raise_input(topics);
    PERFORM pg_notify('cleave_consumers', topic_id::text) FROM unnest(topics) AS topic_id;
    RETURN NULL;
END $$;
CREATE TRIGGER consumer_insert AFTER INSERT ON cleave.consumer
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION cleave.on_consumer_change();
CREATE TRIGGER consumer_delete AFTER DELETE ON cleave.consumer
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION cleave.on_consumer_change();

CREATE FUNCTION cleave.on_load_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM cleave.raise_input(ARRAY(SELECT DISTINCT topic_id FROM changed));
    IF EXISTS (SELECT FROM changed) THEN
        PERFORM pg_notify('cleave_load', '');
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER segment_load_insert AFTER INSERT ON cleave.segment_load
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION cleave.on_load_change();
CREATE TRIGGER segment_load_update AFTER UPDATE ON cleave.segment_load
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION cleave.on_load_change();

CREATE FUNCTION cleave.on_layout_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM cleave.raise_input(ARRAY[NEW.topic_id]);
    PERFORM pg_notify('cleave_layout', NEW.topic_id || ':' || NEW.epoch);
    RETURN NULL;
END $$;
CREATE TRIGGER layout_change_insert AFTER INSERT ON cleave.layout_change
    FOR EACH ROW EXECUTE FUNCTION cleave.on_layout_change();

CREATE FUNCTION cleave.on_operation_intended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('cleave_operations', NEW.topic_id || ':' || NEW.operation_id);
    RETURN NULL;
END $$;
CREATE TRIGGER operation_intended AFTER INSERT ON cleave.operation
    FOR EACH ROW EXECUTE FUNCTION cleave.on_operation_intended();

CREATE FUNCTION cleave.on_operation_aborted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM cleave.raise_input(ARRAY[NEW.topic_id]);
    RETURN NULL;
END $$;
CREATE TRIGGER operation_aborted AFTER UPDATE OF state ON cleave.operation
    FOR EACH ROW WHEN (NEW.state = 'aborted' AND OLD.state <> 'aborted') EXECUTE FUNCTION cleave.on_operation_aborted();

-- A set-wise compare-and-set of one aggregation run. A run at or behind the watermark changes nothing;
-- a row whose record moved since it was read is left alone and counted as outrun: the next run has it.
CREATE FUNCTION cleave.merge_load(
    run text, run_window_end timestamptz, run_engine text, run_samples bigint, run_segments bigint, run_quarantined text[]
) RETURNS TABLE (written bigint, outrun bigint, applied boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    staged  bigint;
    updated bigint;
    added   bigint;
BEGIN
    LOCK TABLE cleave.load_run IN SHARE ROW EXCLUSIVE MODE;  -- runs merge one after the other
    IF EXISTS (SELECT FROM cleave.load_run r WHERE r.run_id = run OR r.window_end >= run_window_end) THEN
        DELETE FROM staging.load_row s WHERE s.run_id = run;
        DELETE FROM staging.source_row s WHERE s.run_id = run;
        RETURN QUERY SELECT 0::bigint, 0::bigint, false;
        RETURN;
    END IF;
    SELECT count(*) INTO staged FROM staging.load_row s WHERE s.run_id = run;
    UPDATE cleave.segment_load l
       SET msg_rate_in = s.msg_rate_in, byte_rate_in = s.byte_rate_in, msg_rate_out = s.msg_rate_out,
           byte_rate_out = s.byte_rate_out, source = s.source, modified_at = s.modified_at,
           cold_since = s.cold_since, silent_since = s.silent_since, row_version = l.row_version + 1
      FROM staging.load_row s
     WHERE s.run_id = run AND l.topic_id = s.topic_id AND l.segment_id = s.segment_id AND l.row_version = s.seen_row_version;
    GET DIAGNOSTICS updated = ROW_COUNT;
    INSERT INTO cleave.segment_load AS l (topic_id, segment_id, msg_rate_in, byte_rate_in, msg_rate_out, byte_rate_out,
                                          source, modified_at, cold_since, silent_since)
    SELECT s.topic_id, s.segment_id, s.msg_rate_in, s.byte_rate_in, s.msg_rate_out, s.byte_rate_out,
           s.source, s.modified_at, s.cold_since, s.silent_since
      FROM staging.load_row s JOIN cleave.segment g USING (topic_id, segment_id)
     WHERE s.run_id = run AND s.seen_row_version = 0 AND g.pruned_epoch IS NULL
    ON CONFLICT (topic_id, segment_id) DO NOTHING;
    GET DIAGNOSTICS added = ROW_COUNT;
    INSERT INTO cleave.load_source AS o (source, observed_at)
    SELECT s.source, max(s.observed_at) FROM staging.source_row s WHERE s.run_id = run GROUP BY s.source
    ON CONFLICT (source) DO UPDATE SET observed_at = greatest(o.observed_at, excluded.observed_at);
    INSERT INTO cleave.load_run (run_id, window_end, engine, samples, segments, written, outrun, quarantined)
    VALUES (run, run_window_end, run_engine, run_samples, run_segments, updated + added, staged - updated - added, run_quarantined);
    DELETE FROM staging.load_row s WHERE s.run_id = run;
    DELETE FROM staging.source_row s WHERE s.run_id = run;
    RETURN QUERY SELECT updated + added, staged - updated - added, true;
END $$;

-- Thresholds in force, resolved field by field: topic, else namespace, else cluster, else default.
CREATE VIEW cleave.threshold_in_force AS
SELECT t.topic_id,
       max(value::float8) FILTER (WHERE knob = 'split_msg_rate_in')   AS split_msg_rate_in,
       max(value::float8) FILTER (WHERE knob = 'split_byte_rate_in')  AS split_byte_rate_in,
       max(value::float8) FILTER (WHERE knob = 'split_msg_rate_out')  AS split_msg_rate_out,
       max(value::float8) FILTER (WHERE knob = 'split_byte_rate_out') AS split_byte_rate_out,
       max(value::float8) FILTER (WHERE knob = 'merge_msg_rate_in')   AS merge_msg_rate_in,
       max(value::float8) FILTER (WHERE knob = 'merge_byte_rate_in')  AS merge_byte_rate_in,
       max(value::float8) FILTER (WHERE knob = 'merge_msg_rate_out')  AS merge_msg_rate_out,
       max(value::float8) FILTER (WHERE knob = 'merge_byte_rate_out') AS merge_byte_rate_out,
       max(value::float8) FILTER (WHERE knob = 'load_change_threshold') AS load_change_threshold
  FROM cleave.topic t
  LEFT JOIN cleave.namespace_policy n ON n.namespace = t.namespace
 CROSS JOIN cleave.cluster_policy c
 CROSS JOIN LATERAL (
       SELECT d.knob, coalesce(t.policy ->> d.knob, n.policy ->> d.knob, c.policy ->> d.knob, d.value #>> '{}') AS value
         FROM cleave.policy_default d
        WHERE d.knob ~ '^(split|merge)_(msg|byte)_rate_(in|out)$' OR d.knob = 'load_change_threshold') k
 WHERE t.state <> 'deleted'
 GROUP BY t.topic_id;
