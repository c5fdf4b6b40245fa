-- Cycles of bundle balancing do not grow without bound, and what they proposed does not wait without bound.
--
-- The inputs and the outcome of a cycle are texts that only replay reads. They grow with the number of bundles: 2,000 bundles and a
-- cycle every five minutes make about 0.3 GB a day. So these texts and the refusals are forgotten after a few days. The rest of the
-- row and the proposals stay as long as other history, and nothing else of a cycle is ever changed.
ALTER TABLE cleave.bundle_decision ALTER COLUMN inputs DROP NOT NULL, ALTER COLUMN outcome DROP NOT NULL;
COMMENT ON COLUMN cleave.bundle_decision.inputs IS 'What the cycle was decided on, for replay; null once it is forgotten.';
COMMENT ON COLUMN cleave.bundle_decision.outcome IS 'The whole answer, for replay; null once it is forgotten.';

CREATE FUNCTION cleave.bundle_decision_before_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.inputs IS NULL AND NEW.outcome IS NULL AND NEW.refusals = '[]'
       AND (NEW.cycle_id, NEW.cluster, NEW.request_key, NEW.decided_at, NEW.decided_by, NEW.code_version, NEW.recorded_at)
           IS NOT DISTINCT FROM
           (OLD.cycle_id, OLD.cluster, OLD.request_key, OLD.decided_at, OLD.decided_by, OLD.code_version, OLD.recorded_at) THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'Rows of bundle_decision are history: inputs, outcome and refusals may be forgotten, all three at once; the rest is never changed.'
        USING ERRCODE = 'restrict_violation', CONSTRAINT = 'bundle_decision_is_history';
END $$;
DROP TRIGGER bundle_decision_is_history ON cleave.bundle_decision;
CREATE TRIGGER bundle_decision_is_history BEFORE UPDATE ON cleave.bundle_decision
    FOR EACH ROW EXECUTE FUNCTION cleave.bundle_decision_before_update();

-- The newest cycle of each cluster keeps everything: people read there why nothing happens.
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

-- An approved proposal is carried out within an hour of its approval or not at all. A try changes changed_at, so the approval has an
-- instant of its own.
ALTER TABLE cleave.bundle_proposal ADD COLUMN approved_at timestamptz;
COMMENT ON COLUMN cleave.bundle_proposal.approved_at IS 'When a person or an automatic namespace approved it; null: never.';
UPDATE cleave.bundle_proposal SET approved_at = changed_at WHERE state = 'approved';

CREATE FUNCTION cleave.bundle_proposal_note_approval() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.approved_at := clock_timestamp();
    RETURN NEW;
END $$;
CREATE TRIGGER bundle_proposal_note_approval BEFORE UPDATE ON cleave.bundle_proposal
    FOR EACH ROW WHEN (NEW.state = 'approved' AND OLD.state <> 'approved')
    EXECUTE FUNCTION cleave.bundle_proposal_note_approval();
