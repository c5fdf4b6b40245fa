-- Work of the autoscaler. The table evaluation is the only source of that work. Triggers raise input_version of a topic with each change
-- of an input of a decision, so that every path of a change, including psql, has that effect.

CREATE TABLE cleave.evaluation (
    topic_id             bigint      PRIMARY KEY REFERENCES cleave.topic,
    input_version        bigint      NOT NULL DEFAULT 1,
    consumer_version     bigint      NOT NULL DEFAULT 0,
    load_version         bigint      NOT NULL DEFAULT 0,
    merge_version        bigint      NOT NULL DEFAULT 0,
    consumer_due         timestamptz NOT NULL DEFAULT 'infinity',
    load_due             timestamptz NOT NULL DEFAULT 'infinity',
    merge_due            timestamptz NOT NULL DEFAULT 'infinity',
    not_before           timestamptz NOT NULL DEFAULT '-infinity',
    outcome_digest       text,
    -- The number of buckets is lowered only if no consumer has joined or left for some time.
    consumers_changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    reconnections_left   double precision,
    reconnections_at     timestamptz,
    CONSTRAINT evaluation_versions_known CHECK (greatest(consumer_version, load_version, merge_version) <= input_version)
) WITH (fillfactor = 70);
CREATE INDEX evaluation_consumer_dirty ON cleave.evaluation (topic_id) WHERE consumer_version < input_version;
CREATE INDEX evaluation_load_dirty ON cleave.evaluation (topic_id) WHERE load_version < input_version;
CREATE INDEX evaluation_merge_dirty ON cleave.evaluation (topic_id) WHERE merge_version < input_version;
CREATE INDEX evaluation_consumer_due ON cleave.evaluation (consumer_due) WHERE consumer_due < 'infinity';
CREATE INDEX evaluation_load_due ON cleave.evaluation (load_due) WHERE load_due < 'infinity';
CREATE INDEX evaluation_merge_due ON cleave.evaluation (merge_due) WHERE merge_due < 'infinity';
-- A worker that waits for its next work reads the end of the next pause. The index is small, because few topics were ever paused.
CREATE INDEX evaluation_paused ON cleave.evaluation (not_before) WHERE not_before > '-infinity';
COMMENT ON COLUMN cleave.evaluation.consumers_changed_at IS 'Time at which a registered or observed consumer last joined or left.';
COMMENT ON COLUMN cleave.evaluation.reconnections_left IS
    'Budget of reconnecting clients at reconnections_at; it grows from then at the policy''s rate. NULL: the full budget of the policy.';
COMMENT ON CONSTRAINT evaluation_versions_known ON cleave.evaluation IS 'The version of a lane is at most the version of the inputs.';

-- The budget of reconnections that the profile `adaptive` may spend in the cluster.
CREATE TABLE cleave.cluster_reconnections (
    singleton          boolean          PRIMARY KEY DEFAULT true,
    reconnections_left double precision,
    reconnections_at   timestamptz,
    CONSTRAINT cluster_reconnections_one_row CHECK (singleton)
);
INSERT INTO cleave.cluster_reconnections DEFAULT VALUES;
COMMENT ON CONSTRAINT cluster_reconnections_one_row ON cleave.cluster_reconnections IS 'The cluster has one budget of reconnections.';

-- The condition on the key makes the planner use the index even without statistics; a join might read the whole table.
CREATE FUNCTION cleave.raise_input(topics bigint[]) RETURNS void LANGUAGE sql AS $$
    -- Rows are locked in the order of their ids, so that two callers cannot deadlock.
    UPDATE cleave.evaluation SET input_version = input_version + 1
     WHERE topic_id = ANY (ARRAY(
           SELECT topic_id FROM cleave.evaluation WHERE topic_id = ANY (topics) ORDER BY topic_id FOR UPDATE));
$$;

CREATE FUNCTION cleave.on_topic_insert() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO cleave.evaluation (topic_id) SELECT topic_id FROM added;
    RETURN NULL;
END $$;
CREATE TRIGGER topic_insert AFTER INSERT ON cleave.topic
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION cleave.on_topic_insert();

-- Raises the input version of the row's topic, and notifies the channel in the trigger's argument, if the trigger has one. Also called
-- when the broker's own auto-scaler of a mirrored topic is turned on or off (70_mirrors.sql).
CREATE FUNCTION cleave.on_topic_input() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM cleave.raise_input(ARRAY[NEW.topic_id]);
    PERFORM pg_notify(channel, NEW.topic_id::text) FROM unnest(TG_ARGV) AS channel;
    RETURN NULL;
END $$;
CREATE TRIGGER topic_policy AFTER UPDATE OF policy ON cleave.topic
    FOR EACH ROW WHEN (OLD.policy IS DISTINCT FROM NEW.policy) EXECUTE FUNCTION cleave.on_topic_input('cleave_policy');

