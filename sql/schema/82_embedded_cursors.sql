-- Cursors of embedded logs, read in order by entry bucket.
--
-- A cursor consists of parts that tile the ring of bucket hashes, 0 to 65535. Each part has its own position, owner and generation; an
-- undivided cursor is one part. A reader holds the parts of one generation, and loses all of them or none. A function that changes
-- parts locks the log first (if it locks the log at all), then the part that begins at 0, which every cursor has, then the others by
-- their first hash. A function that moves the parts of one reader locks the parts in the same order.

-- Each generation is used once, so that a stale reader stays stale even if the cursor is deleted and created again.
CREATE SEQUENCE embedded.generation;

-- position is the first offset that is not acknowledged. A reader owns the cursor for one generation. Taking, releasing and moving the
-- cursor all raise the generation, and a reader of an older generation is refused.
--
-- A part stores the ownership of its bucket under which it was last taken: the origin and the generation of the assignment. A reader
-- with an older ownership is a process that was paused in between, and cannot take the part from the present owner.
CREATE TABLE embedded.cursor (
    log_id           bigint  NOT NULL REFERENCES embedded.log ON DELETE CASCADE,
    subscription     text    COLLATE "C" NOT NULL,
    position         bigint  NOT NULL DEFAULT 0,
    generation       bigint  NOT NULL DEFAULT 0,
    msg_out          bigint  NOT NULL DEFAULT 0,
    byte_out         bigint  NOT NULL DEFAULT 0,
    owner            text,
    first_hash       integer NOT NULL DEFAULT 0,
    last_hash        integer NOT NULL DEFAULT 65535,
    frontier         bigint,
    owned_origin     bigint,
    owned_generation bigint,
    msg_counted      bigint  NOT NULL DEFAULT 0,
    byte_counted     bigint  NOT NULL DEFAULT 0,
    PRIMARY KEY (log_id, subscription, first_hash),
    CONSTRAINT cursor_not_negative CHECK (position >= 0 AND msg_out >= 0 AND byte_out >= 0),
    CONSTRAINT cursor_part_on_ring CHECK (0 <= first_hash AND first_hash <= last_hash AND last_hash <= 65535),
    CONSTRAINT cursor_frontier_ahead CHECK (
        frontier IS NULL OR frontier >= position AND first_hash = 0 AND last_hash = 65535 AND owner IS NULL),
    CONSTRAINT cursor_ownership_whole CHECK ((owned_origin IS NULL) = (owned_generation IS NULL))
) WITH (fillfactor = 50);
COMMENT ON TABLE embedded.cursor IS
    'Parts of cursors. position is the first offset that is not acknowledged, among the messages of the part''s hashes.';
COMMENT ON COLUMN embedded.cursor.owned_origin IS 'Origin of the newest ownership under which the part was taken; NULL: taken without an ownership.';
COMMENT ON COLUMN embedded.cursor.msg_counted IS
    'Messages that acknowledgements have reported since the last seek; never more than the log has taken.';
COMMENT ON COLUMN embedded.cursor.byte_counted IS
    'Bytes that acknowledgements have reported since the last seek; never more than the log has taken.';
COMMENT ON CONSTRAINT cursor_frontier_ahead ON embedded.cursor IS
    'A cursor that is read as a queue is one part without an owner, and its frontier is not below its position.';

-- A log can have the name of a log that a restored or promoted database has lost. A reader may still have an ownership from the lost
-- history, and would read the log before its parents are drained. So a new cursor begins at the present origin and generation of its
-- subscription, which are greater than those of the lost history, and an older ownership is stale.
CREATE FUNCTION embedded.begin_ownership() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    SELECT u.origin, u.generation INTO NEW.owned_origin, NEW.owned_generation
      FROM embedded.log l
      JOIN cleave.topic t ON t.name = 'topic://' || substring(l.name FROM '^segment://(.*)/[^/]*$') AND t.state <> 'deleted'
      JOIN cleave.subscription u ON u.topic_id = t.topic_id AND u.name = NEW.subscription
     WHERE l.log_id = NEW.log_id;
    RETURN NEW;
END $$;
CREATE TRIGGER cursor_begins_at_the_present_ownership BEFORE INSERT ON embedded.cursor
    FOR EACH ROW WHEN (NEW.first_hash = 0 AND NEW.owned_generation IS NULL) EXECUTE FUNCTION embedded.begin_ownership();

-- Lock all parts of a cursor. Returns false if there is no cursor. The function needs two statements, because the previous holder of the
-- lock on the first part may have divided other parts.
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

