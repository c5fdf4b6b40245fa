-- Views of backtests: the requests, and the cost of each policy.

CREATE VIEW inspect.backtest_runs AS
SELECT r.run_id, r.state, r.asked_at, r.asked_by,
       ARRAY(SELECT jsonb_array_elements(r.inputs -> 'policies') ->> 'name') AS policies,
       ARRAY(SELECT jsonb_array_elements(r.inputs -> 'loads') ->> 'name') AS loads,
       (SELECT to_timestamp(min((l ->> 'start_ms')::float8) / 1000) FROM jsonb_array_elements(r.inputs -> 'loads') AS l) AS since,
       (SELECT to_timestamp(max((l ->> 'end_ms')::float8) / 1000) FROM jsonb_array_elements(r.inputs -> 'loads') AS l) AS until,
       r.engine, extract(epoch FROM r.finished_at - r.asked_at)::float8 AS seconds,
       (SELECT count(*) FROM cleave.backtest_result b WHERE b.run_id = r.run_id) AS results,
       r.error, r.code_version, r.inputs, r.request_key
  FROM cleave.backtest_run r;
COMMENT ON VIEW inspect.backtest_runs IS
    'One row per backtest: requester, state and inputs. since and until are the bounds of the recorded load.';

CREATE VIEW inspect.backtest_results AS
SELECT b.run_id, b.load, b.topic_id, b.policy, b.seed, b.cost, b.least_cost, b.cost / nullif(b.least_cost, 0) AS regret,
       (b.figures ->> 'segment_hours')::float8 AS segment_hours, (b.figures ->> 'excess_hours')::float8 AS excess_hours,
       (b.figures ->> 'overload_seconds')::float8 AS overload_seconds,
       (b.figures ->> 'overloaded_segment_seconds')::float8 AS overloaded_segment_seconds,
       (b.figures ->> 'reshapes')::float8 AS reshapes, (b.figures ->> 'rings_resealed')::float8 AS rings_resealed,
       (b.figures ->> 'over_provisioned_hours')::float8 AS over_provisioned_hours,
       (b.figures ->> 'most_segments')::float8 AS most_segments, (b.figures ->> 'reconnections')::float8 AS reconnections,
       (b.figures ->> 'reversals')::float8 AS reversals, (b.figures ->> 'useless_splits')::float8 AS useless_splits,
       (b.figures ->> 'silent_seconds')::float8 AS silent_seconds, (b.figures ->> 'measured')::float8 AS measured,
       coalesce((b.figures ->> 'is_ideal')::boolean, false) AS is_ideal,
       r.asked_at, r.code_version, b.figures
  FROM cleave.backtest_result b
  JOIN cleave.backtest_run r USING (run_id);
COMMENT ON VIEW inspect.backtest_results IS
    'Cost of each policy on each load, in segment-hours; regret is the cost divided by the least cost that any policy can reach. measured: fraction of the time for which load was recorded; silent_seconds: longest time in which a segment was hot or cold without an action or a refusal; is_ideal: a plan that no real system can perform.';
