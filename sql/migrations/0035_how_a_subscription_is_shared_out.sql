-- How a subscription is shared out, as operators set it, and what lowering its buckets waits for.

ALTER TABLE cleave.subscription
    ADD COLUMN parents_block boolean NOT NULL DEFAULT true,
    ADD COLUMN drain_consumers integer NOT NULL DEFAULT 1
        CONSTRAINT subscription_drain_consumers_positive CHECK (drain_consumers BETWEEN 1 AND 65536);
COMMENT ON COLUMN cleave.subscription.parents_block IS
    'Whether a segment is handed out only when all that it descends from is read. False: lag matters more than the order of a key.';
COMMENT ON COLUMN cleave.subscription.drain_consumers IS
    'So many consumers at most share the entry buckets of a sealed segment until it is read, beside what else they read.';
COMMENT ON CONSTRAINT subscription_drain_consumers_positive ON cleave.subscription IS
    'A sealed segment is read by 1 to 65536 consumers.';

CREATE FUNCTION cleave.on_sharing_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('cleave_drains', NEW.topic_id::text);
    RETURN NULL;
END $$;
CREATE TRIGGER subscription_sharing AFTER UPDATE OF parents_block, drain_consumers ON cleave.subscription
    FOR EACH ROW WHEN ((OLD.parents_block, OLD.drain_consumers) IS DISTINCT FROM (NEW.parents_block, NEW.drain_consumers))
    EXECUTE FUNCTION cleave.on_sharing_changed();

-- Buckets are lowered only when nobody has come or gone for a while.
ALTER TABLE cleave.evaluation ADD COLUMN consumers_changed_at timestamptz NOT NULL DEFAULT clock_timestamp();
COMMENT ON COLUMN cleave.evaluation.consumers_changed_at IS
    'When a consumer of the topic last came or went, registered or observed.';

CREATE OR REPLACE FUNCTION cleave.on_consumer_change() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE topics bigint[];
BEGIN
    topics := ARRAY(SELECT DISTINCT topic_id FROM changed ORDER BY 1);
    PERFORM cleave.raise_input(topics);
    UPDATE cleave.evaluation SET consumers_changed_at = clock_timestamp() WHERE topic_id = ANY (topics);
    PERFORM pg_notify('cleave_consumers', topic_id::text) FROM unnest(topics) AS topic_id;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION cleave.on_observed_change(topics bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM cleave.raise_input(topics);
    UPDATE cleave.evaluation SET consumers_changed_at = clock_timestamp() WHERE topic_id = ANY (topics);
    PERFORM pg_notify('cleave_consumers', topic_id::text) FROM unnest(topics) AS topic_id;
END $$;

-- Only so many departed lives of a subscription are remembered: anybody with a token can say goodbye for lives that never were.
CREATE INDEX departed_consumer_of_subscription ON cleave.departed_consumer (topic_id, subscription, departed_at);
