-- Entry buckets of the embedded logs, an end to what nobody needs any more, and functions for applications.
--
-- A cursor is in parts that tile the ring of bucket hashes, 0 to 65535. Each part has a position, an owner and a
-- generation of its own; a cursor that is nowhere divided is one part. A reader holds the parts of one generation,
-- and loses all of them or none. Who changes parts locks the log first (if it locks the log at all), then the
-- part that begins at 0, which every cursor has, then the others by their first hash. Who moves its own parts locks
-- them in the same order.

-- first_offset is the first that is still there: 0 until a part of the log is trimmed.
ALTER TABLE embedded.log
    ADD COLUMN first_offset bigint NOT NULL DEFAULT 0,
    ADD CONSTRAINT log_first_offset_within CHECK (first_offset BETWEEN 0 AND next_offset);
COMMENT ON CONSTRAINT log_first_offset_within ON embedded.log IS 'Only messages that were stored can be trimmed.';
CREATE FUNCTION embedded.log_begins_no_earlier() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'What is trimmed of log % does not come back.', OLD.name
        USING ERRCODE = 'check_violation', CONSTRAINT = 'log_begins_no_earlier';
END $$;
CREATE TRIGGER log_begins_no_earlier BEFORE UPDATE OF first_offset ON embedded.log
    FOR EACH ROW WHEN (NEW.first_offset < OLD.first_offset) EXECUTE FUNCTION embedded.log_begins_no_earlier();

-- NULL in messages stored before this column was here: bucket_hash_of(key) says it.
ALTER TABLE embedded.message
    ADD COLUMN bucket_hash integer,
    ADD CONSTRAINT message_bucket_hash_on_ring CHECK (bucket_hash BETWEEN 0 AND 65535);
COMMENT ON CONSTRAINT message_bucket_hash_on_ring ON embedded.message IS 'A bucket hash is 0 to 65535; no reader would find another.';
COMMENT ON TABLE embedded.message IS
    'Offsets of a log run from its first_offset without a gap; published_at never falls along them.';

ALTER TABLE embedded.cursor
    ADD COLUMN first_hash integer NOT NULL DEFAULT 0,
    ADD COLUMN last_hash  integer NOT NULL DEFAULT 65535,
    DROP CONSTRAINT cursor_pkey,
    ADD PRIMARY KEY (log_id, subscription, first_hash),
    ADD CONSTRAINT cursor_part_on_ring CHECK (0 <= first_hash AND first_hash <= last_hash AND last_hash <= 65535);
COMMENT ON CONSTRAINT cursor_part_on_ring ON embedded.cursor IS 'A part of a cursor is a range of bucket hashes, 0 to 65535.';
COMMENT ON TABLE embedded.cursor IS
    'Parts of cursors. position is the first offset that is not acknowledged; what lies above it in other parts is not the part''s.';

-- Each generation is given out once, so that a stale reader is stale for ever, whatever becomes of the cursor.
CREATE SEQUENCE embedded.generation;
SELECT setval('embedded.generation', (SELECT coalesce(max(generation), 0) + 1 FROM embedded.cursor));

-- The low half of Murmur3 (x86, 32 bits, seed 0), as producers compute it. Slow; for messages stored without it.
CREATE FUNCTION embedded.bucket_hash_of(key bytea) RETURNS integer
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    size bigint := coalesce(length(key), 0);
    hash bigint := 0;
    word bigint;
