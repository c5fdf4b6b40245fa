-- The controller's login cannot delete the decisions of the last thirty days, nor the cycles of bundles, as it cannot delete the audit of
-- that time (migration 0056). A stolen login wipes out no traces.

CREATE OR REPLACE FUNCTION cleave.drop_decision_partitions(older_than timestamptz) RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    partition_name text;
    before timestamptz := least(older_than, clock_timestamp() - interval '30 days');
BEGIN
    FOR partition_name IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
         WHERE i.inhparent = 'cleave.decision'::regclass AND c.relname ~ '^decision_[0-9]{8}$'
           AND to_date(right(c.relname, 8), 'YYYYMMDD') + 1 <= (before AT TIME ZONE 'UTC')
         ORDER BY c.relname
    LOOP
        EXECUTE format('DROP TABLE cleave.%I', partition_name);
        RETURN NEXT partition_name;
    END LOOP;
    DELETE FROM cleave.decision_default WHERE decided_at < before;
END $$;
COMMENT ON FUNCTION cleave.drop_decision_partitions(timestamptz) IS
    'Drops the days of decisions that ended before the instant, and never those of the last 30 days; their tables.';
REVOKE UPDATE, DELETE ON cleave.decision_default FROM cleave_controller;

CREATE OR REPLACE FUNCTION cleave.expire_bundle_history(older_than timestamptz) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    cycles bigint;
    before timestamptz := least(older_than, clock_timestamp() - interval '30 days');
BEGIN
    DELETE FROM cleave.bundle_decision d
     WHERE d.recorded_at < before
       AND NOT EXISTS (SELECT FROM cleave.bundle_proposal p
                        WHERE p.cycle_id = d.cycle_id AND p.state IN ('proposed', 'approved', 'applied'));
    GET DIAGNOSTICS cycles = ROW_COUNT;
    DELETE FROM cleave.bundle_load_run r
     WHERE r.window_end < before AND r.window_end < (SELECT max(window_end) FROM cleave.bundle_load_run);
    RETURN cycles;
END $$;
COMMENT ON FUNCTION cleave.expire_bundle_history(timestamptz) IS
    'Deletes the cycles of bundles of before the instant, and never those of the last 30 days; how many.';

-- A session belongs to the subject whose token began the session. The tokens of other subjects neither continue nor end the session.
ALTER TABLE cleave.consumer ADD COLUMN subject text;
COMMENT ON COLUMN cleave.consumer.subject IS 'Subject of the token that began the session; NULL where the consumer was registered without a token.';

DROP FUNCTION cleave.register_session(bigint, text, text, text);
-- `of_subject` is NULL for programs that do not know of subjects. The answer `departed` is `foreign` where a session of this name belongs
-- to another subject; nothing is written then.
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

-- The deliveries of a bucket are bounded: of more than a thousand messages that are in trouble at once, those that were noted longest
-- ago go first, messages that are being handled or that ended a process last.
CREATE OR REPLACE FUNCTION cleave.note_delivery(
    of_topic bigint, of_subscription text, of_segment bigint, of_bucket integer,
    consumer_name text, of_incarnation text, of_generation bigint,
    at_position bigint[], event text, times integer, why text
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF NOT cleave.owns_bucket(of_topic, of_subscription, of_segment, of_bucket, consumer_name, of_incarnation, of_generation) THEN
        RETURN false;
    ELSIF event = 'ended' THEN
        DELETE FROM cleave.message_delivery
         WHERE topic_id = of_topic AND subscription = of_subscription AND segment_id = of_segment AND bucket_start = of_bucket
           AND position = at_position;
        RETURN true;
    END IF;
    INSERT INTO cleave.message_delivery AS d
           (topic_id, subscription, segment_id, bucket_start, position, deliveries, begun_by, error)
    VALUES (of_topic, of_subscription, of_segment, of_bucket, at_position, times,
            CASE event WHEN 'begun' THEN of_incarnation END, why)
    ON CONFLICT (topic_id, subscription, segment_id, bucket_start, position) DO UPDATE
       SET deliveries = greatest(d.deliveries, excluded.deliveries), begun_by = excluded.begun_by,
           error = coalesce(excluded.error, d.error), last_at = clock_timestamp();
    DELETE FROM cleave.message_delivery
     WHERE topic_id = of_topic AND subscription = of_subscription AND segment_id = of_segment AND bucket_start = of_bucket
       AND position IN (
           SELECT m.position FROM cleave.message_delivery m
            WHERE m.topic_id = of_topic AND m.subscription = of_subscription AND m.segment_id = of_segment
              AND m.bucket_start = of_bucket
              AND 1000 < (SELECT count(*) FROM cleave.message_delivery n
                           WHERE n.topic_id = of_topic AND n.subscription = of_subscription AND n.segment_id = of_segment
                             AND n.bucket_start = of_bucket)
            ORDER BY m.begun_by IS NULL AND m.deaths = 0, m.last_at DESC, m.position DESC OFFSET 1000);
    RETURN true;
END $$;