CREATE FUNCTION cleave.on_shared_policy() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE of_namespace CONSTANT text := to_jsonb(coalesce(NEW, OLD)) ->> 'namespace';  -- NULL: the policy of the cluster
BEGIN
    PERFORM cleave.raise_input(ARRAY(SELECT topic_id FROM cleave.topic
        WHERE (namespace = of_namespace OR of_namespace IS NULL) AND state <> 'deleted'));
    PERFORM pg_notify('cleave_policy', '');
    RETURN NULL;
END $$;
CREATE TRIGGER namespace_policy_change AFTER INSERT OR UPDATE OR DELETE ON cleave.namespace_policy
    FOR EACH ROW EXECUTE FUNCTION cleave.on_shared_policy();
CREATE TRIGGER cluster_policy_change AFTER UPDATE ON cleave.cluster_policy FOR EACH ROW EXECUTE FUNCTION cleave.on_shared_policy();

CREATE FUNCTION cleave.note_consumer_change(topics bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM cleave.raise_input(topics);
    UPDATE cleave.evaluation SET consumers_changed_at = clock_timestamp() WHERE topic_id = ANY (topics);
    PERFORM pg_notify('cleave_consumers', topic_id::text) FROM unnest(topics) AS topic_id;
END $$;

CREATE FUNCTION cleave.on_consumer_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM cleave.note_consumer_change(ARRAY(SELECT DISTINCT topic_id FROM changed ORDER BY 1));
    RETURN NULL;
END $$;
CREATE TRIGGER consumer_insert AFTER INSERT ON cleave.consumer
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION cleave.on_consumer_change();
CREATE TRIGGER consumer_delete AFTER DELETE ON cleave.consumer
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION cleave.on_consumer_change();

CREATE TRIGGER subscription_sharing AFTER UPDATE OF parents_block, drain_consumers ON cleave.subscription
    FOR EACH ROW WHEN ((OLD.parents_block, OLD.drain_consumers) IS DISTINCT FROM (NEW.parents_block, NEW.drain_consumers))
    EXECUTE FUNCTION cleave.notify_of_row('cleave_drains', 'topic_id');

-- A change of the consumers that read a subscription changes the consumers that decisions count.
CREATE FUNCTION cleave.on_readers_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM cleave.note_consumer_change(ARRAY[NEW.topic_id]);
    RETURN NULL;
END $$;
CREATE TRIGGER subscription_readers AFTER UPDATE OF consumers ON cleave.subscription
    FOR EACH ROW WHEN (OLD.consumers <> NEW.consumers) EXECUTE FUNCTION cleave.on_readers_changed();

CREATE TRIGGER observed_subscription_insert AFTER INSERT ON cleave.observed_subscription
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION cleave.on_consumer_change();
CREATE TRIGGER observed_subscription_delete AFTER DELETE ON cleave.observed_subscription
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION cleave.on_consumer_change();

-- Decisions do not read the names of consumers, so a change of names alone wakes no evaluation.
CREATE FUNCTION cleave.on_observed_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM cleave.note_consumer_change(ARRAY(
        SELECT DISTINCT n.topic_id FROM now n JOIN was w USING (topic_id, name)
         WHERE (n.consumers, n.subscription_type) IS DISTINCT FROM (w.consumers, w.subscription_type) ORDER BY 1));
    RETURN NULL;
END $$;
CREATE TRIGGER observed_subscription_update AFTER UPDATE ON cleave.observed_subscription
    REFERENCING NEW TABLE AS now OLD TABLE AS was FOR EACH STATEMENT EXECUTE FUNCTION cleave.on_observed_update();

CREATE FUNCTION cleave.on_load_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO cleave.load_history SELECT * FROM changed;
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

-- One statement may change many layouts. Raising the input versions of their topics together costs as much as for one topic.
CREATE FUNCTION cleave.on_layout_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM cleave.raise_input(ARRAY(SELECT DISTINCT topic_id FROM added));
    PERFORM pg_notify('cleave_layout', topic_id || ':' || epoch) FROM added ORDER BY topic_id, epoch;
    INSERT INTO cleave.topic_tally AS t (topic_id, tally, kind, because, total)
    SELECT topic_id, 'change', kind, origin, count(*) FROM added GROUP BY topic_id, kind, origin ORDER BY topic_id, kind, origin
        ON CONFLICT (topic_id, tally, kind, because) DO UPDATE SET total = t.total + excluded.total;
    RETURN NULL;
END $$;
CREATE TRIGGER layout_change_insert AFTER INSERT ON cleave.layout_change
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION cleave.on_layout_change();

CREATE TRIGGER operation_intended AFTER INSERT ON cleave.operation
    FOR EACH ROW EXECUTE FUNCTION cleave.notify_of_row('cleave_operations', 'topic_id', 'operation_id');
CREATE TRIGGER operation_aborted AFTER UPDATE OF state ON cleave.operation
    FOR EACH ROW WHEN (NEW.state = 'aborted' AND OLD.state <> 'aborted') EXECUTE FUNCTION cleave.on_topic_input();
