-- The ledger by day: partitions are made ahead and dropped whole, by functions of the owner's, since the
-- controller's role may make and drop no table.

-- Rows that came before their day had a partition are in decision_default; they move with the day.
CREATE FUNCTION cleave.ensure_decision_partitions(days_ahead integer) RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    day_start timestamptz;
    partition_name text;
BEGIN
    LOCK TABLE cleave.decision IN SHARE UPDATE EXCLUSIVE MODE;  -- two janitors follow one another
    FOR offset_days IN 0 .. greatest(days_ahead, 0) LOOP
        day_start := (date_trunc('day', statement_timestamp() AT TIME ZONE 'UTC') + make_interval(days => offset_days)) AT TIME ZONE 'UTC';
        partition_name := 'decision_' || to_char(day_start AT TIME ZONE 'UTC', 'YYYYMMDD');
        CONTINUE WHEN to_regclass('cleave.' || partition_name) IS NOT NULL;
        EXECUTE format('CREATE TABLE cleave.%I (LIKE cleave.decision INCLUDING ALL)', partition_name);
        IF EXISTS (SELECT FROM cleave.decision_default
                    WHERE decided_at >= day_start AND decided_at < day_start + interval '24 hours') THEN
            LOCK TABLE cleave.decision IN ACCESS EXCLUSIVE MODE;  -- no row of the day may be written while they move
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
DECLARE partition_name text;
BEGIN
    FOR partition_name IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
         WHERE i.inhparent = 'cleave.decision'::regclass AND c.relname ~ '^decision_[0-9]{8}$'
           AND to_date(right(c.relname, 8), 'YYYYMMDD') + 1 <= (older_than AT TIME ZONE 'UTC')
         ORDER BY c.relname
    LOOP
        EXECUTE format('DROP TABLE cleave.%I', partition_name);
        RETURN NEXT partition_name;
    END LOOP;
    DELETE FROM cleave.decision_default WHERE decided_at < older_than;
END $$;

REVOKE EXECUTE ON FUNCTION cleave.ensure_decision_partitions(integer), cleave.drop_decision_partitions(timestamptz) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION cleave.ensure_decision_partitions(integer), cleave.drop_decision_partitions(timestamptz) TO cleave_controller;
