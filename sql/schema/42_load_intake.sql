-- Staging tables of the loader, and the functions that merge the rows of one run into the load records.

-- Thresholds in force, resolved parameter by parameter: topic, else namespace, else cluster, else default. Under strict_pulsar the load
-- records of a topic follow the rule of Pulsar's reporter, so the aggregation reads that parameter too.
CREATE VIEW cleave.threshold_in_force AS
SELECT t.topic_id, k.*
  FROM cleave.topic t
  LEFT JOIN cleave.namespace_policy n ON n.namespace = t.namespace
 CROSS JOIN cleave.cluster_policy c
 CROSS JOIN LATERAL (
       SELECT max(number) FILTER (WHERE parameter = 'split_msg_rate_in')   AS split_msg_rate_in,
              max(number) FILTER (WHERE parameter = 'split_byte_rate_in')  AS split_byte_rate_in,
              max(number) FILTER (WHERE parameter = 'split_msg_rate_out')  AS split_msg_rate_out,
              max(number) FILTER (WHERE parameter = 'split_byte_rate_out') AS split_byte_rate_out,
              max(number) FILTER (WHERE parameter = 'merge_msg_rate_in')   AS merge_msg_rate_in,
              max(number) FILTER (WHERE parameter = 'merge_byte_rate_in')  AS merge_byte_rate_in,
              max(number) FILTER (WHERE parameter = 'merge_msg_rate_out')  AS merge_msg_rate_out,
              max(number) FILTER (WHERE parameter = 'merge_byte_rate_out') AS merge_byte_rate_out,
              max(number) FILTER (WHERE parameter = 'load_change_threshold') AS load_change_threshold,
              max(number) FILTER (WHERE parameter = 'load_stale_after_seconds') AS load_stale_after_seconds,
              coalesce(bool_or(stored = 'true') FILTER (WHERE parameter = 'strict_pulsar'), false) AS strict_pulsar
         FROM (SELECT d.parameter, held.stored,
                      coalesce(cleave.parameter_number(held.stored), cleave.parameter_number(d.value)) AS number
                 FROM cleave.policy_default d
                CROSS JOIN LATERAL (SELECT cleave.parameter_stored(d.parameter, t.policy, n.policy, c.policy) AS stored) held
                WHERE d.parameter IN ('split_msg_rate_in', 'split_byte_rate_in', 'split_msg_rate_out', 'split_byte_rate_out',
                                      'merge_msg_rate_in', 'merge_byte_rate_in', 'merge_msg_rate_out', 'merge_byte_rate_out',
                                      'load_change_threshold', 'load_stale_after_seconds', 'strict_pulsar')) parameters) k
 WHERE t.state <> 'deleted';

