-- Consumer sessions, and the owner of each entry bucket (PIP-468, PIP-486).
--
-- The leader of a topic writes these rows, under the lease of the topic's shard: a worker whose lease has passed on writes nothing
-- more.

CREATE TABLE cleave.consumer (
    topic_id        bigint      NOT NULL,
    subscription    text        NOT NULL,
    name            text        NOT NULL,
    registered_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- An incarnation is one life of a consumer: a process that starts again under its name brings another one.
    incarnation     text        NOT NULL DEFAULT '',
    disconnected_at timestamptz,
    -- The tokens of other subjects neither continue nor end the session.
    subject         text,
    PRIMARY KEY (topic_id, subscription, name),
    CONSTRAINT consumer_of_subscription FOREIGN KEY (topic_id, subscription) REFERENCES cleave.subscription ON DELETE CASCADE,
    CONSTRAINT consumer_name_form CHECK (name ~ '^[^[:space:]]+$')
);
COMMENT ON COLUMN cleave.consumer.incarnation IS 'Which process of that name registered; empty where nobody said.';
COMMENT ON COLUMN cleave.consumer.disconnected_at IS
    'Time at which the topic''s leader lost the consumer''s stream, set after 2 seconds; NULL while connected.';
COMMENT ON COLUMN cleave.consumer.subject IS
    'Subject of the token that began the session; NULL where the consumer was registered without a token.';
COMMENT ON CONSTRAINT consumer_of_subscription ON cleave.consumer IS
    'A consumer registers with a subscription that exists; create it first.';
COMMENT ON CONSTRAINT consumer_name_form ON cleave.consumer IS 'A consumer name is not empty and has no spaces.';
CREATE TRIGGER consumer_name_is_printable BEFORE INSERT ON cleave.consumer
    FOR EACH ROW WHEN (NOT cleave.is_name(NEW.name)) EXECUTE FUNCTION cleave.demand_name();

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
CREATE INDEX departed_consumer_by_age ON cleave.departed_consumer (departed_at);
-- Only so many departed lives of a subscription are remembered: anybody with a token can say goodbye for lives that never were.
CREATE INDEX departed_consumer_of_subscription ON cleave.departed_consumer (topic_id, subscription, departed_at);
COMMENT ON CONSTRAINT departed_consumer_subscription ON cleave.departed_consumer IS 'A consumer departs from a subscription that exists.';
COMMENT ON CONSTRAINT departed_consumer_reason_known ON cleave.departed_consumer IS 'A consumer left, expired or was replaced.';

-- One way to register a consumer, for the client that runs in applications and for the command line.
--
-- The answer holds the state of the topic and of the subscription, NULL where there is no such row, and the caller words the
-- refusal. A consumer is registered only if both are live. is_new says that it was not registered before; it is NULL where nothing
-- was written.
CREATE FUNCTION cleave.register_consumer(
    of_topic bigint, of_subscription text, consumer_name text,
    OUT topic_name text, OUT topic_state text, OUT subscription_state text, OUT is_new boolean) LANGUAGE plpgsql AS $$
BEGIN
    SELECT t.name, t.state, u.state INTO topic_name, topic_state, subscription_state
      FROM cleave.topic t LEFT JOIN cleave.subscription u ON u.topic_id = t.topic_id AND u.name = of_subscription
     WHERE t.topic_id = of_topic;
    IF topic_state = 'live' AND subscription_state = 'live' THEN
        INSERT INTO cleave.consumer (topic_id, subscription, name) VALUES (of_topic, of_subscription, consumer_name)
        ON CONFLICT (topic_id, subscription, name) DO NOTHING;
        is_new := FOUND;
    END IF;
END $$;

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
    said             text,
    said_since       timestamptz,
    PRIMARY KEY (topic_id, subscription, segment_id, bucket_start),
    CONSTRAINT bucket_owner_subscription FOREIGN KEY (topic_id, subscription) REFERENCES cleave.subscription ON DELETE CASCADE,
    CONSTRAINT bucket_owner_segment FOREIGN KEY (topic_id, segment_id) REFERENCES cleave.segment,
    CONSTRAINT bucket_owner_range CHECK (bucket_start BETWEEN 0 AND bucket_end AND bucket_end <= 65535),
    CONSTRAINT bucket_owner_asked_for CHECK (successor IS NULL OR release_asked_at IS NOT NULL),
    CONSTRAINT bucket_owner_said CHECK ((said IS NULL) = (said_since IS NULL))
) WITH (fillfactor = 70);
COMMENT ON TABLE cleave.bucket_owner IS 'Owner of an entry bucket, since when, and the successor to which it is handed over.';
COMMENT ON COLUMN cleave.bucket_owner.said IS 'Why nothing comes of it, as its owner has told; NULL while it reads.';
COMMENT ON COLUMN cleave.bucket_owner.said_since IS 'When that began.';
COMMENT ON CONSTRAINT bucket_owner_subscription ON cleave.bucket_owner IS 'A bucket is owned for a subscription that exists.';
COMMENT ON CONSTRAINT bucket_owner_segment ON cleave.bucket_owner IS 'A bucket belongs to a segment that exists; read the layout again.';
COMMENT ON CONSTRAINT bucket_owner_range ON cleave.bucket_owner IS 'A bucket is a range of bucket hashes within 0..65535.';
COMMENT ON CONSTRAINT bucket_owner_asked_for ON cleave.bucket_owner IS 'A bucket has a successor once its owner was asked to release it.';
COMMENT ON CONSTRAINT bucket_owner_said ON cleave.bucket_owner IS 'What an owner says of a bucket began at an instant.';

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

-- One way to register a session. The answer holds the state of the topic and of the subscription, whether the consumer is new, and
-- why this incarnation of it has departed already, if it has. A new incarnation takes the place of the one before, which departs.
--
-- `of_subject` is NULL for programs that do not know of subjects. The answer `departed` is `foreign` where a session of this name
-- belongs to another subject; nothing is written then.
CREATE FUNCTION cleave.register_session(
    of_topic bigint, of_subscription text, consumer_name text, of_incarnation text, of_subject text DEFAULT NULL,
    OUT topic_name text, OUT topic_state text, OUT subscription_state text, OUT is_new boolean, OUT departed text)
LANGUAGE plpgsql AS $$
DECLARE before record;
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
    SELECT c.incarnation, c.subject INTO before FROM cleave.consumer c
     WHERE c.topic_id = of_topic AND c.subscription = of_subscription AND c.name = consumer_name FOR UPDATE;
    is_new := NOT FOUND;
    IF is_new THEN
        INSERT INTO cleave.consumer (topic_id, subscription, name, incarnation, subject)
        VALUES (of_topic, of_subscription, consumer_name, of_incarnation, of_subject);
    ELSIF before.subject <> of_subject THEN
        departed := 'foreign';
    ELSIF before.incarnation <> of_incarnation THEN
        UPDATE cleave.consumer SET incarnation = of_incarnation, subject = of_subject, registered_at = clock_timestamp()
         WHERE topic_id = of_topic AND subscription = of_subscription AND name = consumer_name;
        INSERT INTO cleave.departed_consumer (topic_id, subscription, name, incarnation, reason)
        VALUES (of_topic, of_subscription, consumer_name, before.incarnation, 'replaced') ON CONFLICT DO NOTHING;
    ELSIF before.subject IS NULL AND of_subject IS NOT NULL THEN
        UPDATE cleave.consumer SET subject = of_subject
         WHERE topic_id = of_topic AND subscription = of_subscription AND name = consumer_name;
    END IF;
END $$;
