-- The audit goes with time, by the maintenance. Nobody but its owner can delete what is younger than thirty days: whoever gets hold of
-- the controller's login cannot wipe out the traces.

CREATE INDEX audit_by_age ON cleave.audit (asked_at);

CREATE FUNCTION cleave.expire_audit(older_than timestamptz) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE expired bigint;
BEGIN
    DELETE FROM cleave.audit a WHERE a.asked_at < least(older_than, clock_timestamp() - interval '30 days');
    GET DIAGNOSTICS expired = ROW_COUNT;
    RETURN expired;
END $$;
COMMENT ON FUNCTION cleave.expire_audit(timestamptz) IS 'Deletes the audit of before the instant, and never that of the last 30 days; how many rows.';
REVOKE EXECUTE ON FUNCTION cleave.expire_audit(timestamptz) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION cleave.expire_audit(timestamptz) TO cleave_controller;