-- Length of a tick for each topic whose profile uses past load; the load memory has 45 ticks. A candidate with such a profile needs the
-- same memory as a live policy. If both profiles use past load, the ticks follow the live policy.
CREATE VIEW cleave.memory_in_force AS
SELECT topic_id, greatest(CASE WHEN profile = 'adaptive' THEN memory_seconds ELSE candidate_seconds END, 45) / 45 AS tick_seconds
  FROM (SELECT t.topic_id,
               max(coalesce(held.stored, d.value) #>> '{}') FILTER (WHERE d.parameter = 'profile') AS profile,
               max(coalesce(cleave.parameter_number(held.stored), cleave.parameter_number(d.value)))
                   FILTER (WHERE d.parameter = 'load_memory_seconds') AS memory_seconds,
               max(p.override ->> 'profile') AS candidate_profile,
               max(coalesce(cleave.parameter_number(p.override -> d.parameter), cleave.parameter_number(held.stored), cleave.parameter_number(d.value)))
                   FILTER (WHERE d.parameter = 'load_memory_seconds') AS candidate_seconds
          FROM cleave.topic t
          LEFT JOIN cleave.namespace_policy n ON n.namespace = t.namespace
          LEFT JOIN cleave.policy_candidate p ON p.topic_id = t.topic_id AND p.state = 'shadow'
         CROSS JOIN cleave.cluster_policy c
         CROSS JOIN cleave.policy_default d
         CROSS JOIN LATERAL (SELECT cleave.parameter_stored(d.parameter, t.policy, n.policy, c.policy) AS stored) held
         WHERE d.parameter IN ('profile', 'load_memory_seconds') AND t.state <> 'deleted'
         GROUP BY t.topic_id) topics
 WHERE 'adaptive' IN (profile, candidate_profile);

-- Staging tables of the loaders, also those of bundles: COPY appends rows with the id of a run, and the merge function deletes them.
CREATE TABLE staging.load_row (
    run_id text NOT NULL, LIKE cleave.segment_load INCLUDING DEFAULTS, seen_row_version bigint NOT NULL
);
CREATE INDEX load_row_run ON staging.load_row (run_id);
COMMENT ON COLUMN staging.load_row.seen_row_version IS 'Row version of the load record from which the row was computed; 0: there was none.';

CREATE TABLE staging.source_row (run_id text NOT NULL, LIKE cleave.load_source);
CREATE INDEX source_row_run ON staging.source_row (run_id);

CREATE TABLE staging.tick_row (
    run_id       text             NOT NULL,
    topic_id     bigint           NOT NULL,
    segment_id   bigint           NOT NULL,
    msg_rate_in  double precision NOT NULL,
    byte_rate_in double precision NOT NULL,
    msg_rate_out double precision NOT NULL,
    byte_rate_out double precision NOT NULL,
    tick_seconds double precision NOT NULL
);
CREATE INDEX tick_row_run ON staging.tick_row (run_id);

CREATE TABLE staging.sketch_row (
    run_id     text      NOT NULL,
    topic_id   bigint    NOT NULL,
    segment_id bigint    NOT NULL,
    producers  bigint    NOT NULL,
    bins       bigint[]  NOT NULL
);
CREATE INDEX sketch_row_run ON staging.sketch_row (run_id);

-- Appends the rates of a run to the load memories. The last known rates fill a gap of up to five minutes, or five ticks if these are
-- longer. After a longer gap the memory begins again, because the load in between is unknown. A child takes over the memory of its
-- parents in proportion to the widths that it has of them. If all children of a split report, their measured shares replace the widths.
CREATE FUNCTION cleave.remember_loads(run text, run_window_end timestamptz) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    CREATE TEMPORARY TABLE tick_given ON COMMIT DROP AS
    SELECT s.topic_id, s.segment_id, s.tick_seconds, floor(extract(epoch FROM run_window_end) / s.tick_seconds)::bigint AS tick,
           greatest(5, 300 / s.tick_seconds) AS bridged,
           ARRAY[s.msg_rate_in, s.byte_rate_in, s.msg_rate_out, s.byte_rate_out] AS rates
      FROM staging.tick_row s WHERE s.run_id = run;
    DELETE FROM staging.tick_row s WHERE s.run_id = run;
    ANALYZE tick_given;

    INSERT INTO cleave.load_memory (topic_id, segment_id, tick_seconds, last_tick, rates, strikes)
    SELECT g.topic_id, g.segment_id, g.tick_seconds, g.tick - 1, h.rates[greatest(1, cardinality(h.rates) - 179):], k.strikes
      FROM tick_given g
      JOIN cleave.segment s ON s.topic_id = g.topic_id AND s.segment_id = g.segment_id AND s.state = 'ACTIVE'
     CROSS JOIN LATERAL (
           SELECT count(*) AS parents, bool_and(m.rates IS NOT NULL) AS whole,
                  max(m.last_tick - cardinality(m.rates) / 4 + 1) AS first_tick, max(m.strikes) AS strikes,
                  min(p.parent_id) AS parent_id
             FROM cleave.segment_parent p
             LEFT JOIN cleave.load_memory m ON m.topic_id = p.topic_id AND m.segment_id = p.parent_id
              AND m.tick_seconds = g.tick_seconds AND g.tick - m.last_tick BETWEEN 0 AND g.bridged
            WHERE p.topic_id = g.topic_id AND p.child_id = g.segment_id) a
     CROSS JOIN LATERAL (
           SELECT sum(y.rates[1]) AS a, sum(y.rates[2]) AS b, sum(y.rates[3]) AS c, sum(y.rates[4]) AS d,
                  bool_and(y.rates IS NOT NULL AND NOT EXISTS (
                      SELECT FROM cleave.segment_parent z
                       WHERE z.topic_id = x.topic_id AND z.child_id = x.child_id AND z.parent_id <> x.parent_id)) AS whole,
                  count(*) AS children
             FROM cleave.segment_parent x
             LEFT JOIN tick_given y ON y.topic_id = x.topic_id AND y.segment_id = x.child_id
            WHERE a.parents = 1 AND x.topic_id = g.topic_id AND x.parent_id = a.parent_id) f
     CROSS JOIN LATERAL (
           SELECT array_agg(inherited.rate ORDER BY inherited.at, inherited.metric) AS rates
             FROM (SELECT at, metric,
                          CASE WHEN f.whole AND f.children > 1 AND (ARRAY[f.a, f.b, f.c, f.d])[metric] > 0
                               THEN sum(m.rates[4 * (least(at, m.last_tick) - m.last_tick + cardinality(m.rates) / 4 - 1) + metric])
                                    * g.rates[metric] / (ARRAY[f.a, f.b, f.c, f.d])[metric]
                               ELSE sum(m.rates[4 * (least(at, m.last_tick) - m.last_tick + cardinality(m.rates) / 4 - 1) + metric]
                                        * (least(q.range_end, s.range_end) - greatest(q.range_start, s.range_start) + 1)
                                        / (q.range_end - q.range_start + 1)::float8)
                          END AS rate
                     FROM cleave.segment_parent p
                     JOIN cleave.segment q ON q.topic_id = p.topic_id AND q.segment_id = p.parent_id
                     JOIN cleave.load_memory m ON m.topic_id = p.topic_id AND m.segment_id = p.parent_id
                    CROSS JOIN generate_series(greatest(a.first_tick, g.tick - 45), g.tick - 1) AS at
                    CROSS JOIN generate_series(1, 4) AS metric
                    WHERE p.topic_id = g.topic_id AND p.child_id = g.segment_id
                    GROUP BY at, metric) inherited) h
     CROSS JOIN LATERAL (
           SELECT CASE WHEN f.whole AND f.children > 1 AND f.a + f.b + f.c + f.d > 0
                        AND g.rates[1] >= 0.8 * f.a AND g.rates[2] >= 0.8 * f.b
                        AND g.rates[3] >= 0.8 * f.c AND g.rates[4] >= 0.8 * f.d
                       THEN a.strikes + 1 ELSE 0 END AS strikes) k
     WHERE a.parents > 0 AND a.whole AND h.rates IS NOT NULL
       AND NOT EXISTS (SELECT FROM cleave.load_memory m WHERE m.topic_id = g.topic_id AND m.segment_id = g.segment_id);

    UPDATE cleave.load_memory m
       SET tick_seconds = g.tick_seconds, last_tick = g.tick,
           rates = CASE
               WHEN m.tick_seconds <> g.tick_seconds OR g.tick - m.last_tick NOT BETWEEN 0 AND g.bridged THEN g.rates
               WHEN g.tick = m.last_tick THEN m.rates[:cardinality(m.rates) - 4] || g.rates
               WHEN g.tick = m.last_tick + 1 THEN m.rates[greatest(1, cardinality(m.rates) - 175):] || g.rates
               ELSE m.rates[greatest(1, cardinality(m.rates) + 4 * least(g.tick - m.last_tick, 45) - 179)::integer:]
                    || ARRAY(SELECT rate FROM generate_series(2, least(g.tick - m.last_tick, 45)) AS tick,
                                    unnest(m.rates[cardinality(m.rates) - 3:]) WITH ORDINALITY AS held (rate, metric) ORDER BY tick, metric)
                    || g.rates
           END
      FROM tick_given g WHERE m.topic_id = g.topic_id AND m.segment_id = g.segment_id;

    INSERT INTO cleave.load_memory (topic_id, segment_id, tick_seconds, last_tick, rates)
    SELECT g.topic_id, g.segment_id, g.tick_seconds, g.tick, g.rates
      FROM tick_given g JOIN cleave.segment s ON s.topic_id = g.topic_id AND s.segment_id = g.segment_id
     WHERE s.pruned_epoch IS NULL
    ON CONFLICT (topic_id, segment_id) DO NOTHING;
    DROP TABLE tick_given;
END $$;

-- Merges the rows of one aggregation run. A run at or behind the watermark changes nothing. If a load record has changed since the run
-- read it, the row is skipped and counted as outrun, because the next run computes it again.
--
-- Runs that were applied later than the present time show that the clock of the server went back. They would refuse each run, and keep
-- load fresh, until the clock reaches their times again. So they are deleted, and times of the load after the window become its end.
CREATE FUNCTION cleave.merge_load(
    run text, run_window_end timestamptz, run_engine text, run_samples bigint, run_segments bigint, run_quarantined text[])
RETURNS TABLE (written bigint, outrun bigint, applied boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    staged    bigint;
    changed   bigint;
    merged_at timestamptz;
BEGIN
    LOCK TABLE cleave.load_run IN SHARE ROW EXCLUSIVE MODE;  -- the lock makes concurrent runs merge one after the other
    merged_at := clock_timestamp();
    IF EXISTS (SELECT FROM cleave.load_run r
                WHERE r.run_id = run OR (r.window_end >= run_window_end AND r.applied_at <= merged_at)) THEN
        DELETE FROM staging.load_row s WHERE s.run_id = run;
        DELETE FROM staging.source_row s WHERE s.run_id = run;
        DELETE FROM staging.tick_row s WHERE s.run_id = run;
        RETURN QUERY SELECT 0::bigint, 0::bigint, false;
        RETURN;
    END IF;
    PERFORM cleave.remember_loads(run, run_window_end);  -- first, because a change of the records wakes evaluations that read both
    SELECT count(*) INTO staged FROM staging.load_row s WHERE s.run_id = run;
    MERGE INTO cleave.segment_load l
    USING (SELECT s.*, g.pruned_epoch FROM staging.load_row s JOIN cleave.segment g USING (topic_id, segment_id) WHERE s.run_id = run) s
       ON (l.topic_id, l.segment_id) = (s.topic_id, s.segment_id)
     WHEN MATCHED AND l.row_version = s.seen_row_version THEN UPDATE
      SET msg_rate_in = s.msg_rate_in, byte_rate_in = s.byte_rate_in, msg_rate_out = s.msg_rate_out,
          byte_rate_out = s.byte_rate_out, source = s.source, modified_at = s.modified_at,
          cold_since = s.cold_since, silent_since = s.silent_since, row_version = l.row_version + 1
     WHEN NOT MATCHED AND s.seen_row_version = 0 AND s.pruned_epoch IS NULL THEN INSERT
      VALUES (s.topic_id, s.segment_id, s.msg_rate_in, s.byte_rate_in, s.msg_rate_out, s.byte_rate_out,
              s.source, s.modified_at, s.cold_since, s.silent_since);
    GET DIAGNOSTICS changed = ROW_COUNT;
    DELETE FROM cleave.load_run r WHERE r.applied_at > merged_at;
    IF FOUND THEN
        UPDATE cleave.segment_load l
           SET modified_at = least(l.modified_at, run_window_end), row_version = l.row_version + 1,
               cold_since = CASE WHEN l.cold_since > run_window_end THEN run_window_end ELSE l.cold_since END,
               silent_since = CASE WHEN l.silent_since > run_window_end THEN run_window_end ELSE l.silent_since END
         WHERE greatest(l.modified_at, l.cold_since, l.silent_since) > run_window_end;
        UPDATE cleave.load_source o SET observed_at = run_window_end WHERE o.observed_at > run_window_end;
    END IF;
    INSERT INTO cleave.load_source AS o (source, observed_at)
    SELECT s.source, max(s.observed_at) FROM staging.source_row s WHERE s.run_id = run GROUP BY s.source
    ON CONFLICT (source) DO UPDATE SET observed_at = greatest(o.observed_at, excluded.observed_at);
    INSERT INTO cleave.load_run (run_id, window_end, engine, samples, segments, written, outrun, quarantined)
    VALUES (run, run_window_end, run_engine, run_samples, run_segments, changed, staged - changed, run_quarantined);
    DELETE FROM staging.load_row s WHERE s.run_id = run;
    DELETE FROM staging.source_row s WHERE s.run_id = run;
    RETURN QUERY SELECT changed, staged - changed, true;
END $$;

-- Adds the key counts of a run, whose rates are merged, to the key histograms of their segments. Skips counts whose number of bins does
-- not fit the range of the segment.
CREATE FUNCTION cleave.merge_sketches(run text, fresh_for double precision, half_life double precision) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE given staging.sketch_row;
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
    END LOOP;
    DELETE FROM staging.sketch_row r WHERE r.run_id = run;
END $$;

-- Deletes load of segments that were sealed more than an hour ago. Collectors watch a sealed segment for ten minutes only. The load of a
-- topic stays while an ACTIVE segment of the topic has no load record, because until a segment is measured, decisions estimate its load
-- from the records of its ancestors, and with the first measurement the segment takes over the memory of its parents. Rows that another
-- transaction has locked are left to the next call, so that a commit and this function cannot deadlock. Returns the number of deleted rows.
CREATE FUNCTION cleave.forget_sealed_loads() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    load_table text;
    changed    bigint;
    total      bigint := 0;
BEGIN
    FOREACH load_table IN ARRAY ARRAY['load_memory', 'segment_load', 'segment_producers'] LOOP
        EXECUTE format($delete$
            DELETE FROM cleave.%1$I WHERE (topic_id, segment_id) IN (
                   SELECT d.topic_id, d.segment_id FROM cleave.%1$I d JOIN cleave.segment s USING (topic_id, segment_id)
                    WHERE s.sealed_at < clock_timestamp() - interval '1 hour'
                      AND NOT EXISTS (
                          SELECT FROM cleave.segment a
                           WHERE a.topic_id = d.topic_id AND a.state = 'ACTIVE' AND NOT EXISTS (
                                 SELECT FROM cleave.segment_load l WHERE (l.topic_id, l.segment_id) = (a.topic_id, a.segment_id)))
                      FOR UPDATE OF d SKIP LOCKED)
            $delete$, load_table);
        GET DIAGNOSTICS changed = ROW_COUNT; total := total + changed;
    END LOOP;
    RETURN total;
END $$;

-- Deletes runs that were applied more than a day before the given time, and sources that have been silent since that time and have no
-- load record. The newest run is the watermark and stays. Runs of the last 31 days stay as well, because decisions of the last 30 days
-- are kept in any case, and the replay of a decision also reads earlier runs. Returns the number of deleted rows.
CREATE FUNCTION cleave.expire_load_runs(older_than timestamptz) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH runs AS (
        DELETE FROM cleave.load_run r
         WHERE r.applied_at < least(older_than, clock_timestamp() - interval '30 days') - interval '1 day'
           AND r.window_end < (SELECT max(window_end) FROM cleave.load_run) RETURNING 1)
    , sources AS (
        DELETE FROM cleave.load_source o
         WHERE o.observed_at < older_than AND NOT EXISTS (SELECT FROM cleave.segment_load l WHERE l.source = o.source) RETURNING 1)
    SELECT count(*) FROM (TABLE runs UNION ALL TABLE sources) deleted
$$;
