-- Consumer sessions, and the owner of each entry bucket (PIP-468, PIP-486).
--
-- The leader of a topic writes these rows under the lease of the topic's shard. A worker that has lost the lease cannot write them.

CREATE TABLE cleave.consumer (
    topic_id        bigint      NOT NULL,
    subscription    text        NOT NULL,
    name            text        NOT NULL,
    registered_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- An incarnation is one process of a consumer: a process that restarts under the same name has another incarnation.
    incarnation     text        NOT NULL DEFAULT '',
    disconnected_at timestamptz,
    -- A token of another subject can neither continue nor end the session.
    subject         text,
    PRIMARY KEY (topic_id, subscription, name),
    CONSTRAINT consumer_of_subscription FOREIGN KEY (topic_id, subscription) REFERENCES cleave.subscription ON DELETE CASCADE,
    CONSTRAINT consumer_name_form CHECK (name ~ '^[^[:space:]]+$')
);
COMMENT ON COLUMN cleave.consumer.incarnation IS 'Process of that name that registered; empty: registered without an incarnation.';
COMMENT ON COLUMN cleave.consumer.disconnected_at IS
    'Time at which the topic''s leader lost the consumer''s stream, set after 2 seconds; NULL while connected.';
COMMENT ON COLUMN cleave.consumer.subject IS
    'Subject of the token that began the session; NULL: the consumer was registered without a token.';
COMMENT ON CONSTRAINT consumer_of_subscription ON cleave.consumer IS
    'A consumer registers with a subscription that exists; create it first.';
COMMENT ON CONSTRAINT consumer_name_form ON cleave.consumer IS 'A consumer name is not empty and has no spaces.';
CREATE TRIGGER consumer_name_is_printable BEFORE INSERT ON cleave.consumer
    FOR EACH ROW WHEN (NOT cleave.is_name(NEW.name)) EXECUTE FUNCTION cleave.demand_name();

-- Incarnations that have departed. Their late messages are refused.
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
-- The index serves the limit on departed incarnations per subscription: a token holder can deregister incarnations that never existed.
CREATE INDEX departed_consumer_of_subscription ON cleave.departed_consumer (topic_id, subscription, departed_at);
COMMENT ON CONSTRAINT departed_consumer_reason_known ON cleave.departed_consumer IS 'A consumer left, expired or was replaced.';

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
COMMENT ON COLUMN cleave.bucket_owner.said IS 'Reason that the owner reported for not reading the bucket; NULL while it reads.';
COMMENT ON COLUMN cleave.bucket_owner.said_since IS 'Time from which the reason in `said` holds; NULL without a reason.';
COMMENT ON CONSTRAINT bucket_owner_segment ON cleave.bucket_owner IS 'A bucket belongs to a segment that exists; read the layout again.';
COMMENT ON CONSTRAINT bucket_owner_range ON cleave.bucket_owner IS 'A bucket is a range of bucket hashes within 0..65535.';
COMMENT ON CONSTRAINT bucket_owner_asked_for ON cleave.bucket_owner IS 'A bucket with a successor has the time at which its release was requested.';
COMMENT ON CONSTRAINT bucket_owner_said ON cleave.bucket_owner IS 'A reported reason has the time from which it holds.';

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

-- Register a session. Returns the states of the topic and of the subscription, whether the consumer is new, and the reason for which
-- this incarnation has already departed, if it has. A new incarnation replaces the previous incarnation, which departs.
--
-- `of_subject` is NULL for versions that do not know subjects. `departed` is `foreign` if the session of this name belongs to
-- another subject; in that case nothing is written.
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
