-- The audit for people: who asked for what over HTTP, from where, and what came of it.

CREATE VIEW inspect.audit AS
SELECT a.audit_id, a.asked_at, a.subject, a.role, a.address, a.act, a.method, a.path, a.status,
       CASE WHEN a.status < 400 THEN 'done' WHEN a.status IN (401, 403) THEN 'denied' WHEN a.status < 500 THEN 'refused'
            ELSE 'failed' END AS result,
       a.reason, a.request_key, a.dry_run
  FROM cleave.audit a;
COMMENT ON VIEW inspect.audit IS
    'Every change that was asked for over HTTP and every access that was denied: who, what, from where, result. A denial that repeats itself is there once a minute from each worker.';
