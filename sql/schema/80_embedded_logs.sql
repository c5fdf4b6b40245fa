-- The embedded data plane: logs, cursors and counters in PostgreSQL, in a schema of their own.
--
-- Each segment has a log: a row whose lock protects the assignment of offsets. Appending and terminating both take that lock, so offsets
-- are dense, become visible in order, and no message is stored after the fence. This schema knows no layouts; it may be in the control
-- database or in any other. Applications produce and consume through its functions and have no right on its tables.
--
-- A position in a log is the timeline in which its message was written, and the offset of the message. After a fail-over to a standby
-- that lacks the last messages, or after a restore, the log assigns the same offsets again, to other messages. The timeline tells the
-- two messages apart, and later timelines are greater, so that positions stay in order. A reader sends with each statement the
-- position of the last message before its offset, and the statement is refused if the log does not have that message.
--
-- A log records the operation that created the log. A deletion compares the record with the journal, so that a journal that is
-- older than the logs deletes no log of another operation.
--
-- The functions that an application's login may call do not trust their arguments. Each argument is bounded, or compared with a value
-- that the function computes, so that an application cannot overflow a counter, corrupt a log or make a row grow without limit. A row
-- that only one program may write stores the login that wrote it first (`session_user`). The error of an argument out of bounds is
-- invalid_parameter_value, of a row of another login insufficient_privilege, and of a limit configuration_limit_exceeded.

CREATE SCHEMA embedded;

-- Name under which the counters are reported. A copy of the database keeps the name, because its logs keep their counters.
CREATE TABLE embedded.instance (
    singleton   boolean PRIMARY KEY DEFAULT true,
    instance_id uuid    NOT NULL DEFAULT gen_random_uuid(),
    CONSTRAINT instance_one_row CHECK (singleton)
);
INSERT INTO embedded.instance DEFAULT VALUES;

-- msg_out and byte_out of a log count the deliveries of deleted cursors, so that the sum over a log and its cursors never falls.
-- The fill factor leaves space for the next version of a row on the same page.
CREATE TABLE embedded.log (
    log_id            bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name              text        COLLATE "C" NOT NULL,
    topic_path        text        COLLATE "C" NOT NULL GENERATED ALWAYS AS (regexp_replace(name, '/[^/]*$', '')) STORED,
    next_offset       bigint      NOT NULL DEFAULT 0,
    byte_in           bigint      NOT NULL DEFAULT 0,
    msg_out           bigint      NOT NULL DEFAULT 0,
    byte_out          bigint      NOT NULL DEFAULT 0,
    last_published_at timestamptz NOT NULL DEFAULT '-infinity',
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    terminated_at     timestamptz,
    -- first_offset is the lowest offset that is still stored: 0 until messages are trimmed.
    first_offset      bigint      NOT NULL DEFAULT 0,
    origin            jsonb,
    CONSTRAINT log_name_once UNIQUE (name),
    CONSTRAINT log_counters_not_negative CHECK (next_offset >= 0 AND byte_in >= 0 AND msg_out >= 0 AND byte_out >= 0),
    CONSTRAINT log_first_offset_within CHECK (first_offset BETWEEN 0 AND next_offset),
    CONSTRAINT log_origin_is_object CHECK (jsonb_typeof(origin) = 'object')
) WITH (fillfactor = 50);
CREATE INDEX log_of_topic ON embedded.log (topic_path);
COMMENT ON COLUMN embedded.log.origin IS
    'Token, epoch, parents and bucket boundaries of the operation that created the log, written once; NULL: no operation created it.';
COMMENT ON CONSTRAINT log_first_offset_within ON embedded.log IS 'Only messages that were stored can be trimmed.';

