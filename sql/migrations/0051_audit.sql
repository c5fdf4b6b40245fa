-- Who asked for what over HTTP, from where, and what came of it: every change that a person asks for, done or refused, and every
-- access that was denied.

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
    CONSTRAINT audit_status_of_http CHECK (status BETWEEN 100 AND 599)
);
COMMENT ON TABLE cleave.audit IS
    'Every change that was asked for over HTTP, done or refused, and every access that was denied: who, what, from where, result.';
COMMENT ON COLUMN cleave.audit.subject IS 'Who holds the token; null where it was none, or not valid.';
COMMENT ON COLUMN cleave.audit.act IS 'The name of the call.';
COMMENT ON COLUMN cleave.audit.reason IS 'Why it was refused; null where it was done.';
COMMENT ON CONSTRAINT audit_status_of_http ON cleave.audit IS 'The result of a request is a status of HTTP.';
CREATE TRIGGER audit_is_history BEFORE UPDATE ON cleave.audit
    FOR EACH ROW EXECUTE FUNCTION cleave.refuse_rewriting_history();

GRANT SELECT, INSERT ON cleave.audit TO cleave_controller;
