-- View of the audit: requests over HTTP with subject, call, address and result.

CREATE VIEW inspect.audit AS
SELECT a.audit_id, a.asked_at, a.subject, a.role, a.address, a.act, a.method, a.path, a.status,
       CASE WHEN a.status < 400 THEN 'done' WHEN a.status IN (401, 403) THEN 'denied' WHEN a.status < 500 THEN 'refused'
            ELSE 'failed' END AS result,
       a.reason, a.request_key, a.dry_run
  FROM cleave.audit a;
COMMENT ON VIEW inspect.audit IS
    'One row per change that was requested over HTTP, and per denied access: subject, call, address and result. Each worker records a repeated denial at most once a minute.';
