-- Reading embedded logs at a position that the application keeps, and as a queue.
--
-- A cursor that is read as a queue has a frontier. What is stored below it was given to somebody. Of that, what is not
-- acknowledged has a row in `unsettled`, and what has no row is acknowledged. So position is the lowest unsettled offset, or
-- the frontier where there is none: trimming, drains and the backlog need not know how a cursor is read.
-- A queue is of one generation of its cursor. Who moves the cursor, or takes it to read in order, ends the queue: what was
-- given out and not acknowledged is given out again, and acknowledgements of before are refused.
-- Who works on a queue locks the log first (if it locks the log at all), then the part of the cursor that begins at 0.

ALTER TABLE embedded.cursor
    ADD COLUMN frontier bigint,
    ADD CONSTRAINT cursor_frontier_ahead CHECK (
        frontier IS NULL OR frontier >= position AND first_hash = 0 AND last_hash = 65535 AND owner IS NULL);
COMMENT ON CONSTRAINT cursor_frontier_ahead ON embedded.cursor IS
    'A queue is one part without an owner, and what it has given out lies at its position and above.';

-- A reader of a queue. What it holds is given to others when it has not been heard until alive_until.
CREATE TABLE embedded.queue_reader (
    mark         text        PRIMARY KEY,
    log_id       bigint      NOT NULL,
    subscription text COLLATE "C" NOT NULL,
    first_hash   integer     NOT NULL DEFAULT 0,
    owner        text        NOT NULL,
    last_batch   bigint      NOT NULL DEFAULT 0,
    alive_until  timestamptz NOT NULL,
    CONSTRAINT queue_reader_of_queue FOREIGN KEY (log_id, subscription, first_hash)
        REFERENCES embedded.cursor ON DELETE CASCADE
) WITH (fillfactor = 50);
CREATE INDEX queue_reader_of_cursor ON embedded.queue_reader (log_id, subscription, alive_until);
COMMENT ON TABLE embedded.queue_reader IS 'Who reads which queue, and until when it counts as alive if it is not heard again.';
COMMENT ON CONSTRAINT queue_reader_of_queue ON embedded.queue_reader IS 'A reader of a queue reads a cursor that exists.';

CREATE TABLE embedded.unsettled (
    log_id       bigint  NOT NULL,
    log_offset   bigint  NOT NULL,
    batch        bigint,
    visible_at   timestamptz,
    first_hash   integer NOT NULL DEFAULT 0,
    deliveries   integer NOT NULL,
    subscription text COLLATE "C" NOT NULL,
    mark         text,
    PRIMARY KEY (log_id, subscription, log_offset),
    CONSTRAINT unsettled_of_queue FOREIGN KEY (log_id, subscription, first_hash)
        REFERENCES embedded.cursor ON DELETE CASCADE,
    CONSTRAINT unsettled_held_or_waiting CHECK (
        (mark IS NULL) = (batch IS NULL) AND (mark IS NULL) = (visible_at IS NOT NULL)),
    CONSTRAINT unsettled_deliveries_not_negative CHECK (deliveries >= 0)
) WITH (fillfactor = 70);
CREATE INDEX unsettled_waiting ON embedded.unsettled (log_id, subscription, visible_at) WHERE mark IS NULL;
CREATE INDEX unsettled_held ON embedded.unsettled (mark, batch) WHERE mark IS NOT NULL;
COMMENT ON TABLE embedded.unsettled IS
    'Messages of a queue that were given out and are not acknowledged: held by a reader, or waiting to be given out again.';
COMMENT ON CONSTRAINT unsettled_of_queue ON embedded.unsettled IS 'What is unsettled is so for a cursor that exists.';
COMMENT ON CONSTRAINT unsettled_held_or_waiting ON embedded.unsettled IS
    'An unsettled message is held by one reader, which got it in one batch, or waits until an instant.';
COMMENT ON CONSTRAINT unsettled_deliveries_not_negative ON embedded.unsettled IS 'A message was delivered 0 times or more.';

GRANT SELECT, INSERT, UPDATE, DELETE ON embedded.queue_reader, embedded.unsettled TO cleave_controller;

