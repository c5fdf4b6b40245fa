-- One way to register a consumer, for the client that runs in applications and for the command line.
--
-- The answer holds what was found, and the caller says in its own words why nothing was written: topic_state and
-- subscription_state are NULL where there is no such row. A consumer is registered only if both are live. is_new says
-- that it was not registered before; it is NULL where nothing was written.
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

COMMENT ON COLUMN cleave.consumer.connected IS
    'Read by nobody. Programs from before register_consumer still set it, so a later migration drops it.';
