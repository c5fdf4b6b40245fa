-- Reading an embedded log as a queue.
--
-- A cursor that is read as a queue has a frontier. Each message below the frontier was delivered to a reader. Of these messages, each
-- message that is not acknowledged has a row in `unsettled`; a message without a row is acknowledged. So position is the lowest
-- unsettled offset, or the frontier if no message is unsettled. Trimming, drains and the backlog depend on position only.
--
-- A queue exists for one generation of its cursor. A statement that moves the cursor, or takes the cursor to read in order, ends the
-- queue: messages that were delivered and not acknowledged are delivered again, and late acknowledgements are refused. A function that
-- changes a queue locks the log first (if it locks the log at all), then the part of the cursor that begins at 0.

CREATE TABLE embedded.queue_reader (
    mark         text        PRIMARY KEY,
    log_id       bigint      NOT NULL,
    subscription text        COLLATE "C" NOT NULL,
    first_hash   integer     NOT NULL DEFAULT 0,
    owner        text        NOT NULL,
    last_batch   bigint      NOT NULL DEFAULT 0,
    alive_until  timestamptz NOT NULL,
    login        text,
    CONSTRAINT queue_reader_of_queue FOREIGN KEY (log_id, subscription, first_hash)
        REFERENCES embedded.cursor ON DELETE CASCADE
) WITH (fillfactor = 50);
CREATE INDEX queue_reader_of_cursor ON embedded.queue_reader (log_id, subscription, alive_until);
COMMENT ON TABLE embedded.queue_reader IS 'One row per reader of a queue, and the time until which it counts as alive without another heartbeat.';
COMMENT ON COLUMN embedded.queue_reader.login IS 'Login that opened the reader, and the only login that may use its mark.';

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
    'Messages of a queue that were delivered and are not acknowledged: held by a reader, or waiting for the next delivery.';
COMMENT ON CONSTRAINT unsettled_held_or_waiting ON embedded.unsettled IS
    'An unsettled message has the reader and the batch of its delivery, or the time of its next delivery.';

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

