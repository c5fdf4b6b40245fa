-- Backtests: the cost of policies on recorded load. A run is the request; a result is the outcome of one policy on one load series.
--
-- The same inputs under the same code give the same figures, so a result is never changed. Maintenance deletes old backtests,
-- except those that are evidence for or against a candidate.

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
    'One row per requested backtest. inputs holds the policies, the loads (topics and time span, or a trace) and the prices of the cost.';
COMMENT ON CONSTRAINT backtest_run_request ON cleave.backtest_run IS 'A repeated request gets the run of the first request.';
COMMENT ON CONSTRAINT backtest_run_state_known ON cleave.backtest_run IS 'A backtest is running, done or failed.';
COMMENT ON CONSTRAINT backtest_run_ended ON cleave.backtest_run IS 'A running backtest has no end time; any other backtest has one.';
COMMENT ON CONSTRAINT backtest_run_says_why ON cleave.backtest_run IS 'A failed backtest has an error; any other backtest has none.';
COMMENT ON CONSTRAINT backtest_run_inputs_named ON cleave.backtest_run IS 'The inputs of a backtest name policies, loads and prices.';

CREATE TABLE cleave.backtest_result (
    run_id     bigint  NOT NULL REFERENCES cleave.backtest_run,
    load       text    NOT NULL,
    policy     text    NOT NULL,
    seed       integer NOT NULL,
    topic_id   bigint,
    cost       float8  NOT NULL,
    least_cost float8  NOT NULL,
    figures    jsonb   NOT NULL,
    PRIMARY KEY (run_id, load, policy, seed),
    CONSTRAINT backtest_result_costs CHECK (cost >= 0 AND least_cost >= 0 AND cost < 'infinity' AND least_cost < 'infinity')
);
COMMENT ON TABLE cleave.backtest_result IS
    'Cost of one policy on one load in segment-hours, the least cost that any policy can reach, and all counted figures.';
COMMENT ON CONSTRAINT backtest_result_costs ON cleave.backtest_result IS 'A cost is a finite number of segment-hours that is not negative.';
CREATE TRIGGER backtest_result_is_history BEFORE UPDATE ON cleave.backtest_result
    FOR EACH ROW EXECUTE FUNCTION cleave.refuse_rewriting_history();
