-- The embedded data plane: logs, cursors and counters in PostgreSQL, in a schema of their own.
--
-- A segment is a log: a row that gives out offsets under its lock. Appending and terminating both take that
-- lock, so offsets are dense, become visible in order, and nothing lands after the fence. Nothing here knows
-- layouts; the schema may live in the control database or in any other.

CREATE SCHEMA embedded;

-- Who reports the counters. A copy of the database keeps the name, as its logs keep their counters.
CREATE TABLE embedded.instance (
    singleton   boolean PRIMARY KEY DEFAULT true,
    instance_id uuid    NOT NULL DEFAULT gen_random_uuid(),
    CONSTRAINT instance_one_row CHECK (singleton)
);
INSERT INTO embedded.instance DEFAULT VALUES;

-- msg_out and byte_out here are those of cursors that are gone, so that the sum over a log never falls.
CREATE TABLE embedded.log (
    log_id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name              text COLLATE "C" NOT NULL,
    topic_path        text COLLATE "C" NOT NULL GENERATED ALWAYS AS (regexp_replace(name, '/[^/]*$', '')) STORED,
    next_offset       bigint      NOT NULL DEFAULT 0,
    byte_in           bigint      NOT NULL DEFAULT 0,
    msg_out           bigint      NOT NULL DEFAULT 0,
    byte_out          bigint      NOT NULL DEFAULT 0,
    last_published_at timestamptz NOT NULL DEFAULT '-infinity',
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    terminated_at     timestamptz,
    CONSTRAINT log_name_once UNIQUE (name),
    CONSTRAINT log_counters_not_negative CHECK (next_offset >= 0 AND byte_in >= 0 AND msg_out >= 0 AND byte_out >= 0)
) WITH (fillfactor = 50);  -- room for the next version of the row on its own page
CREATE INDEX log_of_topic ON embedded.log (topic_path);
COMMENT ON CONSTRAINT log_name_once ON embedded.log IS 'A backing topic of this name exists already.';

CREATE FUNCTION embedded.log_before_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.terminated_at IS NOT NULL
       AND (OLD.terminated_at, OLD.next_offset) IS DISTINCT FROM (NEW.terminated_at, NEW.next_offset) THEN
        RAISE EXCEPTION 'Log % is terminated: it takes no message and never opens again.', OLD.name
            USING ERRCODE = 'check_violation', CONSTRAINT = 'log_terminated_for_good';
    ELSIF NEW.next_offset < OLD.next_offset OR NEW.byte_in < OLD.byte_in
          OR NEW.msg_out < OLD.msg_out OR NEW.byte_out < OLD.byte_out THEN
        RAISE EXCEPTION 'Offsets and counters of log % only rise.', OLD.name
            USING ERRCODE = 'check_violation', CONSTRAINT = 'log_counters_only_rise';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER log_before_update BEFORE UPDATE ON embedded.log
    FOR EACH ROW EXECUTE FUNCTION embedded.log_before_update();

-- No foreign key: it would be checked for every message, and append holds the log's row already.
CREATE TABLE embedded.message (
    log_id       bigint      NOT NULL,
    log_offset   bigint      NOT NULL,
    published_at timestamptz NOT NULL,
    key          bytea,
    payload      bytea       NOT NULL,
    PRIMARY KEY (log_id, log_offset)
);
COMMENT ON TABLE embedded.message IS 'Offsets of a log run from 0 without a gap; published_at never falls along them.';

-- position is the first offset not acknowledged. Whoever reads owns the cursor for one generation: taking it,
-- giving it back and moving it by hand all raise the generation, and a reader of an older one is refused.
CREATE TABLE embedded.cursor (
    log_id       bigint NOT NULL REFERENCES embedded.log ON DELETE CASCADE,
    subscription text COLLATE "C" NOT NULL,
    position     bigint NOT NULL DEFAULT 0,
    generation   bigint NOT NULL DEFAULT 0,
    msg_out      bigint NOT NULL DEFAULT 0,
    byte_out     bigint NOT NULL DEFAULT 0,
    owner        text,
    PRIMARY KEY (log_id, subscription),
    CONSTRAINT cursor_not_negative CHECK (position >= 0 AND msg_out >= 0 AND byte_out >= 0)
) WITH (fillfactor = 50);

-- The last batch each producer stored in a log: a batch sent again after a lost answer is recognised.
CREATE TABLE embedded.producer (
    log_id        bigint NOT NULL REFERENCES embedded.log ON DELETE CASCADE,
    name          text COLLATE "C" NOT NULL,
    last_sequence bigint NOT NULL,
    PRIMARY KEY (log_id, name)
) WITH (fillfactor = 50);

-- Logs deleted whose messages are still there: they go in bounded chunks.
CREATE TABLE embedded.dropped_log (
    log_id     bigint      PRIMARY KEY,
    dropped_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Store a batch, whole or not at all. One statement on purpose: the log's lock is never held while the server
-- waits for a client, so a producer that is paused in the middle of a batch cannot keep the fence from falling.
-- Answers granted | stored (this batch, or a later one of the producer, is in already) | terminated | missing.
-- The order of the questions matters: a batch stored just before the fence is stored, whatever came after.
CREATE FUNCTION embedded.append(
    log_name text, producer_name text, batch_sequence bigint, batch_bytes bigint, keys bytea[], payloads bytea[],
    OUT outcome text, OUT log_id bigint
) LANGUAGE plpgsql AS $$
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
    INSERT INTO embedded.message (log_id, log_offset, published_at, key, payload)
    SELECT target.log_id, target.next_offset + ordinal - 1, moment, key, payload
      FROM unnest(keys, payloads) WITH ORDINALITY AS batch (key, payload, ordinal);
    INSERT INTO embedded.producer AS p (log_id, name, last_sequence)
    VALUES (target.log_id, producer_name, batch_sequence)
    ON CONFLICT ON CONSTRAINT producer_pkey DO UPDATE SET last_sequence = excluded.last_sequence;
    outcome := 'granted';
END $$;

-- The first offset published at or after the instant, by halving: published_at never falls within a log.
CREATE FUNCTION embedded.offset_at(of_log_id bigint, instant timestamptz) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
    low    bigint := 0;
    high   bigint;
    middle bigint;
BEGIN
    SELECT next_offset INTO high FROM embedded.log WHERE log_id = of_log_id;
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

GRANT USAGE ON SCHEMA embedded TO cleave_controller;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA embedded TO cleave_controller;
REVOKE INSERT, UPDATE, DELETE ON embedded.instance FROM cleave_controller;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA embedded TO cleave_controller;
