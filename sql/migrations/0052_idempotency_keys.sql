-- A change that is asked for over HTTP with an idempotency key is made once: whoever repeats it has the first one's answer.

CREATE TABLE cleave.api_request (
    subject         text        NOT NULL,
    idempotency_key text        NOT NULL,
    asked_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    digest          text        NOT NULL,
    answer          jsonb,
    PRIMARY KEY (subject, idempotency_key)
);
CREATE INDEX api_request_by_age ON cleave.api_request (asked_at);
COMMENT ON TABLE cleave.api_request IS
    'Changes that were asked for with an idempotency key: of what request it was, and what was answered. Kept for a week at least.';
COMMENT ON COLUMN cleave.api_request.digest IS 'Of the verb, the path and the body: a key is for one request.';
COMMENT ON COLUMN cleave.api_request.answer IS 'Null while the first request is being answered.';

GRANT SELECT, INSERT, UPDATE, DELETE ON cleave.api_request TO cleave_controller;
