-- Bundle load balancing: the load that the brokers of a cluster report for their namespace bundles, and the cycles of the balancer.
--
-- The loader writes load through one merge function. A cycle is one row with everything that it decided on. Each action that a
-- cycle proposes is a row of its own, which is applied only after its namespace has been enabled.

-- Return true if the boundaries rise from the first hash to the last and form at least one bundle.
CREATE FUNCTION cleave.tiles_hash_space(boundaries bigint[]) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT array_ndims(boundaries) = 1 AND array_lower(boundaries, 1) = 1 AND cardinality(boundaries) >= 2
           AND boundaries[1] = 0 AND boundaries[cardinality(boundaries)] = 4294967295
           AND NOT EXISTS (SELECT FROM (SELECT b, lag(b) OVER (ORDER BY place) AS before
                                          FROM unnest(boundaries) WITH ORDINALITY AS u (b, place)) pairs
                            WHERE b IS NULL OR b <= before);
$$;

CREATE TABLE cleave.namespace_bundles (
    cluster        text        NOT NULL,
    namespace      text        NOT NULL,
    boundaries     bigint[]    NOT NULL,
    mode           text        NOT NULL DEFAULT 'dry-run',
    split_settings jsonb       NOT NULL DEFAULT '{}',
    row_version    bigint      NOT NULL DEFAULT 1,
    actor          text        NOT NULL DEFAULT 'loader',
    boundaries_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (cluster, namespace),
    CONSTRAINT namespace_bundles_form CHECK (namespace ~ '^[^/[:space:]]+/[^/[:space:]]+$' AND cluster ~ '^[^/[:space:]]+$'),
    CONSTRAINT namespace_bundles_tile CHECK (cleave.tiles_hash_space(boundaries)),
    CONSTRAINT namespace_bundles_mode_known CHECK (mode IN ('dry-run', 'approval', 'automatic')),
    CONSTRAINT namespace_bundles_settings_is_object CHECK (jsonb_typeof(split_settings) = 'object')
);
COMMENT ON COLUMN cleave.namespace_bundles.mode IS
    'dry-run: proposals are only shown; approval: proposals are applied after a person approves them; automatic: proposals are applied.';
COMMENT ON CONSTRAINT namespace_bundles_form ON cleave.namespace_bundles IS
    'A namespace is tenant/namespace, in a cluster named without slashes and spaces.';
COMMENT ON CONSTRAINT namespace_bundles_tile ON cleave.namespace_bundles IS
    'Boundaries of bundles rise from 0 to 4294967295 and never repeat.';
COMMENT ON CONSTRAINT namespace_bundles_mode_known ON cleave.namespace_bundles IS
    'The mode of a namespace is dry-run, approval or automatic.';
COMMENT ON CONSTRAINT namespace_bundles_settings_is_object ON cleave.namespace_bundles IS
    'Split settings of a namespace are a JSON object of parameters.';

CREATE FUNCTION cleave.namespace_bundles_before_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.row_version <> OLD.row_version + 1 THEN
        RAISE EXCEPTION 'The row version of the bundles of % rises by exactly 1 with each change: % cannot follow %.',
            OLD.namespace, NEW.row_version, OLD.row_version
            USING ERRCODE = 'check_violation', CONSTRAINT = 'namespace_bundles_row_version_by_one';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER namespace_bundles_before_update BEFORE UPDATE ON cleave.namespace_bundles
    FOR EACH ROW EXECUTE FUNCTION cleave.namespace_bundles_before_update();

