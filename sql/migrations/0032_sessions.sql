-- Sessions of consumers, and who owns which bucket (PIP-468, PIP-486). The leader of a topic writes them, under the lease of
-- the topic's shard: a worker whose lease has passed on writes nothing more.

-- Where a worker answers: consumers that ask another one are sent there.
ALTER TABLE cleave.lease ADD COLUMN address text;
COMMENT ON COLUMN cleave.lease.address IS 'Web address of the worker that holds this lease; NULL where it serves none.';

ALTER TABLE cleave.subscription ADD COLUMN generation bigint NOT NULL DEFAULT 0
    CONSTRAINT subscription_generation_not_negative CHECK (generation >= 0);
COMMENT ON COLUMN cleave.subscription.generation IS 'Rises by 1 with each change of owners; a bucket carries that of its last one.';
COMMENT ON CONSTRAINT subscription_generation_not_negative ON cleave.subscription IS 'Generations only rise.';

-- An incarnation is one life of a consumer: a process that starts again under its name brings another one.
ALTER TABLE cleave.consumer ADD COLUMN incarnation text NOT NULL DEFAULT '';
COMMENT ON COLUMN cleave.consumer.incarnation IS 'Which process of that name registered; empty where nobody said.';

-- What a departed incarnation still sends arrives late and is refused.
CREATE TABLE cleave.departed_consumer (
    topic_id     bigint      NOT NULL,
    subscription text        NOT NULL,
    name         text        NOT NULL,
    incarnation  text        NOT NULL,
    reason       text        NOT NULL,
    departed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic_id, subscription, name, incarnation),
    CONSTRAINT departed_consumer_reason_known CHECK (reason IN ('left', 'expired', 'replaced')),
    CONSTRAINT departed_consumer_subscription FOREIGN KEY (topic_id, subscription) REFERENCES cleave.subscription ON DELETE CASCADE
);
COMMENT ON CONSTRAINT departed_consumer_subscription ON cleave.departed_consumer IS 'A consumer departs from a subscription that exists.';
COMMENT ON CONSTRAINT departed_consumer_reason_known ON cleave.departed_consumer IS 'A consumer left, expired or was replaced.';
CREATE INDEX departed_consumer_by_age ON cleave.departed_consumer (departed_at);

CREATE TABLE cleave.bucket_owner (
    topic_id         bigint      NOT NULL,
    subscription     text        NOT NULL,
    segment_id       bigint      NOT NULL,
    bucket_start     integer     NOT NULL,
    bucket_end       integer     NOT NULL,
    consumer         text        NOT NULL,
    generation       bigint      NOT NULL,
    owned_since      timestamptz NOT NULL DEFAULT clock_timestamp(),
    release_asked_at timestamptz,
    successor        text,
    PRIMARY KEY (topic_id, subscription, segment_id, bucket_start),
    CONSTRAINT bucket_owner_subscription FOREIGN KEY (topic_id, subscription) REFERENCES cleave.subscription ON DELETE CASCADE,
    CONSTRAINT bucket_owner_segment FOREIGN KEY (topic_id, segment_id) REFERENCES cleave.segment,
    CONSTRAINT bucket_owner_range CHECK (bucket_start BETWEEN 0 AND bucket_end AND bucket_end <= 65535),
    CONSTRAINT bucket_owner_asked_for CHECK (successor IS NULL OR release_asked_at IS NOT NULL)
) WITH (fillfactor = 70);
COMMENT ON TABLE cleave.bucket_owner IS
    'Who reads which entry bucket of which segment, since when, and whom it is being handed over to.';
COMMENT ON CONSTRAINT bucket_owner_subscription ON cleave.bucket_owner IS 'A bucket is owned for a subscription that exists.';
COMMENT ON CONSTRAINT bucket_owner_segment ON cleave.bucket_owner IS 'A bucket belongs to a segment that exists; read the layout again.';
COMMENT ON CONSTRAINT bucket_owner_range ON cleave.bucket_owner IS 'A bucket is a range of bucket hashes within 0..65535.';
COMMENT ON CONSTRAINT bucket_owner_asked_for ON cleave.bucket_owner IS 'A bucket has a successor once its owner was asked to release it.';

GRANT SELECT, INSERT, UPDATE, DELETE ON cleave.bucket_owner, cleave.departed_consumer TO cleave_controller;

CREATE FUNCTION cleave.on_generation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.generation < OLD.generation THEN
        RAISE EXCEPTION 'The generation of subscription % of topic % only rises.', OLD.name, OLD.topic_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'subscription_generation_only_rises';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER subscription_generation BEFORE UPDATE OF generation ON cleave.subscription
    FOR EACH ROW EXECUTE FUNCTION cleave.on_generation();

-- One way to register: what was found, whether the consumer is new, and why that life of it
-- has departed already, if it has. A new
-- incarnation takes the place of the one before, which departs with it.
CREATE FUNCTION cleave.register_session(
    of_topic bigint, of_subscription text, consumer_name text, of_incarnation text,
    OUT topic_name text, OUT topic_state text, OUT subscription_state text, OUT is_new boolean, OUT departed text)
LANGUAGE plpgsql AS $$
DECLARE before text;
BEGIN
    SELECT t.name, t.state, u.state INTO topic_name, topic_state, subscription_state
      FROM cleave.topic t LEFT JOIN cleave.subscription u ON u.topic_id = t.topic_id AND u.name = of_subscription
     WHERE t.topic_id = of_topic;
    IF topic_state IS DISTINCT FROM 'live' OR subscription_state IS DISTINCT FROM 'live' THEN
        RETURN;
    END IF;
    SELECT d.reason INTO departed FROM cleave.departed_consumer d
     WHERE d.topic_id = of_topic AND d.subscription = of_subscription AND d.name = consumer_name
       AND d.incarnation = of_incarnation;
    IF FOUND THEN
        RETURN;
    END IF;
    SELECT c.incarnation INTO before FROM cleave.consumer c
     WHERE c.topic_id = of_topic AND c.subscription = of_subscription AND c.name = consumer_name FOR UPDATE;
    is_new := NOT FOUND;
    IF is_new THEN
        INSERT INTO cleave.consumer (topic_id, subscription, name, incarnation)
        VALUES (of_topic, of_subscription, consumer_name, of_incarnation);
    ELSIF before <> of_incarnation THEN
        UPDATE cleave.consumer SET incarnation = of_incarnation, registered_at = clock_timestamp()
         WHERE topic_id = of_topic AND subscription = of_subscription AND name = consumer_name;
        INSERT INTO cleave.departed_consumer (topic_id, subscription, name, incarnation, reason)
        VALUES (of_topic, of_subscription, consumer_name, before, 'replaced') ON CONFLICT DO NOTHING;
    END IF;
END $$;
