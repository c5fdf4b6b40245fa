-- The functions that an application's login may call believe none of their arguments. Each one is bounded, or compared with what the
-- function computes itself, so that one application cannot overflow a counter, poison a log or make a row grow for the others. A row
-- that only one program may write carries the login that wrote it first (`session_user`). An argument that is out of bounds is
-- invalid_parameter_value, a row of another login insufficient_privilege, and a limit that is reached configuration_limit_exceeded.

ALTER TABLE embedded.producer
    ADD COLUMN login   text,
    ADD COLUMN used_at timestamptz NOT NULL DEFAULT now();
COMMENT ON COLUMN embedded.producer.login IS
    'Login that sends under this name, and the only one that may; NULL until the first batch after the column was added.';
COMMENT ON COLUMN embedded.producer.used_at IS 'Time of the last batch.';

ALTER TABLE embedded.queue_reader ADD COLUMN login text;
COMMENT ON COLUMN embedded.queue_reader.login IS
    'Login that opened the reader, and the only one that may use its mark; NULL for a reader opened before the column was added.';

ALTER TABLE embedded.cursor
    ADD COLUMN msg_counted  bigint NOT NULL DEFAULT 0,
    ADD COLUMN byte_counted bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN embedded.cursor.msg_counted IS
    'Messages that acknowledgements have reported since the last seek; never more than the log has taken.';
COMMENT ON COLUMN embedded.cursor.byte_counted IS
    'Bytes that acknowledgements have reported since the last seek; never more than the log has taken.';
UPDATE embedded.cursor c SET msg_counted = least(c.msg_out, l.next_offset), byte_counted = least(c.byte_out, l.byte_in)
  FROM embedded.log l WHERE l.log_id = c.log_id;