-- Divide the part that has hashes on both sides of `at`, if there is one. The part has no owner, and the caller has locked it. Both
-- pieces keep the reported counts of the part, so that no reader reports the same messages again.
CREATE FUNCTION embedded.divide_part(of_log_id bigint, of_subscription text, at integer) RETURNS void LANGUAGE sql AS $$
    INSERT INTO embedded.cursor (log_id, subscription, first_hash, last_hash, position, generation, owned_origin, owned_generation,
                                 msg_counted, byte_counted)
    SELECT log_id, subscription, at, last_hash, position, nextval('embedded.generation'), owned_origin, owned_generation, msg_counted,
           byte_counted
      FROM embedded.cursor WHERE log_id = of_log_id AND subscription = of_subscription AND first_hash < at AND at <= last_hash;
    UPDATE embedded.cursor SET last_hash = at - 1
     WHERE log_id = of_log_id AND subscription = of_subscription AND first_hash < at AND at <= last_hash;
$$;

-- Join all parts of a generation if they have the same position. The caller has locked the parts. The joined part gets the newest of
-- their ownerships.
CREATE FUNCTION embedded.join_parts(of_log_id bigint, of_subscription text, of_generation bigint)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE parts record;
BEGIN
    SELECT min(first_hash) AS first_hash, max(last_hash) AS last_hash, sum(msg_out) AS msg_out, sum(byte_out) AS byte_out,
           max(msg_counted) AS msg_counted, max(byte_counted) AS byte_counted
      INTO parts
      FROM embedded.cursor
     WHERE log_id = of_log_id AND subscription = of_subscription AND generation = of_generation
    HAVING count(*) > 1 AND min(position) = max(position);
    IF FOUND THEN
        UPDATE embedded.cursor
           SET last_hash = parts.last_hash, msg_out = parts.msg_out, byte_out = parts.byte_out,
               msg_counted = parts.msg_counted, byte_counted = parts.byte_counted, (owned_origin, owned_generation) = (
               SELECT n.owned_origin, n.owned_generation FROM embedded.cursor n
                WHERE n.log_id = of_log_id AND n.subscription = of_subscription AND n.generation = of_generation
                ORDER BY n.owned_origin DESC NULLS LAST, n.owned_generation DESC LIMIT 1)
         WHERE log_id = of_log_id AND subscription = of_subscription AND first_hash = parts.first_hash;
        DELETE FROM embedded.cursor
         WHERE log_id = of_log_id AND subscription = of_subscription AND generation = of_generation
           AND first_hash > parts.first_hash;
    END IF;
END $$;

