-- Counts of deliveries that survive crashes: one row for each bucket that was ever opened, and one for each failing message.
--
-- A consumer that begins to read a bucket reports the first message. If several incarnations in turn opened the bucket at the same
-- message, a message of the bucket probably ends its process. From then on, the readers of the bucket record each message before they
-- handle it, so that a crash is counted for that message. Failures are recorded too. Only the present owner of the bucket may report.

CREATE TABLE cleave.bucket_opening (
    topic_id     bigint      NOT NULL,
    subscription text        NOT NULL,
    segment_id   bigint      NOT NULL,
    bucket_start integer     NOT NULL,
    position     bigint[]    NOT NULL,
    openings     integer     NOT NULL DEFAULT 1,
    opened_by    text        NOT NULL,
    opened_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic_id, subscription, segment_id, bucket_start),
    CONSTRAINT bucket_opening_subscription FOREIGN KEY (topic_id, subscription) REFERENCES cleave.subscription ON DELETE CASCADE,
    CONSTRAINT bucket_opening_counts CHECK (openings >= 1)
) WITH (fillfactor = 70);
COMMENT ON TABLE cleave.bucket_opening IS
    'Position at which each bucket was last opened, and how many incarnations of consumers in turn opened the bucket there.';
COMMENT ON CONSTRAINT bucket_opening_counts ON cleave.bucket_opening IS 'A recorded bucket was opened at least once.';

CREATE TABLE cleave.message_delivery (
    topic_id     bigint      NOT NULL,
    subscription text        NOT NULL,
    segment_id   bigint      NOT NULL,
    bucket_start integer     NOT NULL,
    position     bigint[]    NOT NULL,
    deliveries   integer     NOT NULL,
    deaths       integer     NOT NULL DEFAULT 0,
    begun_by     text,
    error        text,
    first_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic_id, subscription, segment_id, bucket_start, position),
    CONSTRAINT message_delivery_subscription FOREIGN KEY (topic_id, subscription) REFERENCES cleave.subscription ON DELETE CASCADE,
    CONSTRAINT message_delivery_counts CHECK (deliveries >= 1 AND deaths BETWEEN 0 AND deliveries)
) WITH (fillfactor = 70);
COMMENT ON TABLE cleave.message_delivery IS
    'Messages whose handling failed, or began and has not ended. begun_by is the incarnation of the consumer that handles it.';
COMMENT ON CONSTRAINT message_delivery_counts ON cleave.message_delivery IS
    'A message was delivered at least once, and its deaths are between 0 and the number of its deliveries.';

-- Return true if this incarnation of the consumer owns the bucket since that generation. The lock keeps this true until the end of
-- the transaction.
CREATE FUNCTION cleave.owns_bucket(
    of_topic bigint, of_subscription text, of_segment bigint, of_bucket integer,
    consumer_name text, of_incarnation text, of_generation bigint
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM cleave.bucket_owner o
      JOIN cleave.consumer c ON c.topic_id = o.topic_id AND c.subscription = o.subscription AND c.name = o.consumer
     WHERE o.topic_id = of_topic AND o.subscription = of_subscription AND o.segment_id = of_segment AND o.bucket_start = of_bucket
       AND o.consumer = consumer_name AND o.generation = of_generation AND c.incarnation = of_incarnation
       FOR SHARE OF o;
    RETURN FOUND;
END $$;

-- Record that the owner begins to read the bucket at this message. Returns the number of incarnations that in turn began there; NULL
-- if the caller does not own the bucket. A message that another incarnation began and never ended counts as a death. Rows of earlier
-- messages are deleted, because these messages are acknowledged.
CREATE FUNCTION cleave.open_bucket(
    of_topic bigint, of_subscription text, of_segment bigint, of_bucket integer,
    consumer_name text, of_incarnation text, of_generation bigint, at_position bigint[]
) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    counted integer;
BEGIN
    IF NOT cleave.owns_bucket(of_topic, of_subscription, of_segment, of_bucket, consumer_name, of_incarnation, of_generation) THEN
        RETURN NULL;
    END IF;
    INSERT INTO cleave.bucket_opening AS b (topic_id, subscription, segment_id, bucket_start, position, opened_by)
    VALUES (of_topic, of_subscription, of_segment, of_bucket, at_position, of_incarnation)
    ON CONFLICT (topic_id, subscription, segment_id, bucket_start) DO UPDATE
       SET openings = CASE WHEN b.position <> at_position THEN 1
                           WHEN b.opened_by = of_incarnation THEN b.openings
                           ELSE b.openings + 1 END,
           position = at_position, opened_by = of_incarnation, opened_at = clock_timestamp()
    RETURNING openings INTO counted;
    DELETE FROM cleave.message_delivery
     WHERE topic_id = of_topic AND subscription = of_subscription AND segment_id = of_segment AND bucket_start = of_bucket
       AND position < at_position;
    UPDATE cleave.message_delivery SET deaths = deaths + 1, begun_by = NULL, error = 'the process ended while it was handled'
     WHERE topic_id = of_topic AND subscription = of_subscription AND segment_id = of_segment AND bucket_start = of_bucket
       AND begun_by <> of_incarnation;
    RETURN counted;
END $$;

-- Record an event of the message's n-th delivery: `begun`, `failed`, or `ended`, which deletes the row. Returns false if the caller
-- does not own the bucket. Idempotent.
--
-- A bucket keeps at most 1,000 messages. Beyond that, the rows that were updated longest ago are deleted first; rows of messages that
-- are being handled or that ended a process are deleted last.
CREATE FUNCTION cleave.note_delivery(
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

-- Deletes the openings and deliveries of a segment when a subscription has drained it.
CREATE FUNCTION cleave.forget_deliveries() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM cleave.bucket_opening b USING added a
     WHERE b.topic_id = a.topic_id AND b.subscription = a.subscription AND b.segment_id = a.segment_id;
    DELETE FROM cleave.message_delivery d USING added a
     WHERE d.topic_id = a.topic_id AND d.subscription = a.subscription AND d.segment_id = a.segment_id;
    RETURN NULL;
END $$;
CREATE TRIGGER segment_drain_forgets AFTER INSERT ON cleave.segment_drain
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION cleave.forget_deliveries();
