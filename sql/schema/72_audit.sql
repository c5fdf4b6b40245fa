-- Requests over HTTP: requested changes, done or refused, accesses that were denied, and the answers of repeated requests.

CREATE TABLE cleave.audit (
    audit_id    bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    asked_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    subject     text,
    role        text,
    address     text,
    method      text        NOT NULL,
    path        text        NOT NULL,
    act         text        NOT NULL,
    status      integer     NOT NULL,
    reason      text,
    request_key text,
    -- Dry runs are audited, because a dry run costs as much as the change and reveals as much.
    dry_run     boolean     NOT NULL DEFAULT false,
    CONSTRAINT audit_status_of_http CHECK (status BETWEEN 100 AND 599)
);
CREATE INDEX audit_by_age ON cleave.audit (asked_at);
COMMENT ON TABLE cleave.audit IS
    'One row per change that was requested over HTTP, done or refused, and per denied access: subject, call, address and result.';
COMMENT ON COLUMN cleave.audit.subject IS 'Subject of the token; NULL: the request had no token, or an invalid token.';
COMMENT ON COLUMN cleave.audit.act IS 'Name of the call.';
COMMENT ON COLUMN cleave.audit.reason IS 'Reason of the refusal; NULL: the request was done.';
COMMENT ON COLUMN cleave.audit.dry_run IS 'True if the request was a dry run.';
COMMENT ON CONSTRAINT audit_status_of_http ON cleave.audit IS 'The status of a request is an HTTP status from 100 to 599.';
CREATE TRIGGER audit_is_history BEFORE UPDATE ON cleave.audit FOR EACH ROW EXECUTE FUNCTION cleave.refuse_rewriting_history();

-- Deletes audit rows that are older than the given time and than 30 days. The limit of 30 days keeps an intruder with the controller's
-- login from deleting recent entries.
CREATE FUNCTION cleave.expire_audit(older_than timestamptz) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH expired AS (
        DELETE FROM cleave.audit WHERE asked_at < least(older_than, clock_timestamp() - interval '30 days') RETURNING 1)
    SELECT count(*) FROM expired
$$;

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
    'One row per change that was requested with an idempotency key: digest of the request, and the answer. Kept for at least a week.';
COMMENT ON COLUMN cleave.api_request.answer IS 'Answer to the first request; NULL while the first request is being handled.';
COMMENT ON COLUMN cleave.api_request.digest IS 'Digest of the HTTP method, the path with its query, and the body; a key belongs to one request.';
