-- A position in an embedded log names the timeline in which its message was written, and then the message's offset. After a fail-over
-- to a standby that lacks the last messages, or after a restore, the log gives the same offsets out again, to other messages. The
-- timeline tells the two apart, and later timelines are greater, so that positions stay in order. A reader names the last message below
-- its place with each statement, and the statement is refused when the log does not have that message.

CREATE TABLE embedded.timeline (
    log_id       bigint NOT NULL REFERENCES embedded.log ON DELETE CASCADE,
    first_offset bigint NOT NULL,
    timeline     bigint NOT NULL,
    incarnation  text   NOT NULL,
    PRIMARY KEY (log_id, first_offset),
    CONSTRAINT timeline_not_negative CHECK (first_offset >= 0 AND timeline >= 0)
);
COMMENT ON TABLE embedded.timeline IS
    'Timelines of logs: from first_offset on, up to the next row, one incarnation of the database wrote the messages.';
COMMENT ON COLUMN embedded.timeline.timeline IS
    'Microseconds since the Unix epoch when the timeline began. Along a log it rises.';
COMMENT ON COLUMN embedded.timeline.incarnation IS
    'Incarnation of the database that wrote the messages (embedded.incarnation); empty for messages from before there were timelines.';
COMMENT ON CONSTRAINT timeline_not_negative ON embedded.timeline IS 'Offsets and timelines count from 0.';
GRANT SELECT, INSERT, UPDATE, DELETE ON embedded.timeline TO cleave_controller;

INSERT INTO embedded.timeline (log_id, first_offset, timeline, incarnation)
SELECT log_id, 0, (extract(epoch FROM created_at) * 1000000)::bigint, '' FROM embedded.log WHERE next_offset > 0;

-- A server that was started once writes one history: a standby that is promoted, a server that recovers from a backup and a copy of its
-- files were all started after the server that wrote before. Other contents of the table within one start come with other files.
CREATE FUNCTION embedded.incarnation() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT extract(epoch FROM pg_catalog.pg_postmaster_start_time())::text || ' ' || pg_catalog.pg_relation_filepath('embedded.message')
$$;
COMMENT ON FUNCTION embedded.incarnation() IS
    'Start of the server, and file of the messages. What differs in either may have written another history of the same logs.';
REVOKE EXECUTE ON FUNCTION embedded.incarnation() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION embedded.incarnation() TO cleave_controller;