-- Append a batch. Answers granted | stored (was there already) | terminated | missing (no such log). The first batch of an incarnation
-- begins a timeline. Only the login that used the producer's name first may use it: a number sent under the name of another
-- producer would have that producer's next batches taken for repeats. A bucket hash is demanded, since readers would compute it.
CREATE OR REPLACE FUNCTION embedded.append(
    log_name text, producer_name text, batch_sequence bigint, batch_bytes bigint, keys bytea[], payloads bytea[], bucket_hashes integer[],
    OUT outcome text, OUT log_id bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    target embedded.log;
    known  record;
    moment timestamptz;
    newest embedded.timeline;
    size   bigint;
BEGIN
    IF (octet_length(producer_name) BETWEEN 1 AND 1000 AND batch_sequence >= 0) IS NOT TRUE THEN
        RAISE EXCEPTION 'producer of % bytes with sequence %; give a name of 1 to 1000 bytes and a sequence of 0 or more',
            octet_length(producer_name), batch_sequence USING ERRCODE = 'invalid_parameter_value';
    ELSIF (cardinality(payloads) BETWEEN 1 AND 100000 AND cardinality(keys) = cardinality(payloads)
           AND cardinality(bucket_hashes) = cardinality(payloads) AND array_ndims(payloads) = 1 AND array_ndims(keys) = 1
           AND array_position(bucket_hashes, NULL) IS NULL) IS NOT TRUE THEN
        RAISE EXCEPTION 'a batch of % payloads, % keys and % bucket hashes; give 1 to 100000 of each, and no NULL among the hashes',
            cardinality(payloads), cardinality(keys), cardinality(bucket_hashes) USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- An array is sent as 20 bytes and, for each element, 4 bytes and the element. A query that adds up the lengths takes longer.
    size := octet_length(array_send(payloads)) + octet_length(array_send(keys)) - 40 - 8 * cardinality(payloads);
    IF batch_bytes IS DISTINCT FROM size OR size > 16777216 THEN
        RAISE EXCEPTION 'batch_bytes is %, and keys and payloads have % bytes; give their sum, at most 16777216', batch_bytes, size
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT * INTO target FROM embedded.log WHERE name = log_name FOR NO KEY UPDATE;
    log_id := target.log_id;
    IF NOT FOUND THEN
        outcome := 'missing';
        RETURN;
    END IF;
    SELECT p.login, p.last_sequence INTO known FROM embedded.producer p WHERE p.log_id = target.log_id AND p.name = producer_name;
    IF known.login <> session_user THEN
        RAISE EXCEPTION 'producer % of log % belongs to another login than %; give each producer a name of its own',
            quote_literal(producer_name), log_name, quote_literal(session_user) USING ERRCODE = 'insufficient_privilege';
    ELSIF known.last_sequence >= batch_sequence THEN
        outcome := 'stored';
        RETURN;
    ELSIF target.terminated_at IS NOT NULL THEN
        outcome := 'terminated';
        RETURN;
    END IF;
    moment := greatest(clock_timestamp(), target.last_published_at);
    UPDATE embedded.log
       SET next_offset = next_offset + cardinality(payloads), byte_in = byte_in + size, last_published_at = moment
     WHERE log_id = target.log_id;
    INSERT INTO embedded.message (log_id, log_offset, published_at, key, payload, bucket_hash)
    SELECT target.log_id, target.next_offset + ordinal - 1, moment, key, payload, bucket_hash
      FROM unnest(keys, payloads, bucket_hashes) WITH ORDINALITY AS batch (key, payload, bucket_hash, ordinal);
    INSERT INTO embedded.producer AS p (log_id, name, last_sequence, login, used_at)
    VALUES (target.log_id, producer_name, batch_sequence, session_user, moment)
    ON CONFLICT ON CONSTRAINT producer_pkey
    DO UPDATE SET last_sequence = excluded.last_sequence, login = excluded.login, used_at = excluded.used_at;
    SELECT * INTO newest FROM embedded.timeline t WHERE t.log_id = target.log_id ORDER BY t.first_offset DESC LIMIT 1;
    IF newest.incarnation IS DISTINCT FROM embedded.incarnation() THEN
        INSERT INTO embedded.timeline AS t (log_id, first_offset, timeline, incarnation)
        VALUES (target.log_id, CASE WHEN newest.log_id IS NULL THEN 0 ELSE target.next_offset END,
                greatest((extract(epoch FROM clock_timestamp()) * 1000000)::bigint, newest.timeline + 1), embedded.incarnation())
        ON CONFLICT ON CONSTRAINT timeline_pkey DO UPDATE SET timeline = excluded.timeline, incarnation = excluded.incarnation;
    END IF;
    outcome := 'granted';
END $$;

-- Divide the part of a cursor that reaches across `at`. Both pieces have reported what the whole has: dividing gives no right to report it
-- again.
CREATE OR REPLACE FUNCTION embedded.divide_part(of_log_id bigint, of_subscription text, at integer) RETURNS void LANGUAGE sql AS $$
    WITH whole AS (
        SELECT last_hash, position, owned_origin, owned_generation, msg_counted, byte_counted FROM embedded.cursor
         WHERE log_id = of_log_id AND subscription = of_subscription AND first_hash < at AND at <= last_hash
    ), lower AS (
        UPDATE embedded.cursor SET last_hash = at - 1
         WHERE log_id = of_log_id AND subscription = of_subscription AND first_hash < at AND at <= last_hash)
    INSERT INTO embedded.cursor (log_id, subscription, first_hash, last_hash, position, generation, owned_origin, owned_generation,
                                 msg_counted, byte_counted)
    SELECT of_log_id, of_subscription, at, last_hash, position, nextval('embedded.generation'), owned_origin, owned_generation,
           msg_counted, byte_counted
      FROM whole;
$$;

-- Make one part of all parts of a generation, if they are at one position. They are locked. The newest of their ownerships is its own.
CREATE OR REPLACE FUNCTION embedded.join_parts(of_log_id bigint, of_subscription text, of_generation bigint)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    parts  record;
    newest record;
BEGIN
    SELECT min(first_hash) AS first_hash, max(last_hash) AS last_hash, sum(msg_out) AS msg_out, sum(byte_out) AS byte_out,
           max(msg_counted) AS msg_counted, max(byte_counted) AS byte_counted
      INTO parts
      FROM embedded.cursor
     WHERE log_id = of_log_id AND subscription = of_subscription AND generation = of_generation
    HAVING count(*) > 1 AND min(position) = max(position);
    IF FOUND THEN
        SELECT owned_origin, owned_generation INTO newest
          FROM embedded.cursor
         WHERE log_id = of_log_id AND subscription = of_subscription AND generation = of_generation
         ORDER BY owned_origin DESC NULLS LAST, owned_generation DESC LIMIT 1;
        DELETE FROM embedded.cursor
         WHERE log_id = of_log_id AND subscription = of_subscription AND generation = of_generation
           AND first_hash > parts.first_hash;
        UPDATE embedded.cursor
           SET last_hash = parts.last_hash, msg_out = parts.msg_out, byte_out = parts.byte_out,
               msg_counted = parts.msg_counted, byte_counted = parts.byte_counted,
               owned_origin = newest.owned_origin, owned_generation = newest.owned_generation
         WHERE log_id = of_log_id AND subscription = of_subscription AND first_hash = parts.first_hash;
    END IF;
END $$;

-- Take the part of a cursor that has the hashes `low` to `high`, all of it or nothing.
-- Answers taken | held (by `holder`, which lives) | stale (a piece was taken under a newer ownership, by `holder` if it still reads)
-- | missing (no such log) | unsubscribed (no such cursor). `timeline` is that of the last message before `start`, 0 at the very front.
-- The reader that held a piece of it loses all that it held. What is outside the range has no owner then. Without an ownership none is
-- looked at. An ownership that was never given is stale, since it would make those of all others stale for good. A cursor is
-- divided where the log's entry buckets begin, if the log says where that is.
CREATE OR REPLACE FUNCTION embedded.take(
    log_name text, of_subscription text, new_owner text, live_owners text[], low integer, high integer,
    of_origin bigint DEFAULT NULL, of_generation bigint DEFAULT NULL,
    OUT outcome text, OUT log_id bigint, OUT generation bigint, OUT start bigint, OUT holder text, OUT timeline bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    of_log_id bigint;
    lost      bigint[];
    splits    integer[];
    newest    record;
BEGIN
    IF (0 <= low AND low <= high AND high <= 65535) IS NOT TRUE THEN
        RAISE EXCEPTION 'bucket hashes % to %; give a range within 0 and 65535', low, high USING ERRCODE = 'invalid_parameter_value';
    ELSIF (octet_length(new_owner) BETWEEN 1 AND 1000 AND cardinality(live_owners) <= 100000) IS NOT TRUE THEN
        RAISE EXCEPTION 'an owner of % bytes and % live owners; give a name of 1 to 1000 bytes and at most 100000 live owners',
            octet_length(new_owner), cardinality(live_owners) USING ERRCODE = 'invalid_parameter_value';
    ELSIF (of_origin IS NULL) <> (of_generation IS NULL) THEN
        RAISE EXCEPTION 'an ownership is an origin and a generation; give both or neither' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT l.log_id, string_to_array(l.origin ->> 'cleave.bucket-splits', ',')::integer[] INTO of_log_id, splits
      FROM embedded.log l WHERE l.name = log_name FOR KEY SHARE;
    log_id := of_log_id;
    IF of_log_id IS NULL THEN
        outcome := 'missing';
        RETURN;
    ELSIF NOT embedded.lock_parts(of_log_id, of_subscription) THEN
        outcome := 'unsubscribed';
        RETURN;
    ELSIF NOT ((low = 0 OR low = ANY (splits)) AND (high = 65535 OR high + 1 = ANY (splits))) THEN
        RAISE EXCEPTION 'bucket hashes % to % of log % are not whole entry buckets; take a range that its buckets make up', low, high,
            log_name USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- The journal is in this database as a rule. Elsewhere an origin, which is a time, is compared with the clock.
    SELECT u.origin, u.generation INTO newest FROM cleave.segment s JOIN cleave.subscription u USING (topic_id)
     WHERE s.backing_topic = log_name AND u.name = of_subscription ORDER BY u.origin DESC LIMIT 1;
    IF (FOUND AND (of_origin, of_generation) > (newest.origin, newest.generation))
       OR (NOT FOUND AND of_origin > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + 3600000000) THEN
        outcome := 'stale';
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
    IF splits IS NULL AND (SELECT count(*) FROM embedded.cursor c WHERE c.log_id = of_log_id AND c.subscription = of_subscription) > 1024 THEN
        RAISE EXCEPTION 'the cursor of % on log % would be in more than 1024 parts; take wider ranges', quote_literal(of_subscription),
            log_name USING ERRCODE = 'configuration_limit_exceeded';
    END IF;
    SELECT min(c.position) INTO start FROM embedded.cursor c
     WHERE c.log_id = of_log_id AND c.subscription = of_subscription AND c.generation = take.generation;
    timeline := embedded.timeline_before(of_log_id, start);
    outcome := 'taken';
END $$;

-- Acknowledge everything below `upto` in all parts of the generation. False: the generation holds none, or the log does not have the
-- message before `upto`. `messages` and `bytes` were delivered since the last report. Of what a log has taken, a part reports each
-- message once between two seeks, whatever is claimed.
CREATE OR REPLACE FUNCTION embedded.acknowledge(
    of_log_id bigint, of_subscription text, of_generation bigint, upto bigint, messages bigint, bytes bigint,
    of_timeline bigint DEFAULT NULL
) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    held      record;
    ended     record;
    new_msgs  bigint;
    new_bytes bigint;
BEGIN
    SELECT count(*) AS parts, min(first_hash) AS first_hash, min(position) AS position,
           max(msg_counted) AS msg_counted, max(byte_counted) AS byte_counted INTO held
      FROM (SELECT first_hash, position, msg_counted, byte_counted FROM embedded.cursor
             WHERE log_id = of_log_id AND subscription = of_subscription AND generation = of_generation
             ORDER BY first_hash FOR NO KEY UPDATE) part;
    IF held.parts = 0 THEN
        RETURN false;
    END IF;
    SELECT next_offset, byte_in, terminated_at INTO ended FROM embedded.log WHERE log_id = of_log_id;
    IF upto > ended.next_offset OR of_timeline <> coalesce((
           SELECT t.timeline FROM embedded.timeline t
            WHERE t.log_id = of_log_id AND t.first_offset < upto ORDER BY t.first_offset DESC LIMIT 1), 0) THEN
        RETURN false;
    END IF;
    new_msgs := least(greatest(messages, 0), greatest(ended.next_offset - held.msg_counted, 0));
    new_bytes := least(greatest(bytes, 0), greatest(ended.byte_in - held.byte_counted, 0));
    UPDATE embedded.cursor
       SET position = greatest(position, upto),
           msg_out = msg_out + CASE WHEN first_hash = held.first_hash THEN new_msgs ELSE 0 END,
           byte_out = byte_out + CASE WHEN first_hash = held.first_hash THEN new_bytes ELSE 0 END,
           msg_counted = held.msg_counted + new_msgs, byte_counted = held.byte_counted + new_bytes
     WHERE log_id = of_log_id AND subscription = of_subscription AND generation = of_generation;
    IF held.parts > 1 THEN
        PERFORM embedded.join_parts(of_log_id, of_subscription, of_generation);
    END IF;
    IF ended.terminated_at IS NOT NULL AND held.position < ended.next_offset AND upto = ended.next_offset THEN
        PERFORM pg_notify('embedded_arrivals', of_log_id::text);
    END IF;
    RETURN true;
END $$;

-- Move the whole cursor to an instant, NULL: to the end. What is delivered again is reported again.
CREATE OR REPLACE FUNCTION embedded.move(log_name text, of_subscription text, instant timestamptz) RETURNS boolean
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
       SET last_hash = 65535, owner = NULL, generation = nextval('embedded.generation'), msg_counted = 0, byte_counted = 0,
           position = CASE WHEN instant IS NULL THEN target.next_offset ELSE embedded.offset_at(target.log_id, instant) END,
           msg_out = msg_out + coalesce((SELECT sum(msg_out) FROM gone), 0),
           byte_out = byte_out + coalesce((SELECT sum(byte_out) FROM gone), 0)
     WHERE log_id = target.log_id AND subscription = of_subscription AND first_hash = 0;
    PERFORM pg_notify('embedded_arrivals', target.log_id::text);
    RETURN true;
END $$;

-- The next messages of a reader from `from_offset` on, then one row with the offset to go on from, and the first offset and the timeline
-- of each timeline that was read. No row where the cursor is not this generation's, or where the log does not have, in `of_timeline`, the
-- message before `from_offset`. Without a timeline (an older client) only the log's end is looked at. Keys count as bytes: a read gives at
-- most 10,000 messages and some 16 MiB, whatever is stored and requested.
CREATE OR REPLACE FUNCTION embedded.read(
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
    most := least(most, 10000);
    most_bytes := least(most_bytes, 16777216);
    most_scanned := least(most_scanned, 100000);
    IF (from_offset >= 0 AND most >= 1 AND most_bytes >= 0 AND most_scanned >= 1) IS NOT TRUE THEN
        RAISE EXCEPTION 'a read of % messages and % bytes in % offsets from % on; give 1 or more, and an offset of 0 or more', most,
            most_bytes, most_scanned, from_offset USING ERRCODE = 'invalid_parameter_value';
    END IF;
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
            bytes := bytes + octet_length(read.payload) + coalesce(octet_length(read.key), 0);
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

-- The next messages from an offset on, then one row with the log's bounds. No row where there is no such log, and for an older client
-- (without a timeline) where the log ends before the offset. The last row has no offset where the log does not have, in `of_timeline`, the
-- message before `from_offset`. A restored database may give a log's id to another log, so the name is compared. It has the bounds of `read`.
CREATE OR REPLACE FUNCTION embedded.read_at(
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
    most := least(most, 10000);
    most_bytes := least(most_bytes, 16777216);
    IF (from_offset >= 0 AND most >= 0 AND most_bytes >= 0) IS NOT TRUE THEN
        RAISE EXCEPTION 'a read of % messages and % bytes from % on; give 0 or more', most, most_bytes, from_offset
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
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
        bytes := bytes + octet_length(read_at.payload) + coalesce(octet_length(read_at.key), 0);
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

-- Begin to read a queue as `new_mark`, which is not in use. Answers opened | missing | unsubscribed.
-- Who read the cursor in order is cut off; what parts of it had acknowledged above the lowest position comes again. A reader lives for an
-- hour at most without a word, and a login has 10,000 readers of a queue at most.
CREATE OR REPLACE FUNCTION embedded.queue_open(
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

-- Give messages of a queue to a reader; migration 0034 says how. No row where the server does not know the reader, or where the log does
-- not have the message at `last_offset`, which is the highest that the reader was ever given, in `last_timeline`. It has the bounds of `read`,
-- and no more than 10,000 messages are unsettled at a time.
CREATE OR REPLACE FUNCTION embedded.queue_take(
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
            SELECT u.log_offset, octet_length(m.payload) + coalesce(octet_length(m.key), 0) AS size, row_number() OVER w AS place,
                   sum(octet_length(m.payload) + coalesce(octet_length(m.key), 0)) OVER w AS total
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
            SELECT m.log_offset, row_number() OVER w AS place, sum(octet_length(m.payload) + coalesce(octet_length(m.key), 0)) OVER w AS total
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

-- Acknowledge these offsets, each as it was given out in that batch. Gives back those that are not settled then: others have
-- them, or they wait to be given out again. NULL where there is no cursor. What is acknowledged already stays so.
CREATE OR REPLACE FUNCTION embedded.queue_acknowledge(
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

-- Give these back, to be given out again after the delay, a week at most: a message that waits keeps its log from being trimmed and
-- drained. `unseen`: no application received them, so that the delivery does not count.
CREATE OR REPLACE FUNCTION embedded.queue_give_back(
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

-- These readers are alive. Gives back those of them that are known and of this login.
CREATE OR REPLACE FUNCTION embedded.queue_keep(marks text[], life_seconds double precision)
RETURNS SETOF text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (life_seconds > 0 AND life_seconds <= 3600 AND cardinality(marks) <= 100000) IS NOT TRUE THEN
        RAISE EXCEPTION 'a life of % s for % readers; give more than 0 and at most 3600 s, and at most 100000 readers', life_seconds,
            cardinality(marks) USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN QUERY
    UPDATE embedded.queue_reader r SET alive_until = clock_timestamp() + life_seconds * interval '1 s'
      FROM (SELECT mark FROM embedded.queue_reader
             WHERE mark = ANY (marks) AND coalesce(login, session_user) = session_user ORDER BY mark FOR NO KEY UPDATE) known
     WHERE r.mark = known.mark RETURNING r.mark;
END $$;

-- The reader leaves; what it holds is given to others.
CREATE OR REPLACE FUNCTION embedded.queue_close(of_log_id bigint, of_subscription text, of_mark text)
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

-- Delete up to `most` messages from the front of a log: older than `before`, and acknowledged by all parts of all cursors. The number
-- deleted. No cursor is made or moved meanwhile; a log that is locked is left for later. Producers that have sent nothing since
-- then, and for a day, are forgotten: none of them repeats a batch.
CREATE OR REPLACE FUNCTION embedded.trim_log(of_log_id bigint, before timestamptz, most bigint) RETURNS bigint
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
    IF mark < start + most THEN
        DELETE FROM embedded.producer WHERE log_id = of_log_id AND used_at < least(before, clock_timestamp() - interval '1 day');
    END IF;
    RETURN mark - start;
END $$;
