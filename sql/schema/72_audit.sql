-- Requests over HTTP: changes that a person requests, done or refused, accesses that were denied, and repeated requests.

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
    -- Dry runs are audited: a dry run costs as much as the change, and shows as much.
    dry_run     boolean     NOT NULL DEFAULT false,
    CONSTRAINT audit_status_of_http CHECK (status BETWEEN 100 AND 599)
);
CREATE INDEX audit_by_age ON cleave.audit (asked_at);
COMMENT ON TABLE cleave.audit IS
    'Every change that was asked for over HTTP, done or refused, and every access that was denied: who, what, from where, result.';
COMMENT ON COLUMN cleave.audit.subject IS 'Who holds the token; null where it was none, or not valid.';
COMMENT ON COLUMN cleave.audit.act IS 'The name of the call.';
COMMENT ON COLUMN cleave.audit.reason IS 'Why it was refused; null where it was done.';
COMMENT ON COLUMN cleave.audit.dry_run IS 'True if the request was a dry run.';
COMMENT ON CONSTRAINT audit_status_of_http ON cleave.audit IS 'The result of a request is a status of HTTP.';
CREATE TRIGGER audit_is_history BEFORE UPDATE ON cleave.audit FOR EACH ROW EXECUTE FUNCTION cleave.refuse_rewriting_history();

-- An intruder who holds the controller's login cannot wipe out the traces.
CREATE FUNCTION cleave.expire_audit(older_than timestamptz) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE expired bigint;
BEGIN
    DELETE FROM cleave.audit a WHERE a.asked_at < least(older_than, clock_timestamp() - interval '30 days');
    GET DIAGNOSTICS expired = ROW_COUNT;
    RETURN expired;
END $$;
COMMENT ON FUNCTION cleave.expire_audit(timestamptz) IS
    'Deletes the audit of before the instant, and never that of the last 30 days; how many rows.';

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
COMMENT ON COLUMN cleave.api_request.answer IS 'Null while the first request is being answered.';
COMMENT ON COLUMN cleave.api_request.digest IS 'Of the verb, the path with its query, and the body: a key is for one request.';
