-- Policies at three levels, subscriptions and consumers, load records and their loader's inbox.

-- The defaults, written by `cleave migrate` from the domain's own dataclass, so that they are declared once.
CREATE TABLE cleave.policy_default (
    knob  text  PRIMARY KEY,
    value jsonb NOT NULL
);

CREATE TABLE cleave.cluster_policy (
    singleton   boolean     PRIMARY KEY DEFAULT true,
    policy      jsonb       NOT NULL DEFAULT '{}',
    row_version bigint      NOT NULL DEFAULT 1,
    actor       text        NOT NULL DEFAULT 'migrate',
    updated_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT cluster_policy_one_row CHECK (singleton),
    CONSTRAINT cluster_policy_is_object CHECK (jsonb_typeof(policy) = 'object')
);
INSERT INTO cleave.cluster_policy DEFAULT VALUES;
COMMENT ON CONSTRAINT cluster_policy_one_row ON cleave.cluster_policy IS 'There is one cluster policy.';
COMMENT ON CONSTRAINT cluster_policy_is_object ON cleave.cluster_policy IS 'A stored policy is a JSON object of knobs.';

CREATE TABLE cleave.namespace_policy (
    namespace   text        PRIMARY KEY,
    policy      jsonb       NOT NULL,
    row_version bigint      NOT NULL DEFAULT 1,
    actor       text        NOT NULL,
    updated_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT namespace_policy_form CHECK (namespace ~ '^[^/[:space:]]+/[^/[:space:]]+$'),
    CONSTRAINT namespace_policy_is_object CHECK (jsonb_typeof(policy) = 'object')
);
COMMENT ON CONSTRAINT namespace_policy_form ON cleave.namespace_policy IS 'A namespace is tenant/namespace.';
COMMENT ON CONSTRAINT namespace_policy_is_object ON cleave.namespace_policy IS 'A stored policy is a JSON object of knobs.';

CREATE TABLE cleave.subscription (
    topic_id      bigint      NOT NULL REFERENCES cleave.topic,
    name          text        NOT NULL,
    kind          text        NOT NULL DEFAULT 'STREAM',
    state         text        NOT NULL DEFAULT 'live',
    created_epoch bigint      NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic_id, name),
    CONSTRAINT subscription_kind_known CHECK (kind IN ('STREAM', 'QUEUE', 'CHECKPOINT')),
    CONSTRAINT subscription_state_known CHECK (state IN ('live', 'deleting')),
    CONSTRAINT subscription_name_form CHECK (name ~ '^[^[:space:]]+$')
);
COMMENT ON CONSTRAINT subscription_kind_known ON cleave.subscription IS 'A subscription is of kind STREAM, QUEUE or CHECKPOINT.';
COMMENT ON CONSTRAINT subscription_state_known ON cleave.subscription IS 'A subscription is live or deleting.';
COMMENT ON CONSTRAINT subscription_name_form ON cleave.subscription IS 'A subscription name is not empty and has no spaces.';

CREATE TABLE cleave.consumer (
    topic_id      bigint      NOT NULL,
    subscription  text        NOT NULL,
    name          text        NOT NULL,
    connected     boolean     NOT NULL DEFAULT true,
    registered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic_id, subscription, name),
    CONSTRAINT consumer_of_subscription FOREIGN KEY (topic_id, subscription) REFERENCES cleave.subscription ON DELETE CASCADE,
    CONSTRAINT consumer_name_form CHECK (name ~ '^[^[:space:]]+$')
);
COMMENT ON CONSTRAINT consumer_of_subscription ON cleave.consumer IS 'A consumer registers with a subscription that exists; create it first.';
COMMENT ON CONSTRAINT consumer_name_form ON cleave.consumer IS 'A consumer name is not empty and has no spaces.';

CREATE TABLE cleave.segment_drain (
    topic_id     bigint      NOT NULL,
    subscription text        NOT NULL,
    segment_id   bigint      NOT NULL,
    drained_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic_id, subscription, segment_id),
    CONSTRAINT segment_drain_subscription FOREIGN KEY (topic_id, subscription) REFERENCES cleave.subscription ON DELETE CASCADE,
    CONSTRAINT segment_drain_segment FOREIGN KEY (topic_id, segment_id) REFERENCES cleave.segment
);

COMMENT ON CONSTRAINT segment_drain_subscription ON cleave.segment_drain IS 'What is drained is drained for a subscription that exists.';
COMMENT ON CONSTRAINT segment_drain_segment ON cleave.segment_drain IS 'What is drained is a segment that exists; read the layout again.';

