-- What a cycle of bundle balancing was decided on is kept for days, the cycle and its proposals for as long as other history.
--
-- The texts of one cycle grow with the number of bundles: with 2,000 of them, every five minutes, about 0.3 GB a day. They serve
-- replay alone. So they are forgotten after a few days, and nothing else of a cycle ever changes.
ALTER TABLE cleave.bundle_decision ALTER COLUMN inputs DROP NOT NULL, ALTER COLUMN outcome DROP NOT NULL;
COMMENT ON COLUMN cleave.bundle_decision.inputs IS 'What the cycle was decided on, for replay; NULL once it is forgotten.';
COMMENT ON COLUMN cleave.bundle_decision.outcome IS 'The whole answer, for replay; NULL once it is forgotten.';

CREATE FUNCTION cleave.bundle_decision_before_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.inputs IS NULL AND NEW.outcome IS NULL AND NEW.refusals = '[]'
       AND (NEW.cycle_id, NEW.cluster, NEW.request_key, NEW.decided_at, NEW.decided_by, NEW.code_version, NEW.recorded_at)
           IS NOT DISTINCT FROM
           (OLD.cycle_id, OLD.cluster, OLD.request_key, OLD.decided_at, OLD.decided_by, OLD.code_version, OLD.recorded_at) THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'Rows of bundle_decision are history: only their texts are forgotten, together; the rest is never changed.'
        USING ERRCODE = 'restrict_violation', CONSTRAINT = 'bundle_decision_is_history';
END $$;
DROP TRIGGER bundle_decision_is_history ON cleave.bundle_decision;
CREATE TRIGGER bundle_decision_is_history BEFORE UPDATE ON cleave.bundle_decision
    FOR EACH ROW EXECUTE FUNCTION cleave.bundle_decision_before_update();

-- The newest cycle of each cluster keeps everything: people read in it why nothing happens.
CREATE FUNCTION cleave.forget_bundle_inputs(older_than timestamptz) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE cycles bigint;
BEGIN
    UPDATE cleave.bundle_decision d SET inputs = NULL, outcome = NULL, refusals = '[]'
     WHERE d.recorded_at < older_than AND d.inputs IS NOT NULL
       AND d.cycle_id < (SELECT max(n.cycle_id) FROM cleave.bundle_decision n WHERE n.cluster = d.cluster);
    GET DIAGNOSTICS cycles = ROW_COUNT;
    RETURN cycles;
END $$;
REVOKE EXECUTE ON FUNCTION cleave.forget_bundle_inputs(timestamptz) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION cleave.forget_bundle_inputs(timestamptz) TO cleave_controller;