-- Take the hashes `low` to `high` of a cursor, all of them or none.
--
-- The outcome is taken | held (by `holder`, which is live) | stale (a piece was taken under a newer ownership, by `holder` if that
-- reader still reads) | missing (no such log) | unsubscribed (no such cursor). `timeline` is the timeline of the last message before
-- `start`, or 0. A reader that held a piece of the range loses all its parts; its parts outside the range have no owner afterwards.
-- Without an ownership nothing is compared. An ownership that no leader has assigned yet is stale, because it would make the ownerships
-- of all other readers stale. A cursor is divided only at the boundaries of entry buckets, if the log stores them.
CREATE FUNCTION embedded.take(
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
    -- The journal is usually in this database. If not, the origin, which is a time, is compared with the clock.
    SELECT u.origin, u.generation INTO newest FROM cleave.segment s JOIN cleave.subscription u USING (topic_id)
     WHERE s.backing_topic = log_name AND u.name = of_subscription ORDER BY u.origin DESC LIMIT 1;
    IF (FOUND AND (of_origin, of_generation) > (newest.origin, newest.generation))
       OR (NOT FOUND AND of_origin > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + 3600000000) THEN
        outcome := 'stale';
        RETURN;
    END IF;
    -- A journal in another database may be restored without its last seek. Its generations are then above the time of the seek in
    -- milliseconds, and the lower origin is not stale.
    SELECT c.owner, CASE WHEN past.is_stale THEN 'stale' ELSE 'held' END INTO holder, outcome
      FROM embedded.cursor c
     CROSS JOIN LATERAL (
           SELECT (c.owned_origin, c.owned_generation) > (of_origin, of_generation)
              AND (newest.origin IS NOT NULL OR c.owned_generation >= of_generation OR c.owned_origin / 1000 >= of_generation)
                  AS is_stale) past
     WHERE c.log_id = of_log_id AND c.subscription = of_subscription AND c.first_hash <= high AND c.last_hash >= low
       AND (past.is_stale OR c.owner <> new_owner AND c.owner = ANY (live_owners))
     ORDER BY 2 DESC, c.first_hash LIMIT 1;  -- `stale` before `held`
    IF FOUND THEN
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
    -- A restore resets the sequence. The random part makes it improbable that a lost history used the same generation.
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

-- Acknowledge all messages below `upto` in the parts of this generation, and add to the counts of delivered messages. Returns false if
-- the generation has no part, or if the log does not have the message before `upto` in `of_timeline`. Without a timeline only the end
-- of the log is compared. An acknowledgement that reaches the end of a terminated log notifies the readers that wait for the drain.
-- `messages` and `bytes` are those delivered since the last report. The total that a part reports between two seeks is at most what the
-- log has stored.
CREATE FUNCTION embedded.acknowledge(
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
    IF upto > ended.next_offset OR of_timeline <> embedded.timeline_before(of_log_id, upto) THEN
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

-- Return the next messages of this generation's parts from `from_offset` on: up to `most` messages and about `most_bytes` bytes. The last
-- row has no payload; it holds the offset of the next read, and the first offset and the number of each timeline that was read. Returns
-- no row if the generation has no part, or if the log does not have the message before `from_offset` in `of_timeline`. Without a
-- timeline (an older client) only the end of the log is compared.
--
-- At most `most_scanned` offsets are scanned, in growing steps. Offsets are dense, so a range of offsets limits the rows, and the planner
-- cannot misjudge the limit. If no message is found and the parts are more than `lag` behind the scanned offset, the function moves the
-- parts. Keys, and metadata as text, count as bytes. A read returns at most 10,000 messages and about 16 MiB.
CREATE FUNCTION embedded.read(
    of_log_id bigint, of_subscription text, of_generation bigint, from_offset bigint, most integer, most_bytes bigint,
    most_scanned bigint, lag bigint, of_timeline bigint DEFAULT NULL
) RETURNS TABLE (log_offset bigint, published_at timestamptz, key bytea, payload bytea, metadata jsonb, timelines bigint[])
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
    metadata_size integer;
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
        FOR log_offset, published_at, key, payload, metadata, metadata_size IN
            SELECT m.log_offset, m.published_at, m.key, m.payload, m.metadata, m.metadata_bytes FROM embedded.message m
             WHERE m.log_id = of_log_id AND m.log_offset >= scanned AND m.log_offset < upto
               AND (held.low = 0 AND held.high = 65535 OR m.bucket_hash BETWEEN held.low AND held.high)
               AND (m.log_offset >= held.settled
                    OR m.log_offset >= (
                       SELECT c.position FROM embedded.cursor c
                        WHERE c.log_id = of_log_id AND c.subscription = of_subscription
                          AND c.first_hash <= m.bucket_hash
                        ORDER BY c.first_hash DESC LIMIT 1))
             ORDER BY m.log_offset LIMIT most - given
        LOOP
            bytes := bytes + octet_length(read.payload) + coalesce(octet_length(read.key), 0) + coalesce(metadata_size, 0);
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
    published_at := NULL; key := NULL; payload := NULL; metadata := NULL;
    IF scanned > from_offset THEN
        SELECT array_agg(ARRAY[t.first_offset, t.timeline] ORDER BY t.first_offset) INTO timelines FROM embedded.timeline t
         WHERE t.log_id = of_log_id AND t.first_offset >= coalesce(before.first_offset, 0) AND t.first_offset < scanned;
    END IF;
    RETURN NEXT;
END $$;

-- Return true in is_terminated if the log is terminated, and in all_settled if all parts of the cursor, of any reader, have acknowledged
-- the whole log. Returns no row if the generation has no part.
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

-- Release all parts of this generation.
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

-- Return the owner of each part with hashes between `low` and `high`, NULL for a part without an owner; no row if there is no cursor.
CREATE FUNCTION embedded.owners(of_log_id bigint, of_subscription text, low integer, high integer)
RETURNS SETOF text LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT owner FROM embedded.cursor
     WHERE log_id = of_log_id AND subscription = of_subscription AND first_hash <= high AND last_hash >= low
     ORDER BY first_hash
$$;

-- Move a whole cursor to the first message at or after the time, or to the end if the time is NULL. The cursor becomes one part without
-- an owner. Messages that are delivered again are counted again. Returns false if the log or cursor does not exist.
CREATE FUNCTION embedded.move(log_name text, of_subscription text, instant timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    target embedded.log;
BEGIN
    PERFORM FROM embedded.log WHERE name = log_name FOR KEY SHARE;  -- the lock keeps the log from being trimmed
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