CREATE TABLE cleave.bucket_checkpoint (
    topic_id     bigint      NOT NULL,
    subscription text        NOT NULL,
    segment_id   bigint      NOT NULL,
    bucket       integer     NOT NULL,
    position     text        NOT NULL,
    row_version  bigint      NOT NULL DEFAULT 1,
    updated_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic_id, subscription, segment_id, bucket),
    CONSTRAINT bucket_checkpoint_subscription FOREIGN KEY (topic_id, subscription) REFERENCES cleave.subscription ON DELETE CASCADE,
    CONSTRAINT bucket_checkpoint_segment FOREIGN KEY (topic_id, segment_id) REFERENCES cleave.segment
);

COMMENT ON CONSTRAINT bucket_checkpoint_subscription ON cleave.bucket_checkpoint IS 'A checkpoint belongs to a subscription that exists.';
COMMENT ON CONSTRAINT bucket_checkpoint_segment ON cleave.bucket_checkpoint IS 'A checkpoint is of a segment that exists; read the layout again.';

-- One row a source of samples: its freshness is that of every record it reports, so a tick over idle
-- segments writes one row, and silence is neither cold nor stale-hot.
CREATE TABLE cleave.load_source (
    source      text        PRIMARY KEY,
    observed_at timestamptz NOT NULL
);

CREATE TABLE cleave.segment_load (
    topic_id      bigint           NOT NULL,
    segment_id    bigint           NOT NULL,
    msg_rate_in   double precision NOT NULL,
    byte_rate_in  double precision NOT NULL,
    msg_rate_out  double precision NOT NULL,
    byte_rate_out double precision NOT NULL,
    source        text             NOT NULL,
    modified_at   timestamptz      NOT NULL,
    cold_since    timestamptz,
    silent_since  timestamptz,
    row_version   bigint           NOT NULL DEFAULT 1,
    PRIMARY KEY (topic_id, segment_id),
    CONSTRAINT segment_load_segment FOREIGN KEY (topic_id, segment_id) REFERENCES cleave.segment,
    CONSTRAINT segment_load_rates_valid CHECK (
        msg_rate_in >= 0 AND byte_rate_in >= 0 AND msg_rate_out >= 0 AND byte_rate_out >= 0
        AND greatest(msg_rate_in, byte_rate_in, msg_rate_out, byte_rate_out) < 'infinity'::double precision)
);
CREATE INDEX segment_load_by_source ON cleave.segment_load (source);
COMMENT ON CONSTRAINT segment_load_segment ON cleave.segment_load IS 'A load record is of a segment that exists.';
COMMENT ON CONSTRAINT segment_load_rates_valid ON cleave.segment_load IS 'Rates are finite and not negative.';

-- One row an aggregation run; window_end is the watermark.
CREATE TABLE cleave.load_run (
    run_id      text        PRIMARY KEY,
    window_end  timestamptz NOT NULL,
    engine      text        NOT NULL,
    samples     bigint      NOT NULL,
    segments    bigint      NOT NULL,
    written     bigint      NOT NULL,
    outrun      bigint      NOT NULL,
    quarantined text[]      NOT NULL DEFAULT '{}',
    applied_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX load_run_watermark ON cleave.load_run (window_end DESC);

-- The loader's inbox: appended by COPY, keyed by run, emptied by the merge function.
CREATE TABLE staging.load_row (
    run_id           text             NOT NULL,
    topic_id         bigint           NOT NULL,
    segment_id       bigint           NOT NULL,
    msg_rate_in      double precision NOT NULL,
    byte_rate_in     double precision NOT NULL,
    msg_rate_out     double precision NOT NULL,
    byte_rate_out    double precision NOT NULL,
    source           text             NOT NULL,
    modified_at      timestamptz      NOT NULL,
    cold_since       timestamptz,
    silent_since     timestamptz,
    seen_row_version bigint           NOT NULL
);
CREATE INDEX load_row_run ON staging.load_row (run_id);
CREATE TABLE staging.source_row (
    run_id      text        NOT NULL,
    source      text        NOT NULL,
    observed_at timestamptz NOT NULL
);
CREATE INDEX source_row_run ON staging.source_row (run_id);
COMMENT ON COLUMN staging.load_row.seen_row_version IS 'Row version of the load record the row was computed against; 0 where there was none.';
