-- Who sends traces asks every few seconds for what has ended since, and for the load run before a decision.
CREATE INDEX operation_by_end ON cleave.operation (finished_at, operation_id) WHERE finished_at IS NOT NULL;
CREATE INDEX load_run_by_applied ON cleave.load_run (applied_at);

COMMENT ON COLUMN cleave.api_request.digest IS 'Of the verb, the path with its query, and the body: a key is for one request.';