CREATE TABLE cleave.bundle_load (
    cluster          text             NOT NULL,
    namespace        text             NOT NULL,
    lower_bound      bigint           NOT NULL,
    upper_bound      bigint           NOT NULL,
    broker           text,
    msg_rate_in      double precision NOT NULL,
    byte_rate_in     double precision NOT NULL,
    msg_rate_out     double precision NOT NULL,
    byte_rate_out    double precision NOT NULL,
    topic_count      bigint           NOT NULL,
    producer_count   bigint           NOT NULL,
    consumer_count   bigint           NOT NULL,
    cache_size_bytes bigint           NOT NULL,
    modified_at      timestamptz      NOT NULL,
    row_version      bigint           NOT NULL DEFAULT 1,
    PRIMARY KEY (cluster, namespace, lower_bound),
    CONSTRAINT bundle_load_namespace FOREIGN KEY (cluster, namespace) REFERENCES cleave.namespace_bundles ON DELETE CASCADE,
    CONSTRAINT bundle_load_range_valid CHECK (lower_bound >= 0 AND lower_bound < upper_bound AND upper_bound <= 4294967295),
    CONSTRAINT bundle_load_rates_valid CHECK (cleave.rates_are_valid(msg_rate_in, byte_rate_in, msg_rate_out, byte_rate_out)),
    CONSTRAINT bundle_load_counts_valid CHECK (least(topic_count, producer_count, consumer_count, cache_size_bytes) >= 0)
) WITH (fillfactor = 80);
COMMENT ON COLUMN cleave.bundle_load.broker IS 'Broker that owns the bundle; NULL: no broker owns the bundle until the next lookup.';
COMMENT ON CONSTRAINT bundle_load_range_valid ON cleave.bundle_load IS 'A bundle is a range of 32-bit hashes that is not empty.';
COMMENT ON CONSTRAINT bundle_load_rates_valid ON cleave.bundle_load IS 'Rates of a bundle are finite and not negative.';
COMMENT ON CONSTRAINT bundle_load_counts_valid ON cleave.bundle_load IS 'Counts of a bundle are not negative.';

CREATE TABLE cleave.namespace_load (
    cluster           text             NOT NULL,
    namespace         text             NOT NULL,
    msg_rate_in       double precision NOT NULL,
    byte_rate_in      double precision NOT NULL,
    msg_rate_out      double precision NOT NULL,
    byte_rate_out     double precision NOT NULL,
    topic_count       bigint           NOT NULL,
    bundle_count      bigint           NOT NULL,
    peak_msg_rate     double precision NOT NULL,
    peak_byte_rate    double precision NOT NULL,
    peak_topic_count  bigint           NOT NULL,
    modified_at       timestamptz      NOT NULL,
    row_version       bigint           NOT NULL DEFAULT 1,
    PRIMARY KEY (cluster, namespace),
    CONSTRAINT namespace_load_namespace FOREIGN KEY (cluster, namespace) REFERENCES cleave.namespace_bundles ON DELETE CASCADE,
    CONSTRAINT namespace_load_rates_valid CHECK (cleave.rates_are_valid(msg_rate_in, byte_rate_in, msg_rate_out, byte_rate_out))
);
COMMENT ON TABLE cleave.namespace_load IS
    'Sums over the bundles of a namespace; peak_…: largest value of any bundle by that measure, in and out together.';
COMMENT ON CONSTRAINT namespace_load_rates_valid ON cleave.namespace_load IS 'Rates of a namespace are finite and not negative.';

CREATE TABLE cleave.broker_load (
    cluster              text             NOT NULL,
    broker               text             NOT NULL,
    cpu_usage            double precision NOT NULL,
    cpu_limit            double precision NOT NULL,
    memory_usage         double precision NOT NULL,
    memory_limit         double precision NOT NULL,
    direct_memory_usage  double precision NOT NULL,
    direct_memory_limit  double precision NOT NULL,
    bandwidth_in_usage   double precision NOT NULL,
    bandwidth_in_limit   double precision NOT NULL,
    bandwidth_out_usage  double precision NOT NULL,
    bandwidth_out_limit  double precision NOT NULL,
    msg_rate_in          double precision NOT NULL,
    byte_rate_in         double precision NOT NULL,
    msg_rate_out         double precision NOT NULL,
    byte_rate_out        double precision NOT NULL,
    topic_count          bigint           NOT NULL,
    bundle_count         bigint           NOT NULL,
    producer_count       bigint           NOT NULL,
    consumer_count       bigint           NOT NULL,
    report               text             NOT NULL,
    version              text             NOT NULL,
    observed_at          timestamptz      NOT NULL,
    row_version          bigint           NOT NULL DEFAULT 1,
    PRIMARY KEY (cluster, broker),
    CONSTRAINT broker_load_rates_valid CHECK (cleave.rates_are_valid(msg_rate_in, byte_rate_in, msg_rate_out, byte_rate_out)),
    CONSTRAINT broker_load_report_known CHECK (report IN ('load-report', 'metrics'))
);
COMMENT ON TABLE cleave.broker_load IS
    'Usage and limit as a broker reports them: CPU in percent of a core, memory in MiB, bandwidth in kbit/s; limit <= 0: unknown.';
