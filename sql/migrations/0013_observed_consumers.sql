-- Consumers that brokers list, of applications that never register. One row a subscription in use, written when
-- something about it changed; how many consumers count for a decision is settled where situations are read.

CREATE TABLE cleave.observed_subscription (
    topic_id          bigint      NOT NULL REFERENCES cleave.topic,
    name              text        NOT NULL,
    subscription_type text        NOT NULL,
    consumers         integer     NOT NULL,
    consumer_names    text[]      NOT NULL,
    changed_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic_id, name),
    CONSTRAINT observed_subscription_in_use CHECK (consumers > 0)
);
COMMENT ON CONSTRAINT observed_subscription_in_use ON cleave.observed_subscription IS 'A subscription is listed while it has consumers.';
COMMENT ON COLUMN cleave.observed_subscription.subscription_type IS 'The broker''s word: Exclusive, Failover and Key_Shared are read in order, Shared is a queue.';
COMMENT ON COLUMN cleave.observed_subscription.consumer_names IS 'The first hundred names; a consumer without one is only counted.';

-- Names alone are for people: only what a decision reads wakes somebody.
CREATE FUNCTION cleave.on_observed_change(topics bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM cleave.raise_input(topics);
    PERFORM pg_notify('cleave_consumers', topic_id::text) FROM unnest(topics) AS topic_id;
END $$;

CREATE FUNCTION cleave.on_observed_rows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM cleave.on_observed_change(ARRAY(SELECT DISTINCT topic_id FROM changed ORDER BY 1));
    RETURN NULL;
END $$;
CREATE TRIGGER observed_subscription_insert AFTER INSERT ON cleave.observed_subscription
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION cleave.on_observed_rows();
CREATE TRIGGER observed_subscription_delete AFTER DELETE ON cleave.observed_subscription
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION cleave.on_observed_rows();

CREATE FUNCTION cleave.on_observed_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM cleave.on_observed_change(ARRAY(
        SELECT DISTINCT n.topic_id FROM now n JOIN was w USING (topic_id, name)
         WHERE (n.consumers, n.subscription_type) IS DISTINCT FROM (w.consumers, w.subscription_type) ORDER BY 1));
    RETURN NULL;
END $$;
CREATE TRIGGER observed_subscription_update AFTER UPDATE ON cleave.observed_subscription
    REFERENCING NEW TABLE AS now OLD TABLE AS was FOR EACH STATEMENT EXECUTE FUNCTION cleave.on_observed_update();

CREATE FUNCTION cleave.on_topic_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM cleave.observed_subscription WHERE topic_id = NEW.topic_id;
    RETURN NULL;
END $$;
CREATE TRIGGER topic_deleted AFTER UPDATE OF state ON cleave.topic
    FOR EACH ROW WHEN (NEW.state = 'deleted' AND OLD.state <> 'deleted') EXECUTE FUNCTION cleave.on_topic_deleted();

GRANT SELECT, INSERT, UPDATE, DELETE ON cleave.observed_subscription TO cleave_controller;
