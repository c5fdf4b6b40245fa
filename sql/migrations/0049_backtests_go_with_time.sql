-- Backtests that are old are deleted by the maintenance, but for what speaks for or against a candidate policy.

CREATE INDEX policy_candidate_by_evidence ON cleave.policy_candidate (run_id) WHERE run_id IS NOT NULL;

GRANT DELETE ON cleave.backtest_run, cleave.backtest_result TO cleave_controller;