CREATE FUNCTION embedded.end_queue() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM embedded.unsettled WHERE log_id = OLD.log_id AND subscription = OLD.subscription;
    DELETE FROM embedded.queue_reader WHERE log_id = OLD.log_id AND subscription = OLD.subscription;
    NEW.frontier := NULL;
    RETURN NEW;
END $$;
CREATE TRIGGER cursor_ends_queue BEFORE UPDATE OF generation, last_hash, owner ON embedded.cursor
    FOR EACH ROW WHEN (OLD.frontier IS NOT NULL AND (NEW.generation <> OLD.generation OR NEW.last_hash <> OLD.last_hash))
    EXECUTE FUNCTION embedded.end_queue();

-- Where a log begins and ends now, and the first offset published at or after the instant, if one is given.
-- No row where there is no such log.
CREATE FUNCTION embedded.bounds(
    log_name text, instant timestamptz,
    OUT log_id bigint, OUT first_offset bigint, OUT next_offset bigint, OUT at_instant bigint
) RETURNS SETOF record LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT l.log_id, l.first_offset, l.next_offset,
           CASE WHEN instant IS NOT NULL THEN embedded.offset_at(l.log_id, instant) END
      FROM embedded.log l WHERE l.name = log_name
$$;

-- Up to `most` messages from `from_offset` on, some `most_bytes` at most, and after them a row whose payload is NULL: with the
-- offset to go on from, the first offset that the log still has, and whether nothing can ever follow. No row at all where
-- there is no such log. One snapshot for all of it (STABLE), so what was trimmed is not taken for what was never there.
CREATE FUNCTION embedded.read_at(of_log_id bigint, from_offset bigint, most integer, most_bytes bigint)
RETURNS TABLE (
    log_offset bigint, published_at timestamptz, key bytea, payload bytea, first_offset bigint, is_at_end boolean)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    target embedded.log;
    bytes  bigint := 0;
    given  integer := 0;
    upto   bigint := from_offset;
BEGIN
    SELECT * INTO target FROM embedded.log l WHERE l.log_id = of_log_id;
    IF NOT FOUND THEN
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
    RETURN NEXT;
END $$;