-- Append a batch. Answers granted | stored (was there already) | terminated | missing (no such log). The first batch of an incarnation
-- begins a timeline.
CREATE OR REPLACE FUNCTION embedded.append(
    log_name text, producer_name text, batch_sequence bigint, batch_bytes bigint, keys bytea[], payloads bytea[], bucket_hashes integer[],
    OUT outcome text, OUT log_id bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    target embedded.log;
    moment timestamptz;
    newest embedded.timeline;
BEGIN
    SELECT * INTO target FROM embedded.log WHERE name = log_name FOR NO KEY UPDATE;
    log_id := target.log_id;
    IF NOT FOUND THEN
        outcome := 'missing';
        RETURN;
    ELSIF EXISTS (SELECT FROM embedded.producer p
                   WHERE p.log_id = target.log_id AND p.name = producer_name AND p.last_sequence >= batch_sequence) THEN
        outcome := 'stored';
        RETURN;
    ELSIF target.terminated_at IS NOT NULL THEN
        outcome := 'terminated';
        RETURN;
    END IF;
    moment := greatest(clock_timestamp(), target.last_published_at);
    UPDATE embedded.log
       SET next_offset = next_offset + cardinality(payloads), byte_in = byte_in + batch_bytes, last_published_at = moment
     WHERE log_id = target.log_id;
    INSERT INTO embedded.message (log_id, log_offset, published_at, key, payload, bucket_hash)
    SELECT target.log_id, target.next_offset + ordinal - 1, moment, key, payload, bucket_hash
      FROM unnest(keys, payloads, bucket_hashes) WITH ORDINALITY AS batch (key, payload, bucket_hash, ordinal);
    INSERT INTO embedded.producer AS p (log_id, name, last_sequence)
    VALUES (target.log_id, producer_name, batch_sequence)
    ON CONFLICT ON CONSTRAINT producer_pkey DO UPDATE SET last_sequence = excluded.last_sequence;
    SELECT * INTO newest FROM embedded.timeline t WHERE t.log_id = target.log_id ORDER BY t.first_offset DESC LIMIT 1;
    IF newest.incarnation IS DISTINCT FROM embedded.incarnation() THEN
        INSERT INTO embedded.timeline AS t (log_id, first_offset, timeline, incarnation)
        VALUES (target.log_id, CASE WHEN newest.log_id IS NULL THEN 0 ELSE target.next_offset END,
                greatest((extract(epoch FROM clock_timestamp()) * 1000000)::bigint, newest.timeline + 1), embedded.incarnation())
        ON CONFLICT ON CONSTRAINT timeline_pkey DO UPDATE SET timeline = excluded.timeline, incarnation = excluded.incarnation;
    END IF;
    outcome := 'granted';
END $$;

-- Take the part of a cursor that has the hashes `low` to `high`, all of it or nothing.
-- Answers taken | held (by `holder`, which lives) | stale (a piece was taken under a newer ownership, by `holder` if it still reads)
-- | missing (no such log) | unsubscribed (no such cursor). `timeline` is that of the last message before `start`, 0 at the very front.
-- The reader that held a piece of it loses all that it held. What is outside the range has no owner then. Without an ownership none is
-- looked at.
DROP FUNCTION embedded.take(text, text, text, text[], integer, integer, bigint, bigint);
CREATE FUNCTION embedded.take(
    log_name text, of_subscription text, new_owner text, live_owners text[], low integer, high integer,
    of_origin bigint DEFAULT NULL, of_generation bigint DEFAULT NULL,
    OUT outcome text, OUT log_id bigint, OUT generation bigint, OUT start bigint, OUT holder text, OUT timeline bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    of_log_id bigint;
    lost      bigint[];
BEGIN
    SELECT l.log_id INTO of_log_id FROM embedded.log l WHERE l.name = log_name FOR KEY SHARE;
    log_id := of_log_id;
    IF of_log_id IS NULL THEN
        outcome := 'missing';
        RETURN;
    ELSIF NOT embedded.lock_parts(of_log_id, of_subscription) THEN
        outcome := 'unsubscribed';
        RETURN;
    END IF;
    SELECT c.owner INTO holder FROM embedded.cursor c
     WHERE c.log_id = of_log_id AND c.subscription = of_subscription AND c.first_hash <= high AND c.last_hash >= low
       AND (c.owned_origin, c.owned_generation) > (of_origin, of_generation)
     ORDER BY c.first_hash LIMIT 1;
    IF FOUND THEN
        outcome := 'stale';
        RETURN;
    END IF;
    SELECT c.owner INTO holder FROM embedded.cursor c
     WHERE c.log_id = of_log_id AND c.subscription = of_subscription AND c.first_hash <= high AND c.last_hash >= low
       AND c.owner <> new_owner AND c.owner = ANY (live_owners)
     ORDER BY c.first_hash LIMIT 1;
    IF holder IS NOT NULL THEN
        outcome := 'held';
        RETURN;
    END IF;
    lost := ARRAY(SELECT c.generation FROM embedded.cursor c
                   WHERE c.log_id = of_log_id AND c.subscription = of_subscription
                     AND c.first_hash <= high AND c.last_hash >= low AND c.owner IS NOT NULL);
    IF cardinality(lost) > 0 THEN
        UPDATE embedded.cursor c SET owner = NULL, generation = nextval('embedded.generation')
         WHERE c.log_id = of_log_id AND c.subscription = of_subscription AND c.generation = ANY (lost);
        PERFORM pg_notify('embedded_arrivals', of_log_id::text);
    END IF;
    PERFORM embedded.divide_part(of_log_id, of_subscription, low);
    PERFORM embedded.divide_part(of_log_id, of_subscription, high + 1);
    -- A restore turns the sequence back. By chance alone is a reader's generation one that another history has given out.
    generation := ((random() * 2147483646)::bigint << 32) | (nextval('embedded.generation') & 4294967295);
    UPDATE embedded.cursor c
       SET owner = new_owner, generation = take.generation,
           owned_origin = coalesce(of_origin, c.owned_origin), owned_generation = coalesce(of_generation, c.owned_generation)
     WHERE c.log_id = of_log_id AND c.subscription = of_subscription AND c.first_hash BETWEEN low AND high;
    PERFORM embedded.join_parts(of_log_id, of_subscription, take.generation);
    SELECT min(c.position) INTO start FROM embedded.cursor c
     WHERE c.log_id = of_log_id AND c.subscription = of_subscription AND c.generation = take.generation;
    timeline := embedded.timeline_before(of_log_id, start);
    outcome := 'taken';
END $$;
REVOKE EXECUTE ON FUNCTION embedded.take(text, text, text, text[], integer, integer, bigint, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION embedded.take(text, text, text, text[], integer, integer, bigint, bigint) TO cleave_controller, cleave_client;

CREATE FUNCTION embedded.timeline_before(of_log_id bigint, of_offset bigint) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT coalesce((SELECT t.timeline FROM embedded.timeline t
                      WHERE t.log_id = of_log_id AND t.first_offset < of_offset ORDER BY t.first_offset DESC LIMIT 1), 0)
$$;
COMMENT ON FUNCTION embedded.timeline_before(bigint, bigint) IS 'Timeline of the message before an offset; 0 at the very front of a log.';
REVOKE EXECUTE ON FUNCTION embedded.timeline_before(bigint, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION embedded.timeline_before(bigint, bigint) TO cleave_controller;

-- The next messages of a reader from `from_offset` on, then one row with the offset to go on from, and the first offset and the timeline
-- of each timeline that was read. No row where the cursor is not this generation's, or where the log does not have, in `of_timeline`, the
-- message before `from_offset`. Without a timeline (an older client) only the log's end is looked at.
DROP FUNCTION embedded.read(bigint, text, bigint, bigint, integer, bigint, bigint, bigint);
CREATE FUNCTION embedded.read(
    of_log_id bigint, of_subscription text, of_generation bigint, from_offset bigint, most integer, most_bytes bigint,
    most_scanned bigint, lag bigint, of_timeline bigint DEFAULT NULL
) RETURNS TABLE (log_offset bigint, published_at timestamptz, key bytea, payload bytea, timelines bigint[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    held     record;
    before   record;
    scanned  bigint := from_offset;
    ended    bigint;
    stop     bigint;
    step     bigint;
    upto     bigint;
    given    integer := 0;
    bytes    bigint := 0;
BEGIN
    SELECT min(first_hash) AS low, max(last_hash) AS high, min(position) AS lowest, max(position) AS settled INTO held
      FROM embedded.cursor
     WHERE log_id = of_log_id AND subscription = of_subscription AND generation = of_generation;
    SELECT next_offset INTO ended FROM embedded.log WHERE log_id = of_log_id;
    IF held.low IS NULL OR ended IS NULL OR from_offset > ended THEN
        RETURN;
    END IF;
    stop := least(ended, from_offset + most_scanned);
    SELECT t.first_offset, t.timeline INTO before FROM embedded.timeline t
     WHERE t.log_id = of_log_id AND t.first_offset < from_offset ORDER BY t.first_offset DESC LIMIT 1;
    IF of_timeline <> coalesce(before.timeline, 0) THEN
        RETURN;
    END IF;
    step := greatest(most::bigint * 65536 / (held.high - held.low + 1), 1);
    <<steps>>
    WHILE scanned < stop AND given < most LOOP
        upto := least(stop, scanned + step);
        FOR log_offset, published_at, key, payload IN
            SELECT m.log_offset, m.published_at, m.key, m.payload FROM embedded.message m
             WHERE m.log_id = of_log_id AND m.log_offset >= scanned AND m.log_offset < upto
               AND (held.low = 0 AND held.high = 65535
                    OR coalesce(m.bucket_hash, embedded.bucket_hash_of(m.key)) BETWEEN held.low AND held.high)
               AND (m.log_offset >= held.settled
                    OR m.log_offset >= (
                       SELECT c.position FROM embedded.cursor c
                        WHERE c.log_id = of_log_id AND c.subscription = of_subscription
                          AND c.first_hash <= coalesce(m.bucket_hash, embedded.bucket_hash_of(m.key))
                        ORDER BY c.first_hash DESC LIMIT 1))
             ORDER BY m.log_offset LIMIT most - given
        LOOP
            bytes := bytes + octet_length(read.payload);
            EXIT steps WHEN given > 0 AND bytes > most_bytes;
            given := given + 1;
            scanned := read.log_offset + 1;
            RETURN NEXT;
        END LOOP;
        EXIT WHEN given = most;
        scanned := upto;
        step := step * 2;
    END LOOP;
    IF given = 0 AND scanned - held.lowest > lag THEN
        PERFORM embedded.acknowledge(of_log_id, of_subscription, of_generation, scanned, 0, 0);
    END IF;
    log_offset := scanned;
    published_at := NULL;
    key := NULL;
    payload := NULL;
    IF scanned > from_offset THEN
        SELECT array_agg(ARRAY[t.first_offset, t.timeline] ORDER BY t.first_offset) INTO timelines FROM embedded.timeline t
         WHERE t.log_id = of_log_id AND t.first_offset >= coalesce(before.first_offset, 0) AND t.first_offset < scanned;
    END IF;
    RETURN NEXT;
END $$;
REVOKE EXECUTE ON FUNCTION embedded.read(bigint, text, bigint, bigint, integer, bigint, bigint, bigint, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION embedded.read(bigint, text, bigint, bigint, integer, bigint, bigint, bigint, bigint)
    TO cleave_controller, cleave_client;

-- Acknowledge what lies below `upto`, and count what was delivered. False where the cursor is not this generation's, or where the log
-- does not have, in `of_timeline`, the message before `upto`. Without a timeline only the log's end is looked at.
DROP FUNCTION embedded.acknowledge(bigint, text, bigint, bigint, bigint, bigint);
CREATE FUNCTION embedded.acknowledge(
    of_log_id bigint, of_subscription text, of_generation bigint, upto bigint, messages bigint, bytes bigint,
    of_timeline bigint DEFAULT NULL
) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    held  record;
    ended record;
BEGIN
    SELECT count(*) AS parts, min(first_hash) AS first_hash, min(position) AS position INTO held
      FROM (SELECT first_hash, position FROM embedded.cursor
             WHERE log_id = of_log_id AND subscription = of_subscription AND generation = of_generation
             ORDER BY first_hash FOR NO KEY UPDATE) part;
    IF held.parts = 0 THEN
        RETURN false;
    END IF;
    SELECT next_offset, terminated_at INTO ended FROM embedded.log WHERE log_id = of_log_id;
    IF upto > ended.next_offset OR of_timeline <> coalesce((
           SELECT t.timeline FROM embedded.timeline t
            WHERE t.log_id = of_log_id AND t.first_offset < upto ORDER BY t.first_offset DESC LIMIT 1), 0) THEN
        RETURN false;
    END IF;
    UPDATE embedded.cursor
       SET position = greatest(position, upto),
           msg_out = msg_out + CASE WHEN first_hash = held.first_hash THEN greatest(messages, 0) ELSE 0 END,
           byte_out = byte_out + CASE WHEN first_hash = held.first_hash THEN greatest(bytes, 0) ELSE 0 END
     WHERE log_id = of_log_id AND subscription = of_subscription AND generation = of_generation;
    IF held.parts > 1 THEN
        PERFORM embedded.join_parts(of_log_id, of_subscription, of_generation);
    END IF;
    IF ended.terminated_at IS NOT NULL AND held.position < ended.next_offset AND upto = ended.next_offset THEN
        PERFORM pg_notify('embedded_arrivals', of_log_id::text);
    END IF;
    RETURN true;
END $$;
REVOKE EXECUTE ON FUNCTION embedded.acknowledge(bigint, text, bigint, bigint, bigint, bigint, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION embedded.acknowledge(bigint, text, bigint, bigint, bigint, bigint, bigint) TO cleave_controller, cleave_client;

-- Where a reader that was refused may begin again, and the end of the log, if the log does not have, in `of_timeline`, the message before
-- `of_offset`; no row otherwise.
CREATE FUNCTION embedded.missed(
    of_log_id bigint, of_subscription text, low integer, high integer, of_offset bigint, of_timeline bigint,
    OUT "position" bigint, OUT next_offset bigint
) RETURNS SETOF record LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT min(c.position), l.next_offset FROM embedded.cursor c JOIN embedded.log l USING (log_id)
     WHERE c.log_id = of_log_id AND c.subscription = of_subscription AND c.first_hash <= high AND c.last_hash >= low
       AND (of_offset > l.next_offset OR of_timeline <> embedded.timeline_before(of_log_id, of_offset))
     GROUP BY l.next_offset
$$;
COMMENT ON FUNCTION embedded.missed(bigint, text, integer, integer, bigint, bigint) IS
    'Position of a part of a cursor, and the end of the log, if the log lacks the message before an offset.';
REVOKE EXECUTE ON FUNCTION embedded.missed(bigint, text, integer, integer, bigint, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION embedded.missed(bigint, text, integer, integer, bigint, bigint) TO cleave_controller, cleave_client;

-- Give messages of a queue to a reader; migration 0034 says how. No row where the server does not know the reader, or where the log does
-- not have the message at `last_offset`, which is the highest that the reader was ever given, in `last_timeline`.
DROP FUNCTION embedded.queue_take(bigint, text, text, bigint, integer, bigint, integer, double precision);
CREATE FUNCTION embedded.queue_take(
    of_log_id bigint, of_subscription text, of_mark text, of_batch bigint, most integer, most_bytes bigint, most_unsettled integer,
    life_seconds double precision, last_offset bigint DEFAULT NULL, last_timeline bigint DEFAULT NULL
) RETURNS TABLE (log_offset bigint, published_at timestamptz, key bytea, payload bytea, deliveries integer, timelines bigint[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    start    bigint;
    ended    bigint;
    lowest   bigint;
    upto     bigint;
    batches  bigint;
    again    bigint[];
    bytes    bigint;
    given    integer := 0;
BEGIN
    SELECT c.frontier INTO start FROM embedded.cursor c
     WHERE c.log_id = of_log_id AND c.subscription = of_subscription AND c.first_hash = 0 FOR UPDATE;
    UPDATE embedded.queue_reader r SET alive_until = clock_timestamp() + life_seconds * interval '1 s'
     WHERE r.mark = of_mark AND r.log_id = of_log_id AND r.subscription = of_subscription
    RETURNING r.last_batch INTO batches;
    IF NOT FOUND OR start IS NULL THEN
        RETURN;
    END IF;
    SELECT l.next_offset INTO ended FROM embedded.log l WHERE l.log_id = of_log_id;
    IF last_offset >= ended OR last_timeline <> embedded.timeline_before(of_log_id, last_offset + 1) THEN
        RETURN;
    END IF;
    IF of_batch > batches THEN
        PERFORM embedded.queue_reap(of_log_id, of_subscription);
        SELECT array_agg(chosen.log_offset), sum(chosen.size) INTO again, bytes FROM (
            SELECT u.log_offset, octet_length(m.payload) AS size, row_number() OVER w AS place,
                   sum(octet_length(m.payload)) OVER w AS total
              FROM (SELECT x.log_offset, x.visible_at FROM embedded.unsettled x
                     WHERE x.log_id = of_log_id AND x.subscription = of_subscription AND x.mark IS NULL
                       AND x.visible_at <= clock_timestamp()
                     ORDER BY x.visible_at, x.log_offset LIMIT most) u
              JOIN embedded.message m ON m.log_id = of_log_id AND m.log_offset = u.log_offset
            WINDOW w AS (ORDER BY u.visible_at, u.log_offset)) chosen
         WHERE chosen.place = 1 OR chosen.total <= most_bytes;
        UPDATE embedded.unsettled u SET mark = of_mark, batch = of_batch, visible_at = NULL, deliveries = u.deliveries + 1
         WHERE u.log_id = of_log_id AND u.subscription = of_subscription AND u.log_offset = ANY (again);
        upto := start + least(
            most - coalesce(cardinality(again), 0),
            most_unsettled - (SELECT count(*) FROM embedded.unsettled u
                               WHERE u.log_id = of_log_id AND u.subscription = of_subscription),
            ended - start);
        SELECT max(chosen.log_offset) + 1 INTO upto FROM (
            SELECT m.log_offset, row_number() OVER w AS place, sum(octet_length(m.payload)) OVER w AS total
              FROM embedded.message m
             WHERE m.log_id = of_log_id AND m.log_offset >= start AND m.log_offset < upto
            WINDOW w AS (ORDER BY m.log_offset)) chosen
         WHERE chosen.place = 1 AND again IS NULL OR coalesce(bytes, 0) + chosen.total <= most_bytes;
        upto := coalesce(upto, start);
        INSERT INTO embedded.unsettled (log_id, subscription, log_offset, deliveries, mark, batch)
        SELECT of_log_id, of_subscription, new_offset, 1, of_mark, of_batch FROM generate_series(start, upto - 1) new_offset;
        UPDATE embedded.queue_reader r SET last_batch = of_batch WHERE r.mark = of_mark;
        bytes := 0;
    END IF;
    IF of_batch >= batches THEN
        FOR log_offset, published_at, key, payload, deliveries IN
            SELECT u.log_offset, m.published_at, m.key, m.payload, u.deliveries
              FROM embedded.unsettled u JOIN embedded.message m USING (log_id, log_offset)
             WHERE u.mark = of_mark AND u.batch = of_batch
             ORDER BY u.log_offset
        LOOP
            given := given + 1;
            lowest := coalesce(lowest, queue_take.log_offset);
            bytes := bytes + octet_length(queue_take.payload) + coalesce(octet_length(queue_take.key), 0);
            RETURN NEXT;
        END LOOP;
    END IF;
    IF of_batch > batches AND given > 0 THEN
        UPDATE embedded.cursor c SET frontier = upto, msg_out = c.msg_out + given, byte_out = c.byte_out + bytes
         WHERE c.log_id = of_log_id AND c.subscription = of_subscription AND c.first_hash = 0;
    END IF;
    IF given > 0 THEN
        SELECT array_agg(ARRAY[t.first_offset, t.timeline] ORDER BY t.first_offset) INTO timelines FROM embedded.timeline t
         WHERE t.log_id = of_log_id
           AND t.first_offset >= (SELECT max(x.first_offset) FROM embedded.timeline x
                                   WHERE x.log_id = of_log_id AND x.first_offset <= lowest);
    END IF;
    log_offset := upto;
    published_at := NULL;
    key := NULL;
    payload := NULL;
    deliveries := NULL;
    RETURN NEXT;
END $$;
REVOKE EXECUTE ON FUNCTION
    embedded.queue_take(bigint, text, text, bigint, integer, bigint, integer, double precision, bigint, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    embedded.queue_take(bigint, text, text, bigint, integer, bigint, integer, double precision, bigint, bigint)
    TO cleave_controller, cleave_client;

-- The log's id, its first offset and its end; the first message at or after the instant, where one is given; and the timeline of the
-- message before that offset, or before the end.
DROP FUNCTION embedded.bounds(text, timestamptz);
CREATE FUNCTION embedded.bounds(
    log_name text, instant timestamptz,
    OUT log_id bigint, OUT first_offset bigint, OUT next_offset bigint, OUT at_instant bigint, OUT timeline bigint
) RETURNS SETOF record LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT l.log_id, l.first_offset, l.next_offset, i.at, embedded.timeline_before(l.log_id, coalesce(i.at, l.next_offset))
      FROM embedded.log l
     CROSS JOIN LATERAL (SELECT CASE WHEN instant IS NOT NULL THEN embedded.offset_at(l.log_id, instant) END AS at) i
     WHERE l.name = log_name
$$;
REVOKE EXECUTE ON FUNCTION embedded.bounds(text, timestamptz) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION embedded.bounds(text, timestamptz) TO cleave_controller, cleave_client;

-- Where to go on after a position that an application keeps: behind it, or where the log's history leaves that of the position. That is
-- at the first message of a later timeline, or at the end of the log. `timeline` is that of the message before `start`.
CREATE FUNCTION embedded.open_at(
    log_name text, of_offset bigint, of_timeline bigint,
    OUT log_id bigint, OUT first_offset bigint, OUT next_offset bigint, OUT start bigint, OUT timeline bigint
) RETURNS SETOF record LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT l.log_id, l.first_offset, l.next_offset, f.start, embedded.timeline_before(l.log_id, f.start)
      FROM embedded.log l
     CROSS JOIN LATERAL (
           SELECT least(of_offset + 1, CASE WHEN of_timeline IS NOT NULL THEN coalesce(
                  (SELECT min(t.first_offset) FROM embedded.timeline t WHERE t.log_id = l.log_id AND t.timeline > of_timeline),
                  l.next_offset) END) AS start) f
     WHERE l.name = log_name
$$;
COMMENT ON FUNCTION embedded.open_at(text, bigint, bigint) IS
    'Bounds of a log, and the offset to go on from after a position of an application.';
REVOKE EXECUTE ON FUNCTION embedded.open_at(text, bigint, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION embedded.open_at(text, bigint, bigint) TO cleave_controller, cleave_client;

-- The next messages from an offset on, then one row with the log's bounds. No row where there is no such log, and for an older client
-- (without a timeline) where the log ends before the offset. The last row has no offset where the log does not have, in `of_timeline`, the
-- message before `from_offset`. A restored database may give a log's id to another log, so the name is compared.
DROP FUNCTION embedded.read_at(bigint, bigint, integer, bigint);
CREATE FUNCTION embedded.read_at(
    of_log_id bigint, from_offset bigint, most integer, most_bytes bigint, of_timeline bigint DEFAULT NULL, log_name text DEFAULT NULL
) RETURNS TABLE (
    log_offset bigint, published_at timestamptz, key bytea, payload bytea, first_offset bigint, is_at_end boolean, timelines bigint[]
) LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    target embedded.log;
    before record;
    bytes  bigint := 0;
    given  integer := 0;
    upto   bigint := from_offset;
BEGIN
    SELECT * INTO target FROM embedded.log l WHERE l.log_id = of_log_id AND l.name = coalesce(log_name, l.name);
    IF NOT FOUND OR (of_timeline IS NULL AND from_offset > target.next_offset) THEN
        RETURN;
    END IF;
    SELECT t.first_offset, t.timeline INTO before FROM embedded.timeline t
     WHERE t.log_id = of_log_id AND t.first_offset < from_offset ORDER BY t.first_offset DESC LIMIT 1;
    IF from_offset > target.next_offset OR of_timeline <> coalesce(before.timeline, 0) THEN
        RETURN NEXT;
        RETURN;
    END IF;
    FOR log_offset, published_at, key, payload IN
        SELECT m.log_offset, m.published_at, m.key, m.payload FROM embedded.message m
         WHERE m.log_id = of_log_id AND m.log_offset >= from_offset AND m.log_offset < from_offset + most
         ORDER BY m.log_offset
    LOOP
        bytes := bytes + octet_length(read_at.payload);
        EXIT WHEN given > 0 AND bytes > most_bytes;
        given := given + 1;
        upto := read_at.log_offset + 1;
        RETURN NEXT;
    END LOOP;
    log_offset := upto;
    published_at := NULL;
    key := NULL;
    payload := NULL;
    first_offset := target.first_offset;
    is_at_end := target.terminated_at IS NOT NULL AND upto >= target.next_offset;
    IF upto > from_offset THEN
        SELECT array_agg(ARRAY[t.first_offset, t.timeline] ORDER BY t.first_offset) INTO timelines FROM embedded.timeline t
         WHERE t.log_id = of_log_id AND t.first_offset >= coalesce(before.first_offset, 0) AND t.first_offset < upto;
    END IF;
    RETURN NEXT;
END $$;
REVOKE EXECUTE ON FUNCTION embedded.read_at(bigint, bigint, integer, bigint, bigint, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION embedded.read_at(bigint, bigint, integer, bigint, bigint, text) TO cleave_controller, cleave_client;
