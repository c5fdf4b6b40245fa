-- Staging tables of the bundle loader, the function that merges the rows of one run, and the functions that delete old cycles.
--
-- The inputs and the outcome of a cycle are texts that only replay reads. They grow with the number of bundles: 2,000 bundles and a
-- cycle every five minutes make about 0.3 GB a day. So these texts and the refusals are deleted after a few days. The rest of the
-- row and the proposals are kept as long as other history, and no other column of a cycle ever changes.

CREATE TABLE staging.namespace_bundles_row (
    run_id           text        NOT NULL,
    cluster          text        NOT NULL,
    namespace        text        NOT NULL,
    boundaries       bigint[]    NOT NULL,
    boundaries_at    timestamptz NOT NULL,
    seen_row_version bigint      NOT NULL
);
CREATE INDEX namespace_bundles_row_run ON staging.namespace_bundles_row (run_id);

CREATE TABLE staging.bundle_row (
    run_id text NOT NULL, LIKE cleave.bundle_load INCLUDING DEFAULTS, seen_row_version bigint NOT NULL, seen_namespace_version bigint NOT NULL,
    gone boolean NOT NULL
);
CREATE INDEX bundle_row_run ON staging.bundle_row (run_id);
COMMENT ON COLUMN staging.bundle_row.seen_row_version IS 'Row version of the record from which the row was computed; 0: there was none.';
COMMENT ON COLUMN staging.bundle_row.seen_namespace_version IS 'Row version of the boundaries that the row is based on; 0: boundaries of this run.';
COMMENT ON COLUMN staging.bundle_row.gone IS 'True if the namespace no longer has the bundle.';

CREATE TABLE staging.namespace_row (
    run_id text NOT NULL, LIKE cleave.namespace_load INCLUDING DEFAULTS, seen_row_version bigint NOT NULL
);
CREATE INDEX namespace_row_run ON staging.namespace_row (run_id);

CREATE TABLE staging.broker_row (
    run_id text NOT NULL, LIKE cleave.broker_load INCLUDING DEFAULTS, seen_row_version bigint NOT NULL, gone boolean NOT NULL
);
CREATE INDEX broker_row_run ON staging.broker_row (run_id);

CREATE TABLE staging.cluster_row (LIKE cleave.cluster_load);
CREATE INDEX cluster_row_run ON staging.cluster_row (run_id);