COMMENT ON CONSTRAINT broker_load_rates_valid ON cleave.broker_load IS 'Rates of a broker are finite and not negative.';
COMMENT ON CONSTRAINT broker_load_report_known ON cleave.broker_load IS
    'The source of a broker''s figures is load-report or metrics.';

-- One row per aggregation run; window_end is the watermark.
CREATE TABLE cleave.bundle_load_run (
    run_id      text        PRIMARY KEY,
    window_end  timestamptz NOT NULL,
    engine      text        NOT NULL,
    topics      bigint      NOT NULL,
    written     bigint      NOT NULL,
    outrun      bigint      NOT NULL,
    quarantined text[]      NOT NULL DEFAULT '{}',
    applied_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX bundle_load_run_watermark ON cleave.bundle_load_run (window_end DESC);

-- Distribution of a cluster's load over its brokers for each run, as means and population standard deviations.
CREATE TABLE cleave.cluster_load (
    cluster          text             NOT NULL,
    window_end       timestamptz      NOT NULL,
    run_id           text             NOT NULL REFERENCES cleave.bundle_load_run ON DELETE CASCADE,
    broker_count     bigint           NOT NULL,
    bundle_count     bigint           NOT NULL,
    topic_count      bigint           NOT NULL,
    usage_mean       double precision NOT NULL,
    usage_stddev     double precision NOT NULL,
    msg_rate_mean    double precision NOT NULL,
    msg_rate_stddev  double precision NOT NULL,
    byte_rate_mean   double precision NOT NULL,
    byte_rate_stddev double precision NOT NULL,
    PRIMARY KEY (cluster, window_end)
);
COMMENT ON TABLE cleave.cluster_load IS 'Usage: the maximum of CPU, direct memory and bandwidth, each as a fraction of its limit.';

-- State that one cycle passes to the next (hit counts, averages, recently unloaded bundles): one canonical document per cluster.
CREATE TABLE cleave.bundle_state (
    cluster     text        PRIMARY KEY,
    state       text        NOT NULL,
    cycle_id    bigint,
    row_version bigint      NOT NULL DEFAULT 1,
    updated_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT bundle_state_is_object CHECK (jsonb_typeof(state::jsonb) = 'object')
);
COMMENT ON CONSTRAINT bundle_state_is_object ON cleave.bundle_state IS 'The state of a balancer is a JSON object.';

CREATE TABLE cleave.bundle_decision (
    cycle_id     bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    cluster      text        NOT NULL,
    request_key  text        NOT NULL,
    decided_at   timestamptz NOT NULL,
    decided_by   text        NOT NULL,
    code_version text        NOT NULL,
    inputs       text,
    outcome      text,
    refusals     jsonb       NOT NULL DEFAULT '[]',
    recorded_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT bundle_decision_request_once UNIQUE (request_key),
    CONSTRAINT bundle_decision_inputs_are_json CHECK (jsonb_typeof(inputs::jsonb) = 'object'),
    CONSTRAINT bundle_decision_outcome_is_json CHECK (jsonb_typeof(outcome::jsonb) = 'object'),
    CONSTRAINT bundle_decision_refusals_are_list CHECK (jsonb_typeof(refusals) = 'array')
);
CREATE INDEX bundle_decision_of_cluster ON cleave.bundle_decision (cluster, cycle_id DESC);
COMMENT ON COLUMN cleave.bundle_decision.inputs IS 'All inputs of the cycle, for replay; NULL: deleted after some days.';
COMMENT ON COLUMN cleave.bundle_decision.outcome IS 'The whole outcome of the cycle, for replay; NULL: deleted after some days.';
COMMENT ON CONSTRAINT bundle_decision_request_once ON cleave.bundle_decision IS 'A repeated request gets the cycle of the first request.';
COMMENT ON CONSTRAINT bundle_decision_inputs_are_json ON cleave.bundle_decision IS 'Inputs of a cycle are a JSON object in canonical text.';
COMMENT ON CONSTRAINT bundle_decision_outcome_is_json ON cleave.bundle_decision IS
    'The outcome of a cycle is a JSON object in canonical text.';
COMMENT ON CONSTRAINT bundle_decision_refusals_are_list ON cleave.bundle_decision IS 'Refusals of a cycle are a JSON list.';

CREATE FUNCTION cleave.bundle_decision_before_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.inputs IS NULL AND NEW.outcome IS NULL AND NEW.refusals = '[]'
       AND (NEW.cycle_id, NEW.cluster, NEW.request_key, NEW.decided_at, NEW.decided_by, NEW.code_version, NEW.recorded_at)
           IS NOT DISTINCT FROM
           (OLD.cycle_id, OLD.cluster, OLD.request_key, OLD.decided_at, OLD.decided_by, OLD.code_version, OLD.recorded_at) THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'Rows of bundle_decision are history: inputs, outcome and refusals may be deleted, all three at once; the other columns never change.'
        USING ERRCODE = 'restrict_violation', CONSTRAINT = 'bundle_decision_is_history';
END $$;
CREATE TRIGGER bundle_decision_is_history BEFORE UPDATE ON cleave.bundle_decision
    FOR EACH ROW EXECUTE FUNCTION cleave.bundle_decision_before_update();

CREATE TABLE cleave.bundle_proposal (
    proposal_id   bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    cycle_id      bigint      NOT NULL REFERENCES cleave.bundle_decision ON DELETE CASCADE,
    ordinal       integer     NOT NULL,
    cluster       text        NOT NULL,
    namespace     text        NOT NULL,
    lower_bound   bigint      NOT NULL,
    upper_bound   bigint      NOT NULL,
    kind          text        NOT NULL,
    broker        text,
    destination   text,
    cut_points    bigint[]    NOT NULL DEFAULT '{}',
    reason        text        NOT NULL,
    detail        jsonb       NOT NULL DEFAULT '{}',
    state         text        NOT NULL DEFAULT 'proposed',
    actor         text        NOT NULL,
    outcome       text,
    claimed_by    text,
    claimed_until timestamptz,
    attempts      integer     NOT NULL DEFAULT 0,
    proposed_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    applied_at    timestamptz,
    row_version   bigint      NOT NULL DEFAULT 1,
    changed_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- An approved proposal is applied within an hour of its approval or not at all. Each attempt updates changed_at, so the time of
    -- the approval has its own column.
    approved_at   timestamptz,
    CONSTRAINT bundle_proposal_place_once UNIQUE (cycle_id, ordinal),
    CONSTRAINT bundle_proposal_kind_known CHECK (kind IN ('split', 'unload', 'merge')),
    CONSTRAINT bundle_proposal_state_known CHECK (state IN ('proposed', 'approved', 'applied', 'verified', 'failed', 'refused')),
    CONSTRAINT bundle_proposal_range_valid CHECK (lower_bound >= 0 AND lower_bound < upper_bound AND upper_bound <= 4294967295),
    CONSTRAINT bundle_proposal_cuts_inside CHECK (
        (kind = 'unload') = (cardinality(cut_points) = 0) AND lower_bound < ALL (cut_points) AND upper_bound > ALL (cut_points)),
    CONSTRAINT bundle_proposal_end_has_outcome CHECK (state NOT IN ('failed', 'refused') OR outcome IS NOT NULL)
);
CREATE UNIQUE INDEX bundle_proposal_one_live ON cleave.bundle_proposal (cluster, namespace, lower_bound)
    WHERE state IN ('approved', 'applied');
CREATE INDEX bundle_proposal_open ON cleave.bundle_proposal (cluster, state, proposal_id)
    WHERE state IN ('proposed', 'approved', 'applied');
COMMENT ON COLUMN cleave.bundle_proposal.cut_points IS 'Boundaries that a split adds, or that a merge removes.';
COMMENT ON COLUMN cleave.bundle_proposal.approved_at IS 'Time at which a person, or the mode automatic, approved the proposal; NULL: not approved.';
COMMENT ON CONSTRAINT bundle_proposal_place_once ON cleave.bundle_proposal IS 'The ordinals of the proposals of a cycle differ.';
COMMENT ON CONSTRAINT bundle_proposal_kind_known ON cleave.bundle_proposal IS 'The kind of a proposal is split, unload or merge.';
COMMENT ON CONSTRAINT bundle_proposal_state_known ON cleave.bundle_proposal IS
    'A proposal is proposed, approved, applied, verified, failed or refused.';
COMMENT ON CONSTRAINT bundle_proposal_range_valid ON cleave.bundle_proposal IS
    'A proposal is about a range of 32-bit hashes that is not empty.';
COMMENT ON CONSTRAINT bundle_proposal_cuts_inside ON cleave.bundle_proposal IS
    'A split or merge has cut points strictly inside its range; an unload has none.';
COMMENT ON CONSTRAINT bundle_proposal_end_has_outcome ON cleave.bundle_proposal IS 'A failed or refused proposal has an outcome, which is the reason.';
COMMENT ON INDEX cleave.bundle_proposal_one_live IS 'A bundle has one approved proposal at a time; wait until that proposal has ended.';

-- The state of a proposal only moves forward, and a proposal is approved only if its namespace has been enabled.
CREATE FUNCTION cleave.bundle_proposal_before_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.state <> OLD.state AND (OLD.state, NEW.state) NOT IN (
        ('proposed', 'approved'), ('proposed', 'refused'), ('approved', 'applied'), ('approved', 'failed'),
        ('approved', 'refused'), ('applied', 'verified'), ('applied', 'failed')) THEN
        RAISE EXCEPTION 'Proposal % is % and cannot become %.', OLD.proposal_id, OLD.state, NEW.state
            USING ERRCODE = 'check_violation', CONSTRAINT = 'bundle_proposal_goes_forward';
    ELSIF NEW.state <> OLD.state AND NEW.state = 'approved' AND NOT EXISTS (
        SELECT FROM cleave.namespace_bundles n
         WHERE n.cluster = NEW.cluster AND n.namespace = NEW.namespace AND n.mode <> 'dry-run') THEN
        RAISE EXCEPTION 'Namespace % of cluster % is in dry run; enable the namespace before proposal % is %.',
            NEW.namespace, NEW.cluster, NEW.proposal_id, NEW.state
            USING ERRCODE = 'check_violation', CONSTRAINT = 'bundle_proposal_needs_consent';
    ELSIF (OLD.cycle_id, OLD.ordinal, OLD.cluster, OLD.namespace, OLD.lower_bound, OLD.upper_bound, OLD.kind, OLD.broker,
           OLD.destination, OLD.cut_points, OLD.reason, OLD.detail) IS DISTINCT FROM
          (NEW.cycle_id, NEW.ordinal, NEW.cluster, NEW.namespace, NEW.lower_bound, NEW.upper_bound, NEW.kind, NEW.broker,
           NEW.destination, NEW.cut_points, NEW.reason, NEW.detail) THEN
        RAISE EXCEPTION 'The action of proposal % never changes; make another proposal for another action.', OLD.proposal_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'bundle_proposal_fixed_for_life';
    END IF;
    NEW.row_version := OLD.row_version + 1;
    NEW.changed_at := clock_timestamp();
    IF NEW.state = 'applied' AND OLD.state <> 'applied' THEN
        NEW.applied_at := NEW.changed_at;
    ELSIF NEW.state = 'approved' AND OLD.state <> 'approved' THEN
        NEW.approved_at := NEW.changed_at;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER bundle_proposal_before_update BEFORE UPDATE ON cleave.bundle_proposal
    FOR EACH ROW EXECUTE FUNCTION cleave.bundle_proposal_before_update();