CREATE FUNCTION embedded.log_before_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.terminated_at IS NOT NULL
       AND (OLD.terminated_at, OLD.next_offset) IS DISTINCT FROM (NEW.terminated_at, NEW.next_offset) THEN
        RAISE EXCEPTION 'Log % is terminated: it accepts no more messages.', OLD.name
            USING ERRCODE = 'check_violation', CONSTRAINT = 'log_terminated_for_good';
    ELSIF NEW.next_offset < OLD.next_offset OR NEW.byte_in < OLD.byte_in
          OR NEW.msg_out < OLD.msg_out OR NEW.byte_out < OLD.byte_out THEN
        RAISE EXCEPTION 'Offsets and counters of log % only rise.', OLD.name
            USING ERRCODE = 'check_violation', CONSTRAINT = 'log_counters_only_rise';
    ELSIF NEW.first_offset < OLD.first_offset THEN
        RAISE EXCEPTION 'Trimmed messages of log % cannot be restored: the first offset only rises.', OLD.name
            USING ERRCODE = 'check_violation', CONSTRAINT = 'log_begins_no_earlier';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER log_before_update BEFORE UPDATE ON embedded.log FOR EACH ROW EXECUTE FUNCTION embedded.log_before_update();

-- The table has no foreign key to the log, because its check would cost time for every message, and append locks the row of the log.
CREATE TABLE embedded.message (
    log_id       bigint      NOT NULL,
    log_offset   bigint      NOT NULL,
    published_at timestamptz NOT NULL,
    key          bytea,
    payload      bytea       NOT NULL,
    bucket_hash  integer     NOT NULL,
    metadata     jsonb,
    metadata_bytes integer,
    PRIMARY KEY (log_id, log_offset),
    CONSTRAINT message_bucket_hash_on_ring CHECK (bucket_hash BETWEEN 0 AND 65535),
    CONSTRAINT message_metadata_is_object CHECK (jsonb_typeof(metadata) = 'object')
);
COMMENT ON COLUMN embedded.message.metadata IS
    'Properties, event_time_ms and is_binary_key that the application sent; NULL: none of these.';
COMMENT ON COLUMN embedded.message.metadata_bytes IS
    'Bytes of metadata as text, by which reads are bounded; NULL: no metadata. The stored size, compressed, may be far smaller.';
COMMENT ON TABLE embedded.message IS 'Offsets of a log start at first_offset and have no gaps; published_at never falls as the offset rises.';
COMMENT ON CONSTRAINT message_bucket_hash_on_ring ON embedded.message IS 'A bucket hash is 0 to 65535, which are the hashes that readers request.';

-- One start of a server writes one history: a promoted standby, a server recovered from a backup and a copy of the files of a server
-- all start after the server that wrote before. If the contents of the table are replaced without a restart, its file changes.
CREATE FUNCTION embedded.incarnation() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT extract(epoch FROM pg_catalog.pg_postmaster_start_time())::text || ' ' || pg_catalog.pg_relation_filepath('embedded.message')
$$;
COMMENT ON FUNCTION embedded.incarnation() IS
    'Start time of the server, and file of the messages. Databases that differ in either may have different histories of the same logs.';

CREATE TABLE embedded.timeline (
    log_id       bigint NOT NULL REFERENCES embedded.log ON DELETE CASCADE,
    first_offset bigint NOT NULL,
    timeline     bigint NOT NULL,
    incarnation  text   NOT NULL,
    PRIMARY KEY (log_id, first_offset),
    CONSTRAINT timeline_not_negative CHECK (first_offset >= 0 AND timeline >= 0)
);
COMMENT ON TABLE embedded.timeline IS
    'Timelines of logs: one incarnation of the database wrote the messages from first_offset up to that of the next row.';
COMMENT ON COLUMN embedded.timeline.timeline IS 'Start of the timeline in microseconds since the Unix epoch; rises with the offsets of a log.';
COMMENT ON COLUMN embedded.timeline.incarnation IS 'Incarnation of the database that wrote the messages (embedded.incarnation).';

-- The last batch that each producer stored in a log, so that a batch that is sent again after a lost answer is not stored twice.
CREATE TABLE embedded.producer (
    log_id        bigint      NOT NULL REFERENCES embedded.log ON DELETE CASCADE,
    name          text        COLLATE "C" NOT NULL,
    last_sequence bigint      NOT NULL,
    login         text,
    used_at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (log_id, name)
) WITH (fillfactor = 50);
COMMENT ON COLUMN embedded.producer.login IS 'The only login that may send under this name.';
COMMENT ON COLUMN embedded.producer.used_at IS 'Time of the last batch.';

