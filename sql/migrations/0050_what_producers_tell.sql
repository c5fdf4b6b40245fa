-- What producers tell: how many a segment has, since what sealing it costs them counts as what it costs its consumers; and by
-- their own counts where in a segment's range its load lies.

CREATE TABLE cleave.segment_producers (
    topic_id   bigint  NOT NULL,
    segment_id bigint  NOT NULL,
    connected  integer,
    counting   integer,
    counted_at timestamptz,
    PRIMARY KEY (topic_id, segment_id),
    CONSTRAINT segment_producers_some CHECK (coalesce(least(connected, counting), -1) >= 0)
) WITH (fillfactor = 70);
COMMENT ON TABLE cleave.segment_producers IS 'How many producers each segment has, as far as anybody can count them.';
COMMENT ON COLUMN cleave.segment_producers.connected IS 'As its broker said when that last changed; null where no broker tells.';
COMMENT ON COLUMN cleave.segment_producers.counting IS 'How many had sent to it of those that hand in counts of their keys, at counted_at.';
COMMENT ON CONSTRAINT segment_producers_some ON cleave.segment_producers IS 'There are no fewer producers than none, and a row says how many.';
GRANT SELECT, INSERT, UPDATE, DELETE ON cleave.segment_producers TO cleave_controller;

-- The sketch of a segment with these messages added; older ones count half as much after half_life seconds.
CREATE FUNCTION cleave.keep_sketch(of_topic bigint, of_segment bigint, counted real[], fresh_for double precision, half_life double precision)
RETURNS void LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO cleave.segment_sketch AS k (topic_id, segment_id, bins, messages, fresh_until)
    SELECT s.topic_id, s.segment_id, counted, (SELECT sum(bin::float8) FROM unnest(counted) AS bin),
           clock_timestamp() + make_interval(secs => fresh_for)
      FROM cleave.segment s WHERE s.topic_id = of_topic AND s.segment_id = of_segment AND s.state = 'ACTIVE'
    ON CONFLICT (topic_id, segment_id) DO UPDATE
       SET (bins, messages, sampled_at, fresh_until) = (
           SELECT added.bins, (SELECT sum(bin::float8) FROM unnest(added.bins) AS bin), excluded.sampled_at, excluded.fresh_until
             FROM (SELECT cleave.add_sketch(k.bins, power(0.5, least(greatest(extract(epoch FROM excluded.sampled_at - k.sampled_at), 0)
                                                                     / half_life, 60)), excluded.bins) AS bins) added)
$$;
COMMENT ON FUNCTION cleave.keep_sketch(bigint, bigint, real[], double precision, double precision) IS
    'Adds what was counted to the sketch of an ACTIVE segment.';

CREATE TABLE staging.sketch_row (
    run_id     text      NOT NULL,
    topic_id   bigint    NOT NULL,
    segment_id bigint    NOT NULL,
    producers  bigint    NOT NULL,
    bins       bigint[]  NOT NULL
);
CREATE INDEX sketch_row_run ON staging.sketch_row (run_id);
GRANT INSERT ON staging.sketch_row TO cleave_spark_loader;

-- Called after the run's rates are merged. What was counted by another range than the segment has is left out.
CREATE FUNCTION cleave.merge_sketches(run text, fresh_for double precision, half_life double precision) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    given staging.sketch_row;
    kept  bigint := 0;
BEGIN
    FOR given IN
        SELECT g.* FROM staging.sketch_row g
          JOIN cleave.segment s ON s.topic_id = g.topic_id AND s.segment_id = g.segment_id AND s.state = 'ACTIVE'
         WHERE g.run_id = run AND cardinality(g.bins) = least(1024, s.range_end - s.range_start + 1)
           AND 0 <= ALL (g.bins) AND 0 < ANY (g.bins)
         ORDER BY g.topic_id, g.segment_id
    LOOP
        PERFORM cleave.keep_sketch(given.topic_id, given.segment_id, given.bins::real[], fresh_for, half_life);
        INSERT INTO cleave.segment_producers AS p (topic_id, segment_id, counting, counted_at)
        VALUES (given.topic_id, given.segment_id, given.producers, clock_timestamp())
            ON CONFLICT (topic_id, segment_id) DO UPDATE SET counting = excluded.counting, counted_at = excluded.counted_at;
        kept := kept + 1;
    END LOOP;
    DELETE FROM staging.sketch_row r WHERE r.run_id = run;
    RETURN kept;
END $$;
COMMENT ON FUNCTION cleave.merge_sketches(text, double precision, double precision) IS 'Adds a run''s counts of keys to the sketches of their segments.';
REVOKE EXECUTE ON FUNCTION cleave.merge_sketches(text, double precision, double precision) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION cleave.merge_sketches(text, double precision, double precision) TO cleave_spark_loader;
