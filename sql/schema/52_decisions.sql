-- The decision log, partitioned by day, and the tallies of each topic.
--
-- Functions of the owner create partitions in advance and drop whole partitions, because the role of the controller may not create or
-- drop tables.

-- The decision log: one row for each evaluation that decided or refused something, partitioned by day.
CREATE SEQUENCE cleave.decision_id_seq;

CREATE TABLE cleave.decision (
    decision_id   bigint      NOT NULL DEFAULT nextval('cleave.decision_id_seq'),
    topic_id      bigint      NOT NULL,
    decided_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    epoch         bigint      NOT NULL,
    input_version bigint      NOT NULL,
    lanes         text[]      NOT NULL,
    decided_by    text        NOT NULL,
    code_version  text        NOT NULL,
    decisions     jsonb       NOT NULL,
    refusals      jsonb       NOT NULL,
    valid_until   timestamptz,
    situation     text        NOT NULL,
    PRIMARY KEY (decided_at, decision_id)
) PARTITION BY RANGE (decided_at);
CREATE INDEX decision_of_topic ON cleave.decision (topic_id, decision_id);
-- `cleave decisions replay ID` reads one row of the log by its id alone. New partitions copy this index.
CREATE INDEX decision_by_id ON cleave.decision (decision_id);

CREATE TABLE cleave.decision_default PARTITION OF cleave.decision DEFAULT;

-- Rows that were written before their day had a partition are in decision_default; this function moves them into the partition.
CREATE FUNCTION cleave.ensure_decision_partitions(days_ahead integer) RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    day_start timestamptz;
    partition_name text;
BEGIN
    LOCK TABLE cleave.decision IN SHARE UPDATE EXCLUSIVE MODE;  -- the lock makes concurrent maintenance runs wait for each other
    FOR offset_days IN 0 .. greatest(days_ahead, 0) LOOP
        day_start := (date_trunc('day', statement_timestamp() AT TIME ZONE 'UTC') + make_interval(days => offset_days)) AT TIME ZONE 'UTC';
        partition_name := 'decision_' || to_char(day_start AT TIME ZONE 'UTC', 'YYYYMMDD');
        CONTINUE WHEN to_regclass('cleave.' || partition_name) IS NOT NULL;
        EXECUTE format('CREATE TABLE cleave.%I (LIKE cleave.decision INCLUDING ALL)', partition_name);
        IF EXISTS (SELECT FROM cleave.decision_default
                    WHERE decided_at >= day_start AND decided_at < day_start + interval '24 hours') THEN
            LOCK TABLE cleave.decision IN ACCESS EXCLUSIVE MODE;  -- no row of the day may be written while its rows are moved
            EXECUTE format('WITH moved AS (DELETE FROM cleave.decision_default WHERE decided_at >= %L AND decided_at < %L RETURNING *)
                            INSERT INTO cleave.%I SELECT * FROM moved', day_start, day_start + interval '24 hours', partition_name);
        END IF;
        EXECUTE format('ALTER TABLE cleave.decision ATTACH PARTITION cleave.%I FOR VALUES FROM (%L) TO (%L)',
                       partition_name, day_start, day_start + interval '24 hours');
        RETURN NEXT partition_name;
    END LOOP;
END $$;

CREATE FUNCTION cleave.drop_decision_partitions(older_than timestamptz) RETURNS SETOF text
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
    'Drops partitions of days that ended before the given time and are older than 30 days. Returns the names of the dropped tables.';

-- Counters must outlive the rows of the decision log, which expire, and of bucket owners, which show only the present owner.
CREATE TABLE cleave.topic_tally (
    topic_id bigint NOT NULL,
    tally    text   NOT NULL,
    kind     text   NOT NULL,
    because  text   NOT NULL,
    total    bigint NOT NULL,
    PRIMARY KEY (topic_id, tally, kind, because),
    CONSTRAINT topic_tally_known CHECK (tally IN ('change', 'refusal', 'bucket')),
    CONSTRAINT topic_tally_counts CHECK (total > 0)
) WITH (fillfactor = 50);
COMMENT ON TABLE cleave.topic_tally IS
    'Totals of a topic: layout changes by kind and origin, refusals by lane and reason, and entry buckets that got an owner.';
COMMENT ON CONSTRAINT topic_tally_counts ON cleave.topic_tally IS 'A total is more than 0.';
COMMENT ON CONSTRAINT topic_tally_known ON cleave.topic_tally IS 'A tally counts changes, refusals or entry buckets.';

-- Each evaluation counts once per lane and reason, regardless of the number of refused segments.
CREATE FUNCTION cleave.on_decision_counted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO cleave.topic_tally AS t (topic_id, tally, kind, because, total)
    SELECT d.topic_id, 'refusal', r.lane, r.reason, count(DISTINCT d.decision_id)
      FROM added d
     CROSS JOIN LATERAL (SELECT coalesce(refusal ->> 'lane', 'all') AS lane, refusal ->> 'reason' AS reason
                           FROM jsonb_array_elements(d.refusals) AS refusal) r
     GROUP BY d.topic_id, r.lane, r.reason ORDER BY d.topic_id, r.lane, r.reason
        ON CONFLICT (topic_id, tally, kind, because) DO UPDATE SET total = t.total + excluded.total;
    RETURN NULL;
END $$;
CREATE TRIGGER decision_counted AFTER INSERT ON cleave.decision
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION cleave.on_decision_counted();