BEGIN
    IF key IS NULL THEN
        RETURN 0;
    END IF;
    FOR start IN 0 .. size - 1 BY 4 LOOP
        word := 0;
        FOR place IN 0 .. least(3, size - start - 1) LOOP
            word := word | (get_byte(key, (start + place)::integer)::bigint << (8 * place)::integer);
        END LOOP;
        word := word::numeric * 3432918353 % 4294967296;
        word := ((word << 15) | (word >> 17)) & 4294967295;
        hash := hash # (word::numeric * 461845907 % 4294967296)::bigint;
        CONTINUE WHEN start + 3 >= size;  -- the tail, shorter than a word, is not mixed any further
        hash := ((hash << 13) | (hash >> 19)) & 4294967295;
        hash := (hash * 5 + 3864292196) & 4294967295;
    END LOOP;
    hash := hash # size;
    hash := (hash # (hash >> 16))::numeric * 2246822507 % 4294967296;
    hash := (hash # (hash >> 13))::numeric * 3266489909 % 4294967296;
    RETURN (hash # (hash >> 16)) & 65535;
END $$;

-- Store a batch, whole or not at all. One statement on purpose: the log's lock is never held while the server
-- waits for a client, so a producer that is paused in the middle of a batch cannot keep the fence from falling.
-- Answers granted | stored (this batch, or a later one of the producer, is in already) | terminated | missing.
-- The order of the questions matters: a batch stored just before the fence is stored, whatever came after.
DROP FUNCTION embedded.append(text, text, bigint, bigint, bytea[], bytea[]);
CREATE FUNCTION embedded.append(
    log_name text, producer_name text, batch_sequence bigint, batch_bytes bigint,
    keys bytea[], payloads bytea[], bucket_hashes integer[],
    OUT outcome text, OUT log_id bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    target embedded.log;
    moment timestamptz;
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
    outcome := 'granted';
END $$;

-- Lock all parts of a cursor. In two statements: whoever held the first part may have divided others meanwhile.
-- False where there is no cursor.
CREATE FUNCTION embedded.lock_parts(of_log_id bigint, of_subscription text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM embedded.cursor
      WHERE log_id = of_log_id AND subscription = of_subscription AND first_hash = 0 FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM FROM embedded.cursor
      WHERE log_id = of_log_id AND subscription = of_subscription ORDER BY first_hash FOR UPDATE;
    RETURN true;
END $$;

-- Divide the part that has hashes on both sides of `at`, if there is one. It is nobody's, and locked.
CREATE FUNCTION embedded.divide_part(of_log_id bigint, of_subscription text, at integer) RETURNS void LANGUAGE sql AS $$
    WITH whole AS (
        SELECT last_hash, position FROM embedded.cursor
         WHERE log_id = of_log_id AND subscription = of_subscription AND first_hash < at AND at <= last_hash
    ), lower AS (
        UPDATE embedded.cursor SET last_hash = at - 1
         WHERE log_id = of_log_id AND subscription = of_subscription AND first_hash < at AND at <= last_hash)
    INSERT INTO embedded.cursor (log_id, subscription, first_hash, last_hash, position, generation)
    SELECT of_log_id, of_subscription, at, last_hash, position, nextval('embedded.generation') FROM whole;
$$;

-- Make one part of all parts of a generation, if they are at one position. They are locked.
CREATE FUNCTION embedded.join_parts(of_log_id bigint, of_subscription text, of_generation bigint)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    parts record;
BEGIN
    SELECT min(first_hash) AS first_hash, max(last_hash) AS last_hash, sum(msg_out) AS msg_out, sum(byte_out) AS byte_out
      INTO parts
      FROM embedded.cursor
     WHERE log_id = of_log_id AND subscription = of_subscription AND generation = of_generation
    HAVING count(*) > 1 AND min(position) = max(position);
    IF FOUND THEN
        DELETE FROM embedded.cursor
         WHERE log_id = of_log_id AND subscription = of_subscription AND generation = of_generation
           AND first_hash > parts.first_hash;
        UPDATE embedded.cursor
           SET last_hash = parts.last_hash, msg_out = parts.msg_out, byte_out = parts.byte_out
         WHERE log_id = of_log_id AND subscription = of_subscription AND first_hash = parts.first_hash;
    END IF;
END $$;

-- Take the part of a cursor that has the hashes `low` to `high`, all of it or nothing.
-- Answers taken | held (by `holder`, which lives) | missing (no such log) | unsubscribed (no such cursor).
-- Whoever held a piece of it loses all that it held. What is outside the range is nobody's then.
CREATE FUNCTION embedded.take(
    log_name text, of_subscription text, new_owner text, live_owners text[], low integer, high integer,
    OUT outcome text, OUT log_id bigint, OUT generation bigint, OUT start bigint, OUT holder text
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
    generation := nextval('embedded.generation');
    UPDATE embedded.cursor c SET owner = new_owner, generation = take.generation
     WHERE c.log_id = of_log_id AND c.subscription = of_subscription AND c.first_hash BETWEEN low AND high;
    PERFORM embedded.join_parts(of_log_id, of_subscription, take.generation);
    SELECT min(c.position) INTO start FROM embedded.cursor c
     WHERE c.log_id = of_log_id AND c.subscription = of_subscription AND c.generation = take.generation;
    outcome := 'taken';
END $$;

-- Acknowledge what lies below `upto` in the parts of this generation, and count what was delivered. False where the
-- generation holds nothing. The last acknowledgement of a part rings, since its peers wait for it at the log's end.
CREATE FUNCTION embedded.acknowledge(
    of_log_id bigint, of_subscription text, of_generation bigint, upto bigint, messages bigint, bytes bigint
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
    upto := least(upto, ended.next_offset);
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

-- Up to `most` messages of this generation's parts, from `from_offset` on, some `most_bytes` at most, and after them a
-- row with the offset to go on from, whose payload is NULL. No row at all where the generation holds nothing.
--
-- At most `most_scanned` offsets are looked at, in steps that grow: offsets are dense, so a range of them works as a
-- limit, and the planner cannot misjudge it. Where all that was delivered is settled, `lag` says so: a reader that
-- finds nothing then moves its parts, if they are more than `lag` behind what it has looked at.
CREATE FUNCTION embedded.read(
    of_log_id bigint, of_subscription text, of_generation bigint, from_offset bigint,
    most integer, most_bytes bigint, most_scanned bigint, lag bigint
) RETURNS TABLE (log_offset bigint, published_at timestamptz, key bytea, payload bytea)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    held     record;
    scanned  bigint := from_offset;
    stop     bigint;
    step     bigint;
    upto     bigint;
    given    integer := 0;
    bytes    bigint := 0;
BEGIN
    SELECT min(first_hash) AS low, max(last_hash) AS high, min(position) AS lowest, max(position) AS settled INTO held
      FROM embedded.cursor
     WHERE log_id = of_log_id AND subscription = of_subscription AND generation = of_generation;
    SELECT least(next_offset, from_offset + most_scanned) INTO stop FROM embedded.log WHERE log_id = of_log_id;
    IF held.low IS NULL OR stop IS NULL THEN
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
    RETURN NEXT;
END $$;

-- Where this generation stands: whether the log is closed, and whether all parts of the cursor, whoever holds them, are
-- acknowledged to its end. No row where the generation holds nothing.
CREATE FUNCTION embedded.look(
    of_log_id bigint, of_subscription text, of_generation bigint,
    OUT is_terminated boolean, OUT all_settled boolean
) RETURNS SETOF record LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT terminated_at IS NOT NULL,
           NOT EXISTS (SELECT FROM embedded.cursor c
                        WHERE c.log_id = of_log_id AND c.subscription = of_subscription AND c.position < l.next_offset)
      FROM embedded.log l
     WHERE l.log_id = of_log_id
       AND EXISTS (SELECT FROM embedded.cursor c
                    WHERE c.log_id = of_log_id AND c.subscription = of_subscription AND c.generation = of_generation)
$$;

-- Let go of all parts of this generation, if it holds any.
CREATE FUNCTION embedded.release(of_log_id bigint, of_subscription text, of_generation bigint)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM embedded.cursor
      WHERE log_id = of_log_id AND subscription = of_subscription AND generation = of_generation
      ORDER BY first_hash FOR NO KEY UPDATE;
    UPDATE embedded.cursor SET owner = NULL, generation = nextval('embedded.generation')
     WHERE log_id = of_log_id AND subscription = of_subscription AND generation = of_generation;
    IF FOUND THEN
        PERFORM pg_notify('embedded_arrivals', of_log_id::text);
    END IF;
END $$;

-- The owner of each part that has hashes between `low` and `high`, NULL for nobody; no row where there is no cursor.
CREATE FUNCTION embedded.owners(of_log_id bigint, of_subscription text, low integer, high integer)
RETURNS SETOF text LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT owner FROM embedded.cursor
     WHERE log_id = of_log_id AND subscription = of_subscription AND first_hash <= high AND last_hash >= low
     ORDER BY first_hash
$$;

-- What the controller does follows.

-- The first offset published at or after the instant, by halving: published_at never falls within a log. Where that
-- is trimmed it is the first that is there.
CREATE OR REPLACE FUNCTION embedded.offset_at(of_log_id bigint, instant timestamptz)
RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
    low    bigint;
    high   bigint;
    middle bigint;
BEGIN
    SELECT first_offset, next_offset INTO low, high FROM embedded.log WHERE log_id = of_log_id;
    WHILE low < high LOOP
        middle := (low + high) / 2;
        IF (SELECT published_at FROM embedded.message WHERE log_id = of_log_id AND log_offset = middle) < instant THEN
            low := middle + 1;
        ELSE
            high := middle;
        END IF;
    END LOOP;
    RETURN low;
END $$;

-- Move a whole cursor to the first message at or after the instant, NULL for the end. It is one part then, of nobody.
-- False where there is no such log or cursor.
CREATE FUNCTION embedded.move(log_name text, of_subscription text, instant timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    target embedded.log;
BEGIN
    PERFORM FROM embedded.log WHERE name = log_name FOR KEY SHARE;  -- nothing is trimmed meanwhile
    SELECT * INTO target FROM embedded.log WHERE name = log_name;
    IF NOT FOUND OR NOT embedded.lock_parts(target.log_id, of_subscription) THEN
        RETURN false;
    END IF;
    WITH gone AS (
        DELETE FROM embedded.cursor
         WHERE log_id = target.log_id AND subscription = of_subscription AND first_hash > 0 RETURNING msg_out, byte_out)
    UPDATE embedded.cursor
       SET last_hash = 65535, owner = NULL, generation = nextval('embedded.generation'),
           position = CASE WHEN instant IS NULL THEN target.next_offset ELSE embedded.offset_at(target.log_id, instant) END,
           msg_out = msg_out + coalesce((SELECT sum(msg_out) FROM gone), 0),
           byte_out = byte_out + coalesce((SELECT sum(byte_out) FROM gone), 0)
     WHERE log_id = target.log_id AND subscription = of_subscription AND first_hash = 0;
    PERFORM pg_notify('embedded_arrivals', target.log_id::text);
    RETURN true;
END $$;

-- Messages that are not acknowledged; NULL where there is no such log or cursor. Counts one by one only between the
-- lowest and the highest position of the parts.
CREATE FUNCTION embedded.backlog(log_name text, of_subscription text) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT l.next_offset - p.highest + (
           SELECT count(*) FROM embedded.message m
            WHERE m.log_id = l.log_id AND m.log_offset >= p.lowest AND m.log_offset < p.highest
              AND m.log_offset >= (SELECT c.position FROM embedded.cursor c
                                    WHERE c.log_id = l.log_id AND c.subscription = of_subscription
                                      AND c.first_hash <= coalesce(m.bucket_hash, embedded.bucket_hash_of(m.key))
                                    ORDER BY c.first_hash DESC LIMIT 1))
      FROM embedded.log l
     CROSS JOIN LATERAL (SELECT min(position) AS lowest, max(position) AS highest FROM embedded.cursor c
                          WHERE c.log_id = l.log_id AND c.subscription = of_subscription) p
     WHERE l.name = log_name AND p.lowest IS NOT NULL
$$;

-- Of the next `most` logs above `after`: the last one, NULL when there is none, and those that begin with a message
-- older than `before` which all parts of all cursors have acknowledged.
CREATE FUNCTION embedded.trimmable(after bigint, before timestamptz, most bigint, OUT last bigint, OUT found bigint[])
LANGUAGE sql STABLE AS $$
    SELECT max(l.log_id),
           array_agg(l.log_id ORDER BY l.log_id) FILTER (WHERE
               l.first_offset < l.next_offset
               AND NOT EXISTS (SELECT FROM embedded.cursor c WHERE c.log_id = l.log_id AND c.position <= l.first_offset)
               AND (SELECT m.published_at FROM embedded.message m
                     WHERE m.log_id = l.log_id AND m.log_offset = l.first_offset) < before)
      FROM (SELECT log_id, first_offset, next_offset FROM embedded.log
             WHERE log_id > after ORDER BY log_id LIMIT most) l
$$;

-- Delete up to `most` messages from the front of a log: older than `before`, and acknowledged by all parts of all
-- cursors. The number deleted. Nobody makes or moves a cursor meanwhile; a log that somebody holds is left for later.
CREATE FUNCTION embedded.trim_log(of_log_id bigint, before timestamptz, most bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    start bigint;
    mark  bigint;
BEGIN
    SELECT first_offset INTO start FROM embedded.log WHERE log_id = of_log_id FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    mark := least(start + most, embedded.offset_at(of_log_id, before),
                  (SELECT min(position) FROM embedded.cursor WHERE log_id = of_log_id));
    IF mark <= start THEN
        RETURN 0;
    END IF;
    DELETE FROM embedded.message WHERE log_id = of_log_id AND log_offset < mark;
    UPDATE embedded.log SET first_offset = mark WHERE log_id = of_log_id;
    RETURN mark - start;
END $$;

-- Applications produce and consume through these functions and have no right on any table.
REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA embedded FROM PUBLIC;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA embedded TO cleave_controller;
GRANT USAGE ON SEQUENCE embedded.generation TO cleave_controller;
GRANT USAGE ON SCHEMA embedded TO cleave_client;
GRANT EXECUTE ON FUNCTION
    embedded.append(text, text, bigint, bigint, bytea[], bytea[], integer[]),
    embedded.take(text, text, text, text[], integer, integer),
    embedded.read(bigint, text, bigint, bigint, integer, bigint, bigint, bigint),
    embedded.acknowledge(bigint, text, bigint, bigint, bigint, bigint),
    embedded.look(bigint, text, bigint),
    embedded.release(bigint, text, bigint),
    embedded.owners(bigint, text, integer, integer)
TO cleave_client;
