-- Backtests: the cost of policies on a recorded load. A run is the request, a result the outcome of one policy on one load series.
--
-- The same inputs under the same code give the same figures, so a result is never changed. Maintenance deletes old backtests,
-- except those that are evidence for or against a candidate policy.

CREATE TABLE cleave.backtest_run (
    run_id       bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    request_key  text        NOT NULL,
    asked_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    asked_by     text        NOT NULL,
    code_version text        NOT NULL,
    inputs       jsonb       NOT NULL,
    state        text        NOT NULL DEFAULT 'running',
    engine       text,
    finished_at  timestamptz,
    error        text,
    CONSTRAINT backtest_run_request UNIQUE (request_key),
    CONSTRAINT backtest_run_state_known CHECK (state IN ('running', 'done', 'failed')),
    CONSTRAINT backtest_run_ended CHECK ((state = 'running') = (finished_at IS NULL)),
    CONSTRAINT backtest_run_says_why CHECK ((state = 'failed') = (error IS NOT NULL)),
    CONSTRAINT backtest_run_inputs_named CHECK (inputs ?& ARRAY['policies', 'loads', 'prices'])
);
COMMENT ON TABLE cleave.backtest_run IS
    'What was asked of a backtest: in inputs the policies, the loads (topics and span, or a trace), the prices of the cost.';
COMMENT ON CONSTRAINT backtest_run_request ON cleave.backtest_run IS 'A request that is repeated is the same run.';
COMMENT ON CONSTRAINT backtest_run_state_known ON cleave.backtest_run IS 'A backtest is running, done or failed.';
COMMENT ON CONSTRAINT backtest_run_ended ON cleave.backtest_run IS 'What is not running any more has ended at an instant.';
COMMENT ON CONSTRAINT backtest_run_says_why ON cleave.backtest_run IS 'A backtest that failed says why, and no other does.';
COMMENT ON CONSTRAINT backtest_run_inputs_named ON cleave.backtest_run IS 'The inputs of a backtest name policies, loads and prices.';

CREATE TABLE cleave.backtest_result (
    run_id     bigint  NOT NULL,
    load       text    NOT NULL,
    policy     text    NOT NULL,
    seed       integer NOT NULL,
    topic_id   bigint,
    cost       float8  NOT NULL,
    least_cost float8  NOT NULL,
    figures    jsonb   NOT NULL,
    PRIMARY KEY (run_id, load, policy, seed),
    CONSTRAINT backtest_result_of_run FOREIGN KEY (run_id) REFERENCES cleave.backtest_run,
    CONSTRAINT backtest_result_costs CHECK (cost >= 0 AND least_cost >= 0 AND cost < 'infinity' AND least_cost < 'infinity')
);
COMMENT ON TABLE cleave.backtest_result IS
    'What one policy would have cost on one load, in segment-hours, the least any policy can pay, and all figures counted.';
COMMENT ON CONSTRAINT backtest_result_of_run ON cleave.backtest_result IS 'A result is of a run that was asked for.';
COMMENT ON CONSTRAINT backtest_result_costs ON cleave.backtest_result IS 'A cost is a number of segment-hours.';
CREATE TRIGGER backtest_result_is_history BEFORE UPDATE ON cleave.backtest_result
    FOR EACH ROW EXECUTE FUNCTION cleave.refuse_rewriting_history();