CREATE FUNCTION cleave.empty_bundle_inbox(run text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    DELETE FROM staging.namespace_bundles_row s WHERE s.run_id = run;
    DELETE FROM staging.bundle_row s WHERE s.run_id = run;
    DELETE FROM staging.namespace_row s WHERE s.run_id = run;
    DELETE FROM staging.broker_row s WHERE s.run_id = run;
    DELETE FROM staging.cluster_row s WHERE s.run_id = run;
$$;

-- Merges the rows of one run: first the boundaries, then the load. A row whose record has changed since the run read it is left to the
-- next run. The same holds for all rows of a namespace whose boundaries differ from those that the run read. Runs that were applied later
-- than the present time, because the clock of the server went back, are deleted, and times of reports after the window become its end.
CREATE FUNCTION cleave.merge_bundle_load(
    run text, run_window_end timestamptz, run_engine text, run_topics bigint, run_quarantined text[]
) RETURNS TABLE (written bigint, outrun bigint, applied boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    staged    bigint;
    changed   bigint;
    total     bigint := 0;
    merged_at timestamptz;
BEGIN
    LOCK TABLE cleave.bundle_load_run IN SHARE ROW EXCLUSIVE MODE;  -- the lock makes concurrent runs merge one after the other
    merged_at := clock_timestamp();
    IF EXISTS (SELECT FROM cleave.bundle_load_run r
                WHERE r.run_id = run OR (r.window_end >= run_window_end AND r.applied_at <= merged_at)) THEN
        PERFORM cleave.empty_bundle_inbox(run);
        RETURN QUERY SELECT 0::bigint, 0::bigint, false;
        RETURN;
    END IF;
    staged := (SELECT count(*) FROM staging.namespace_bundles_row s WHERE s.run_id = run)
            + (SELECT count(*) FROM staging.bundle_row s WHERE s.run_id = run)
            + (SELECT count(*) FROM staging.namespace_row s WHERE s.run_id = run)
            + (SELECT count(*) FROM staging.broker_row s WHERE s.run_id = run);

    UPDATE cleave.namespace_bundles n
       SET boundaries = s.boundaries, boundaries_at = s.boundaries_at, actor = 'loader', row_version = n.row_version + 1,
           updated_at = clock_timestamp()
      FROM staging.namespace_bundles_row s
     WHERE s.run_id = run AND (n.cluster, n.namespace) = (s.cluster, s.namespace) AND n.row_version = s.seen_row_version;
    GET DIAGNOSTICS changed = ROW_COUNT; total := total + changed;
    INSERT INTO cleave.namespace_bundles (cluster, namespace, boundaries, boundaries_at)
    SELECT s.cluster, s.namespace, s.boundaries, s.boundaries_at FROM staging.namespace_bundles_row s
     WHERE s.run_id = run AND s.seen_row_version = 0
    ON CONFLICT (cluster, namespace) DO NOTHING;
    GET DIAGNOSTICS changed = ROW_COUNT; total := total + changed;
    -- Load that was computed with boundaries other than the present ones is left to the next run.
    DELETE FROM staging.bundle_row b
     WHERE b.run_id = run AND NOT EXISTS (
           SELECT FROM cleave.namespace_bundles n
             LEFT JOIN staging.namespace_bundles_row s ON s.run_id = run AND (s.cluster, s.namespace) = (n.cluster, n.namespace)
            WHERE (n.cluster, n.namespace) = (b.cluster, b.namespace)
              AND CASE WHEN s.run_id IS NULL THEN n.row_version = b.seen_namespace_version ELSE n.boundaries = s.boundaries END);

    MERGE INTO cleave.bundle_load l
    USING (SELECT * FROM staging.bundle_row WHERE run_id = run) s
       ON (l.cluster, l.namespace, l.lower_bound) = (s.cluster, s.namespace, s.lower_bound)
     WHEN MATCHED AND l.row_version = s.seen_row_version AND s.gone THEN DELETE
     WHEN MATCHED AND l.row_version = s.seen_row_version THEN UPDATE
      SET upper_bound = s.upper_bound, broker = s.broker, msg_rate_in = s.msg_rate_in, byte_rate_in = s.byte_rate_in,
          msg_rate_out = s.msg_rate_out, byte_rate_out = s.byte_rate_out, topic_count = s.topic_count,
          producer_count = s.producer_count, consumer_count = s.consumer_count, cache_size_bytes = s.cache_size_bytes,
          modified_at = s.modified_at, row_version = l.row_version + 1
     WHEN NOT MATCHED AND s.seen_row_version = 0 AND NOT s.gone THEN INSERT
      VALUES (s.cluster, s.namespace, s.lower_bound, s.upper_bound, s.broker, s.msg_rate_in, s.byte_rate_in, s.msg_rate_out,
              s.byte_rate_out, s.topic_count, s.producer_count, s.consumer_count, s.cache_size_bytes, s.modified_at);
    GET DIAGNOSTICS changed = ROW_COUNT; total := total + changed;

    MERGE INTO cleave.namespace_load l
    USING (SELECT s.* FROM staging.namespace_row s JOIN cleave.namespace_bundles n USING (cluster, namespace) WHERE s.run_id = run) s
       ON (l.cluster, l.namespace) = (s.cluster, s.namespace)
     WHEN MATCHED AND l.row_version = s.seen_row_version THEN UPDATE
      SET msg_rate_in = s.msg_rate_in, byte_rate_in = s.byte_rate_in, msg_rate_out = s.msg_rate_out, byte_rate_out = s.byte_rate_out,
          topic_count = s.topic_count, bundle_count = s.bundle_count, peak_msg_rate = s.peak_msg_rate,
          peak_byte_rate = s.peak_byte_rate, peak_topic_count = s.peak_topic_count, modified_at = s.modified_at,
          row_version = l.row_version + 1
     WHEN NOT MATCHED AND s.seen_row_version = 0 THEN INSERT
      VALUES (s.cluster, s.namespace, s.msg_rate_in, s.byte_rate_in, s.msg_rate_out, s.byte_rate_out, s.topic_count,
              s.bundle_count, s.peak_msg_rate, s.peak_byte_rate, s.peak_topic_count, s.modified_at);
    GET DIAGNOSTICS changed = ROW_COUNT; total := total + changed;

    MERGE INTO cleave.broker_load l
    USING (SELECT * FROM staging.broker_row WHERE run_id = run) s ON (l.cluster, l.broker) = (s.cluster, s.broker)
     WHEN MATCHED AND l.row_version = s.seen_row_version AND s.gone THEN DELETE
     WHEN MATCHED AND l.row_version = s.seen_row_version THEN UPDATE
      SET cpu_usage = s.cpu_usage, cpu_limit = s.cpu_limit, memory_usage = s.memory_usage, memory_limit = s.memory_limit,
          direct_memory_usage = s.direct_memory_usage, direct_memory_limit = s.direct_memory_limit,
          bandwidth_in_usage = s.bandwidth_in_usage, bandwidth_in_limit = s.bandwidth_in_limit,
          bandwidth_out_usage = s.bandwidth_out_usage, bandwidth_out_limit = s.bandwidth_out_limit,
          msg_rate_in = s.msg_rate_in, byte_rate_in = s.byte_rate_in, msg_rate_out = s.msg_rate_out, byte_rate_out = s.byte_rate_out,
          topic_count = s.topic_count, bundle_count = s.bundle_count, producer_count = s.producer_count,
          consumer_count = s.consumer_count, report = s.report, version = s.version, observed_at = s.observed_at,
          row_version = l.row_version + 1
     WHEN NOT MATCHED AND s.seen_row_version = 0 AND NOT s.gone THEN INSERT
      VALUES (s.cluster, s.broker, s.cpu_usage, s.cpu_limit, s.memory_usage, s.memory_limit, s.direct_memory_usage,
              s.direct_memory_limit, s.bandwidth_in_usage, s.bandwidth_in_limit, s.bandwidth_out_usage,
              s.bandwidth_out_limit, s.msg_rate_in, s.byte_rate_in, s.msg_rate_out, s.byte_rate_out, s.topic_count,
              s.bundle_count, s.producer_count, s.consumer_count, s.report, s.version, s.observed_at);
    GET DIAGNOSTICS changed = ROW_COUNT; total := total + changed;

    DELETE FROM cleave.bundle_load_run r WHERE r.applied_at > merged_at;
    IF FOUND THEN
        UPDATE cleave.broker_load l SET observed_at = run_window_end, row_version = l.row_version + 1
         WHERE l.observed_at > run_window_end;
    END IF;
    INSERT INTO cleave.bundle_load_run (run_id, window_end, engine, topics, written, outrun, quarantined)
    VALUES (run, run_window_end, run_engine, run_topics, total, staged - total, run_quarantined);
    INSERT INTO cleave.cluster_load SELECT * FROM staging.cluster_row s WHERE s.run_id = run;
    PERFORM cleave.empty_bundle_inbox(run);
    RETURN QUERY SELECT total, staged - total, true;
END $$;

-- Deletes cycles that are older than the given time and than 30 days with their proposals, except cycles with an open proposal, and
-- old runs with their figures. Returns the number of deleted cycles.
CREATE FUNCTION cleave.expire_bundle_history(older_than timestamptz) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH kept AS (SELECT least(older_than, clock_timestamp() - interval '30 days') AS since), cycles AS (
        DELETE FROM cleave.bundle_decision d USING kept
         WHERE d.recorded_at < kept.since
           AND NOT EXISTS (SELECT FROM cleave.bundle_proposal p
                            WHERE p.cycle_id = d.cycle_id AND p.state IN ('proposed', 'approved', 'applied')) RETURNING 1)
    , runs AS (
        DELETE FROM cleave.bundle_load_run r USING kept
         WHERE r.window_end < kept.since AND r.window_end < (SELECT max(window_end) FROM cleave.bundle_load_run))
    SELECT count(*) FROM cycles
$$;

-- The newest cycle of each cluster keeps its texts, because people read the reasons for the lack of actions there.
CREATE FUNCTION cleave.forget_bundle_inputs(older_than timestamptz) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH forgotten AS (
        UPDATE cleave.bundle_decision d SET inputs = NULL, outcome = NULL, refusals = '[]'
         WHERE d.recorded_at < older_than AND d.inputs IS NOT NULL
           AND d.cycle_id < (SELECT max(n.cycle_id) FROM cleave.bundle_decision n WHERE n.cluster = d.cluster) RETURNING 1)
    SELECT count(*) FROM forgotten
$$;