-- Begin to read a queue as `new_mark`, which no reader used before. The outcome is opened | missing | unsubscribed.
--
-- A reader that reads the cursor in order loses the cursor, and messages that its parts had acknowledged above the lowest position are
-- delivered again. A reader counts as alive for at most an hour without a heartbeat. A login has at most 10,000 readers of a queue.
CREATE FUNCTION embedded.queue_open(
    log_name text, of_subscription text, new_mark text, new_owner text, life_seconds double precision,
    OUT outcome text, OUT log_id bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    of_log_id bigint;
    before    record;
BEGIN
    IF (life_seconds > 0 AND life_seconds <= 3600) IS NOT TRUE THEN
        RAISE EXCEPTION 'a life of % s; give more than 0 and at most 3600', life_seconds USING ERRCODE = 'invalid_parameter_value';
    ELSIF (octet_length(new_mark) BETWEEN 1 AND 64 AND octet_length(new_owner) BETWEEN 1 AND 1000) IS NOT TRUE THEN
        RAISE EXCEPTION 'a mark of % bytes and an owner of % bytes; give 1 to 64 and 1 to 1000', octet_length(new_mark),
            octet_length(new_owner) USING ERRCODE = 'invalid_parameter_value';
    END IF;
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
    PERFORM embedded.queue_reap(of_log_id, of_subscription);
    IF (SELECT count(*) FROM embedded.queue_reader r
         WHERE r.log_id = of_log_id AND r.subscription = of_subscription AND r.login = session_user) >= 10000 THEN
        RAISE EXCEPTION 'login % has 10000 readers of % on log %; close some', quote_literal(session_user),
            quote_literal(of_subscription), log_name USING ERRCODE = 'configuration_limit_exceeded';
    END IF;
    INSERT INTO embedded.queue_reader (mark, log_id, subscription, owner, login, alive_until)
    VALUES (new_mark, of_log_id, of_subscription, new_owner, session_user, clock_timestamp() + life_seconds * interval '1 s');
    outcome := 'opened';
END $$;

-- Delete readers whose time has expired, and make their messages available to other readers. The caller has locked the cursor.
CREATE FUNCTION embedded.queue_reap(of_log_id bigint, of_subscription text) RETURNS void LANGUAGE sql AS $$
    WITH gone AS (
        DELETE FROM embedded.queue_reader
         WHERE log_id = of_log_id AND subscription = of_subscription AND alive_until < clock_timestamp()
         RETURNING mark)
    UPDATE embedded.unsettled u SET mark = NULL, batch = NULL, visible_at = clock_timestamp()
      FROM gone WHERE u.mark = gone.mark
$$;

-- Take up to `most` messages and about `most_bytes` bytes, first those that are delivered again. The last row has no payload.
--
-- Returns no row if the reader does not exist (it was silent for too long, or the queue has ended), or if the log does not have the
-- message at `last_offset`, the highest offset that was delivered to the reader, in `last_timeline`. A batch that is requested again
-- under its number, because the answer was lost, is the same batch. At most `most_unsettled` messages, and never more than 10,000, are
-- unsettled at a time, so that the memory of a queue is bounded. The other limits are those of `read`.
CREATE FUNCTION embedded.queue_take(
    of_log_id bigint, of_subscription text, of_mark text, of_batch bigint, most integer, most_bytes bigint, most_unsettled integer,
    life_seconds double precision, last_offset bigint DEFAULT NULL, last_timeline bigint DEFAULT NULL
) RETURNS TABLE (log_offset bigint, published_at timestamptz, key bytea, payload bytea, metadata jsonb, deliveries integer, timelines bigint[])
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
    IF (life_seconds > 0 AND life_seconds <= 3600) IS NOT TRUE THEN
        RAISE EXCEPTION 'a life of % s; give more than 0 and at most 3600', life_seconds USING ERRCODE = 'invalid_parameter_value';
    ELSIF (most >= 1 AND most_bytes >= 0 AND most_unsettled >= 0 AND of_batch >= 1) IS NOT TRUE THEN
        RAISE EXCEPTION 'batch % of % messages and % bytes with % unsettled; give 1 or more', of_batch, most, most_bytes, most_unsettled
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    most := least(most, 10000);
    most_bytes := least(most_bytes, 16777216);
    most_unsettled := least(most_unsettled, 10000);
    SELECT c.frontier INTO start FROM embedded.cursor c
     WHERE c.log_id = of_log_id AND c.subscription = of_subscription AND c.first_hash = 0 FOR UPDATE;
    UPDATE embedded.queue_reader r SET alive_until = clock_timestamp() + life_seconds * interval '1 s'
     WHERE r.mark = of_mark AND r.log_id = of_log_id AND r.subscription = of_subscription
       AND coalesce(r.login, session_user) = session_user
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
            SELECT u.log_offset, s.size, row_number() OVER w AS place, sum(s.size) OVER w AS total
              FROM (SELECT x.log_offset, x.visible_at FROM embedded.unsettled x
                     WHERE x.log_id = of_log_id AND x.subscription = of_subscription AND x.mark IS NULL
                       AND x.visible_at <= clock_timestamp()
                     ORDER BY x.visible_at, x.log_offset LIMIT most) u
              JOIN embedded.message m ON m.log_id = of_log_id AND m.log_offset = u.log_offset
             CROSS JOIN LATERAL (SELECT octet_length(m.payload) + coalesce(octet_length(m.key), 0)
                                        + coalesce(m.metadata_bytes, 0) AS size) s
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
            SELECT m.log_offset, row_number() OVER w AS place,
                   sum(octet_length(m.payload) + coalesce(octet_length(m.key), 0) + coalesce(m.metadata_bytes, 0)) OVER w AS total
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
        FOR log_offset, published_at, key, payload, metadata, deliveries IN
            SELECT u.log_offset, m.published_at, m.key, m.payload, m.metadata, u.deliveries
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
    published_at := NULL; key := NULL; payload := NULL; metadata := NULL; deliveries := NULL;
    RETURN NEXT;
END $$;

-- Acknowledge these offsets, each with the batch in which it was delivered. Returns the offsets that are still not acknowledged: other
-- readers hold them, or they wait for their next delivery. Returns NULL if there is no cursor. Idempotent.
CREATE FUNCTION embedded.queue_acknowledge(
    of_log_id bigint, of_subscription text, of_mark text, offsets bigint[], batches bigint[]
) RETURNS bigint[] LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    before  record;
    lowest  bigint;
    refused bigint[];
BEGIN
    IF (cardinality(offsets) <= 10000 AND cardinality(batches) = cardinality(offsets)) IS NOT TRUE THEN
        RAISE EXCEPTION '% offsets with % batches; give as many of each, at most 10000', cardinality(offsets), cardinality(batches)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
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

-- Return messages to the queue, to be delivered again after the delay. The delay is at most a week, because a waiting message keeps its
-- log from being trimmed and drained. `unseen`: the application did not get the messages, so the delivery does not count.
CREATE FUNCTION embedded.queue_give_back(
    of_log_id bigint, of_subscription text, of_mark text, offsets bigint[], batches bigint[],
    delay_seconds double precision, unseen boolean
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (cardinality(offsets) <= 10000 AND cardinality(batches) = cardinality(offsets)) IS NOT TRUE THEN
        RAISE EXCEPTION '% offsets with % batches; give as many of each, at most 10000', cardinality(offsets), cardinality(batches)
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF (delay_seconds >= 0 AND delay_seconds <= 604800 AND unseen IS NOT NULL) IS NOT TRUE THEN
        RAISE EXCEPTION 'a delay of % s; give 0 to 604800', delay_seconds USING ERRCODE = 'invalid_parameter_value';
    END IF;
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

-- Extend the time of these readers. Returns the readers that exist and belong to this login.
CREATE FUNCTION embedded.queue_keep(marks text[], life_seconds double precision)
RETURNS SETOF text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (life_seconds > 0 AND life_seconds <= 3600 AND cardinality(marks) <= 100000) IS NOT TRUE THEN
        RAISE EXCEPTION 'a life of % s for % readers; give more than 0 and at most 3600 s, and at most 100000 readers', life_seconds,
            cardinality(marks) USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN QUERY
    UPDATE embedded.queue_reader r SET alive_until = clock_timestamp() + life_seconds * interval '1 s'
      FROM (SELECT mark FROM embedded.queue_reader
             WHERE mark = ANY (marks) AND coalesce(login, session_user) = session_user ORDER BY mark FOR NO KEY UPDATE) locked
     WHERE r.mark = locked.mark RETURNING r.mark;
END $$;

-- Return true if the log is terminated and completely acknowledged. NULL if there is no cursor.
CREATE FUNCTION embedded.queue_is_drained(of_log_id bigint, of_subscription text)
RETURNS boolean LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT l.terminated_at IS NOT NULL AND c.position >= l.next_offset
      FROM embedded.log l JOIN embedded.cursor c USING (log_id)
     WHERE l.log_id = of_log_id AND c.subscription = of_subscription AND c.first_hash = 0 AND c.last_hash = 65535
$$;

-- Delete the reader, and make its messages available to other readers.
CREATE FUNCTION embedded.queue_close(of_log_id bigint, of_subscription text, of_mark text)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM embedded.cursor
      WHERE log_id = of_log_id AND subscription = of_subscription AND first_hash = 0 FOR UPDATE;
    DELETE FROM embedded.queue_reader
     WHERE mark = of_mark AND log_id = of_log_id AND subscription = of_subscription AND coalesce(login, session_user) = session_user;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    UPDATE embedded.unsettled SET mark = NULL, batch = NULL, visible_at = clock_timestamp()
     WHERE mark = of_mark;
    IF FOUND THEN
        PERFORM pg_notify('embedded_arrivals', of_log_id::text);
    END IF;
END $$;