-- Deleted logs whose messages are still stored; the messages are deleted in bounded chunks.
CREATE TABLE embedded.dropped_log (
    log_id     bigint      PRIMARY KEY,
    dropped_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Append a batch, whole or not at all. The append is one statement, so that the log is never locked while the server waits for a client:
-- a producer that pauses in the middle of a batch cannot delay the fence.
--
-- The outcome is granted | stored (the batch, or a later batch of the producer, is already stored) | terminated | missing (no such log).
-- The checks run in this order, so that a repeat of a batch that was stored just before the fence is reported as stored. The first
-- batch of an incarnation begins a timeline.
--
-- Only the login that first used a producer name may use the name. Otherwise another login could send a high sequence, after which the
-- batches of the owner would count as repeats. Bucket hashes are required, because readers select messages by bucket hash.
CREATE FUNCTION embedded.append(
    log_name text, producer_name text, batch_sequence bigint, batch_bytes bigint, keys bytea[], payloads bytea[],
    bucket_hashes integer[], metadata jsonb[] DEFAULT NULL,
    OUT outcome text, OUT log_id bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    target embedded.log;
    stored record;
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
    ELSIF metadata IS NOT NULL AND (cardinality(metadata) = cardinality(payloads) AND array_ndims(metadata) = 1
                                    AND octet_length(array_send(metadata)) <= 16777216) IS NOT TRUE THEN
        RAISE EXCEPTION 'metadata of % messages for % payloads; give one of each, at most 16777216 bytes', cardinality(metadata),
            cardinality(payloads) USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT * INTO target FROM embedded.log WHERE name = log_name FOR NO KEY UPDATE;
    log_id := target.log_id;
    IF NOT FOUND THEN
        outcome := 'missing';
        RETURN;
    END IF;
    SELECT p.login, p.last_sequence INTO stored FROM embedded.producer p WHERE p.log_id = target.log_id AND p.name = producer_name;
    IF stored.login <> session_user THEN
        RAISE EXCEPTION 'producer % of log % belongs to another login than %; give each producer a name of its own',
            quote_literal(producer_name), log_name, quote_literal(session_user) USING ERRCODE = 'insufficient_privilege';
    ELSIF stored.last_sequence >= batch_sequence THEN
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
    INSERT INTO embedded.message (log_id, log_offset, published_at, key, payload, bucket_hash, metadata, metadata_bytes)
    SELECT target.log_id, target.next_offset + ordinal - 1, moment, key, payload, bucket_hash, given_metadata,
           octet_length(given_metadata::text)
      FROM unnest(keys, payloads, bucket_hashes, metadata) WITH ORDINALITY AS batch (key, payload, bucket_hash, given_metadata, ordinal);
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

-- Return the first stored offset that was published at or after the time. A binary search finds the offset, because published_at never
-- falls within a log.
CREATE FUNCTION embedded.offset_at(of_log_id bigint, instant timestamptz)
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

CREATE FUNCTION embedded.timeline_before(of_log_id bigint, of_offset bigint) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT coalesce((SELECT t.timeline FROM embedded.timeline t
                      WHERE t.log_id = of_log_id AND t.first_offset < of_offset ORDER BY t.first_offset DESC LIMIT 1), 0)
$$;
COMMENT ON FUNCTION embedded.timeline_before(bigint, bigint) IS 'Timeline of the message before an offset; 0: no message is before the offset.';

-- Return the log's id, first offset and end; the first offset at or after the time, if a time is given; and the timeline of the message
-- before that offset, or before the end. Returns no row if the log does not exist.
CREATE FUNCTION embedded.bounds(
    log_name text, instant timestamptz,
    OUT log_id bigint, OUT first_offset bigint, OUT next_offset bigint, OUT at_instant bigint, OUT timeline bigint
) RETURNS SETOF record LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT l.log_id, l.first_offset, l.next_offset, i.at, embedded.timeline_before(l.log_id, coalesce(i.at, l.next_offset))
      FROM embedded.log l
     CROSS JOIN LATERAL (SELECT CASE WHEN instant IS NOT NULL THEN embedded.offset_at(l.log_id, instant) END AS at) i
     WHERE l.name = log_name
$$;