-- Begin to read a queue as `new_mark`, which nobody used before. Answers opened | missing | unsubscribed.
-- Who read the cursor in order is cut off; what parts of it had acknowledged above the lowest position comes again.
CREATE FUNCTION embedded.queue_open(
    log_name text, of_subscription text, new_mark text, new_owner text, life_seconds double precision,
    OUT outcome text, OUT log_id bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    of_log_id bigint;
    before    record;
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
    SELECT min(c.position) AS position, max(c.frontier) AS frontier, sum(c.msg_out) AS msg_out, sum(c.byte_out) AS byte_out
      INTO before
      FROM embedded.cursor c WHERE c.log_id = of_log_id AND c.subscription = of_subscription;
    IF before.frontier IS NULL THEN
        DELETE FROM embedded.cursor c
         WHERE c.log_id = of_log_id AND c.subscription = of_subscription AND c.first_hash > 0;
        UPDATE embedded.cursor c
           SET last_hash = 65535, owner = NULL, generation = nextval('embedded.generation'),
               position = before.position, frontier = before.position, msg_out = before.msg_out, byte_out = before.byte_out
         WHERE c.log_id = of_log_id AND c.subscription = of_subscription AND c.first_hash = 0;
        PERFORM pg_notify('embedded_arrivals', of_log_id::text);
    END IF;
    INSERT INTO embedded.queue_reader (mark, log_id, subscription, owner, alive_until)
    VALUES (new_mark, of_log_id, of_subscription, new_owner, clock_timestamp() + life_seconds * interval '1 s');
    outcome := 'opened';
END $$;

-- Give to others what the readers hold that have not been heard in time. The cursor is locked.
CREATE FUNCTION embedded.queue_reap(of_log_id bigint, of_subscription text) RETURNS void LANGUAGE sql AS $$
    WITH gone AS (
        DELETE FROM embedded.queue_reader
         WHERE log_id = of_log_id AND subscription = of_subscription AND alive_until < clock_timestamp()
         RETURNING mark)
    UPDATE embedded.unsettled u SET mark = NULL, batch = NULL, visible_at = clock_timestamp()
      FROM gone WHERE u.mark = gone.mark
$$;

-- Take up to `most` messages, some `most_bytes` at most, first those that are given out again. After them comes a row whose
-- payload is NULL. No row at all where the reader is known no more: it was not heard for too long, or the queue has ended.
-- A batch that is asked for again under its number, because the answer was lost, is what it was. No more than `most_unsettled`
-- messages are unsettled at a time, so that what a queue has to remember is bounded.
CREATE FUNCTION embedded.queue_take(
    of_log_id bigint, of_subscription text, of_mark text, of_batch bigint,
    most integer, most_bytes bigint, most_unsettled integer, life_seconds double precision
) RETURNS TABLE (log_offset bigint, published_at timestamptz, key bytea, payload bytea, deliveries integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    start    bigint;
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
            (SELECT l.next_offset FROM embedded.log l WHERE l.log_id = of_log_id) - start);
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
            bytes := bytes + octet_length(queue_take.payload) + coalesce(octet_length(queue_take.key), 0);
            RETURN NEXT;
        END LOOP;
    END IF;
    IF of_batch > batches AND given > 0 THEN
        UPDATE embedded.cursor c SET frontier = upto, msg_out = c.msg_out + given, byte_out = c.byte_out + bytes
         WHERE c.log_id = of_log_id AND c.subscription = of_subscription AND c.first_hash = 0;
    END IF;
    log_offset := upto;
    published_at := NULL;
    key := NULL;
    payload := NULL;
    deliveries := NULL;
    RETURN NEXT;
END $$;

-- Acknowledge these offsets, each as it was given out in that batch. Gives back those that are not settled then: others have
-- them, or they wait to be given out again. NULL where there is no cursor. What is acknowledged already stays so.
CREATE FUNCTION embedded.queue_acknowledge(
    of_log_id bigint, of_subscription text, of_mark text, offsets bigint[], batches bigint[]
) RETURNS bigint[] LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    before  record;
    lowest  bigint;
    refused bigint[];
BEGIN
    SELECT c.position, c.frontier INTO before FROM embedded.cursor c
     WHERE c.log_id = of_log_id AND c.subscription = of_subscription AND c.first_hash = 0 FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    DELETE FROM embedded.unsettled u USING unnest(offsets, batches) AS done (log_offset, batch)
     WHERE u.log_id = of_log_id AND u.subscription = of_subscription AND u.log_offset = done.log_offset
       AND u.mark = of_mark AND u.batch = done.batch;
    SELECT coalesce(array_agg(o.log_offset), '{}') INTO refused FROM unnest(offsets) AS o (log_offset)
     WHERE o.log_offset >= coalesce(before.frontier, before.position)
        OR EXISTS (SELECT FROM embedded.unsettled u
                    WHERE u.log_id = of_log_id AND u.subscription = of_subscription AND u.log_offset = o.log_offset);
    SELECT coalesce(min(u.log_offset), before.frontier) INTO lowest FROM embedded.unsettled u
     WHERE u.log_id = of_log_id AND u.subscription = of_subscription;
    IF lowest > before.position THEN
        UPDATE embedded.cursor c SET position = lowest
         WHERE c.log_id = of_log_id AND c.subscription = of_subscription AND c.first_hash = 0;
        PERFORM pg_notify('embedded_arrivals', of_log_id::text) FROM embedded.log l
          WHERE l.log_id = of_log_id AND l.terminated_at IS NOT NULL AND l.next_offset = lowest;
    END IF;
    RETURN refused;
END $$;

-- Give these back, to be given out again after the delay. `unseen`: nobody had them in hand, so that it does not count.
CREATE FUNCTION embedded.queue_give_back(
    of_log_id bigint, of_subscription text, of_mark text, offsets bigint[], batches bigint[],
    delay_seconds double precision, unseen boolean
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM embedded.cursor
      WHERE log_id = of_log_id AND subscription = of_subscription AND first_hash = 0 FOR UPDATE;
    UPDATE embedded.unsettled u
       SET mark = NULL, batch = NULL, visible_at = clock_timestamp() + delay_seconds * interval '1 s',
           deliveries = u.deliveries - CASE WHEN unseen THEN 1 ELSE 0 END
      FROM unnest(offsets, batches) AS back (log_offset, batch)
     WHERE u.log_id = of_log_id AND u.subscription = of_subscription AND u.log_offset = back.log_offset
       AND u.mark = of_mark AND u.batch = back.batch;
    IF FOUND AND delay_seconds <= 0 THEN
        PERFORM pg_notify('embedded_arrivals', of_log_id::text);
    END IF;
END $$;

-- These readers are alive. Gives back those of them that are known.
CREATE FUNCTION embedded.queue_keep(marks text[], life_seconds double precision)
RETURNS SETOF text LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE embedded.queue_reader r SET alive_until = clock_timestamp() + life_seconds * interval '1 s'
      FROM (SELECT mark FROM embedded.queue_reader WHERE mark = ANY (marks) ORDER BY mark FOR NO KEY UPDATE) known
     WHERE r.mark = known.mark RETURNING r.mark
$$;

-- Whether the log is closed and all of it acknowledged. NULL where there is no cursor.
CREATE FUNCTION embedded.queue_is_drained(of_log_id bigint, of_subscription text)
RETURNS boolean LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT l.terminated_at IS NOT NULL AND c.position >= l.next_offset
      FROM embedded.log l JOIN embedded.cursor c USING (log_id)
     WHERE l.log_id = of_log_id AND c.subscription = of_subscription AND c.first_hash = 0 AND c.last_hash = 65535
$$;

-- The reader leaves; what it holds is given to others.
CREATE FUNCTION embedded.queue_close(of_log_id bigint, of_subscription text, of_mark text)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM embedded.cursor
      WHERE log_id = of_log_id AND subscription = of_subscription AND first_hash = 0 FOR UPDATE;
    DELETE FROM embedded.queue_reader WHERE mark = of_mark;
    UPDATE embedded.unsettled SET mark = NULL, batch = NULL, visible_at = clock_timestamp()
     WHERE mark = of_mark;
    IF FOUND THEN
        PERFORM pg_notify('embedded_arrivals', of_log_id::text);
    END IF;
END $$;

-- Messages that are not acknowledged; NULL where there is no such log or cursor. Counts one by one only between the
-- lowest and the highest position of the parts, and the unsettled of a queue.
CREATE OR REPLACE FUNCTION embedded.backlog(log_name text, of_subscription text) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN p.frontier IS NULL THEN
           l.next_offset - p.highest + (
           SELECT count(*) FROM embedded.message m
            WHERE m.log_id = l.log_id AND m.log_offset >= p.lowest AND m.log_offset < p.highest
              AND m.log_offset >= (SELECT c.position FROM embedded.cursor c
                                    WHERE c.log_id = l.log_id AND c.subscription = of_subscription
                                      AND c.first_hash <= coalesce(m.bucket_hash, embedded.bucket_hash_of(m.key))
                                    ORDER BY c.first_hash DESC LIMIT 1))
           ELSE l.next_offset - p.frontier + (
           SELECT count(*) FROM embedded.unsettled u WHERE u.log_id = l.log_id AND u.subscription = of_subscription) END
      FROM embedded.log l
     CROSS JOIN LATERAL (SELECT min(position) AS lowest, max(position) AS highest, max(frontier) AS frontier
                           FROM embedded.cursor c
                          WHERE c.log_id = l.log_id AND c.subscription = of_subscription) p
     WHERE l.name = log_name AND p.lowest IS NOT NULL
$$;

REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA embedded FROM PUBLIC;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA embedded TO cleave_controller;
GRANT EXECUTE ON FUNCTION
    embedded.bounds(text, timestamptz),
    embedded.read_at(bigint, bigint, integer, bigint),
    embedded.queue_open(text, text, text, text, double precision),
    embedded.queue_take(bigint, text, text, bigint, integer, bigint, integer, double precision),
    embedded.queue_acknowledge(bigint, text, text, bigint[], bigint[]),
    embedded.queue_give_back(bigint, text, text, bigint[], bigint[], double precision, boolean),
    embedded.queue_keep(text[], double precision),
    embedded.queue_is_drained(bigint, text),
    embedded.queue_close(bigint, text, text)
TO cleave_client;
