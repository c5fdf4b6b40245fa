-- The operation journal: operations with their steps, sealed parents and reserved children. An operation is written before any effect.
--
-- The state of an operation is the last step that is known to be complete. controller/domain/operation_steps.py holds the table of
-- transitions.
--
-- A restore or an asynchronous fail-over leaves a database that is older than the logs of its topics. Each operation has a token
-- that the logs it creates carry, so that a log is deleted only by the journal that created it. Each topic remembers the database
-- under which its logs were last compared with the journal. Another database, or a restarted server, compares them again before it
-- acts.

-- An operation changes its state four times. No index contains the state, so that these updates are heap-only (HOT). Indexes use
-- finished_at instead, which is set when the operation is finished (operation_finished_dated).
--
-- A seek that waits for its consumers, or for its data plane, can be aborted while no cursor has moved. abort_reason requests the
-- abort. The runner reads abort_reason in the statement that moves the operation beyond the intent, so that only one of them wins.
CREATE TABLE cleave.operation (
    operation_id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic_id             bigint      NOT NULL REFERENCES cleave.topic,
    kind                 text        NOT NULL,
    state                text        NOT NULL DEFAULT 'intended',
    request_key          text        NOT NULL,
    origin               text        NOT NULL,
    actor                text        NOT NULL,
    reason               text        NOT NULL,
    decision_id          bigint,
    parameters           jsonb       NOT NULL DEFAULT '{}',
    subscription_version bigint,
    epoch                bigint,
    claimed_by           text,
    claim_term           bigint      NOT NULL DEFAULT 0,
    claim_expires_at     timestamptz,
    claimed_at           timestamptz,
    attempts             integer     NOT NULL DEFAULT 0,
    not_before           timestamptz NOT NULL DEFAULT '-infinity',
    last_error           text,
    row_version          bigint      NOT NULL DEFAULT 1,
    intended_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    fenced_at            timestamptz,
    committed_at         timestamptz,
    finished_at          timestamptz,
    deadline             timestamptz NOT NULL,
    abort_reason         text,
    token                uuid        DEFAULT gen_random_uuid(),
    kept_until           timestamptz,
    CONSTRAINT operation_kind_known CHECK (kind IN (
        'create', 'split', 'merge', 'rebucket', 'recut', 'heal', 'prune', 
        'seek', 'adopt', 'attach', 'detach', 'delete', 'subscription_create', 'subscription_delete')),
    CONSTRAINT operation_state_known CHECK (state IN
        ('intended', 'prepared', 'fencing', 'fenced', 'committed', 'done', 'aborting', 'aborted')),
    CONSTRAINT operation_origin_known CHECK (origin IN ('auto', 'manual', 'api', 'reconciler')),
    CONSTRAINT operation_request_once UNIQUE (request_key),
    CONSTRAINT operation_claim_whole CHECK ((claimed_by IS NULL) = (claim_expires_at IS NULL)),
    CONSTRAINT operation_finished_dated CHECK ((state IN ('done', 'aborted')) = (finished_at IS NOT NULL)),
    CONSTRAINT operation_given_up_by_hand CHECK (abort_reason IS NULL OR kind = 'seek'),
    CONSTRAINT operation_kept_split CHECK (kept_until IS NULL OR kind = 'split')
) WITH (fillfactor = 50);
CREATE INDEX operation_of_topic ON cleave.operation (topic_id, operation_id);
CREATE INDEX operation_live ON cleave.operation (not_before, operation_id) WHERE finished_at IS NULL;
CREATE INDEX operation_live_of_topic ON cleave.operation (topic_id) WHERE finished_at IS NULL;
CREATE INDEX operation_kept ON cleave.operation (topic_id, kept_until) WHERE kept_until IS NOT NULL;
-- Every few seconds, the exporter of traces reads the operations that have ended since its last read.
CREATE INDEX operation_by_end ON cleave.operation (finished_at, operation_id) WHERE finished_at IS NOT NULL;
COMMENT ON COLUMN cleave.operation.claimed_at IS
    'Time at which the last claim was made or renewed; in the future if the clock of the server went back. NULL: there was no claim.';
COMMENT ON COLUMN cleave.operation.abort_reason IS 'Requester of an abort and the reason; NULL: no abort was requested.';
COMMENT ON COLUMN cleave.operation.token IS 'Stored with each log that the operation creates.';
COMMENT ON COLUMN cleave.operation.kept_until IS
    'Time until which no policy joins the segments of the split with others; NULL: a policy may join them at once.';
COMMENT ON CONSTRAINT operation_request_once ON cleave.operation IS 'A request key is used once; a repeated request gets the first operation.';
COMMENT ON CONSTRAINT operation_state_known ON cleave.operation IS
    'Unknown state of an operation: a newer version wrote it; upgrade this program.';
COMMENT ON CONSTRAINT operation_origin_known ON cleave.operation IS 'The origin of a request is auto, manual, api or reconciler.';
COMMENT ON CONSTRAINT operation_claim_whole ON cleave.operation IS 'A claim has a holder and an expiry, or neither.';
COMMENT ON CONSTRAINT operation_finished_dated ON cleave.operation IS
    'A done or aborted operation has the time at which it finished; any other operation has none.';
COMMENT ON CONSTRAINT operation_kind_known ON cleave.operation IS
    'Unknown kind of operation: a newer version wrote it; upgrade this program.';
COMMENT ON CONSTRAINT operation_kept_split ON cleave.operation IS 'Only a split keeps its segments from being joined.';
COMMENT ON CONSTRAINT operation_given_up_by_hand ON cleave.operation IS 'Only a seek can be aborted by a request.';

CREATE TABLE cleave.operation_parent (
    operation_id bigint  NOT NULL REFERENCES cleave.operation,
    topic_id     bigint  NOT NULL,
    segment_id   bigint  NOT NULL,
    ordinal      integer NOT NULL,
    live         boolean NOT NULL DEFAULT true,
    PRIMARY KEY (operation_id, segment_id),
    CONSTRAINT operation_parent_segment FOREIGN KEY (topic_id, segment_id) REFERENCES cleave.segment
);
CREATE UNIQUE INDEX operation_parent_one_live ON cleave.operation_parent (topic_id, segment_id) WHERE live;
COMMENT ON CONSTRAINT operation_parent_segment ON cleave.operation_parent IS
    'An operation acts on segments that exist; read the layout again.';
COMMENT ON INDEX cleave.operation_parent_one_live IS
    'A segment takes part in one live operation at a time; wait for that operation, or read inspect.operations.';

-- merge_depth is known when the child is reserved, because its parents and their ancestors never change. The column spares the
-- commit from reading the layout.
CREATE TABLE cleave.operation_child (
    operation_id  bigint    NOT NULL REFERENCES cleave.operation,
    topic_id      bigint    NOT NULL REFERENCES cleave.topic,
    segment_id    bigint    NOT NULL,
    range_start   integer   NOT NULL,
    range_end     integer   NOT NULL,
    ordinal       integer   NOT NULL,
    bucket_splits integer[] NOT NULL DEFAULT '{}',
    backing_topic text      NOT NULL,
    merge_depth   integer,
    PRIMARY KEY (operation_id, segment_id),
    CONSTRAINT operation_child_id_once UNIQUE (topic_id, segment_id),
    CONSTRAINT operation_child_log_once UNIQUE (backing_topic),
    CONSTRAINT operation_child_range_on_ring CHECK (0 <= range_start AND range_start <= range_end AND range_end <= 65535)
);
COMMENT ON CONSTRAINT operation_child_id_once ON cleave.operation_child IS
    'A segment id is reserved once and never used again, not even after an abort.';
COMMENT ON CONSTRAINT operation_child_log_once ON cleave.operation_child IS
    'The name of a log is used once, so that no late deletion removes another log.';
COMMENT ON CONSTRAINT operation_child_range_on_ring ON cleave.operation_child IS
    'A reserved segment owns an inclusive range within 0..65535; the start is not above the end.';

CREATE TABLE cleave.operation_step (
    operation_id bigint      NOT NULL REFERENCES cleave.operation,
    sequence     integer     NOT NULL,
    step         text        NOT NULL,
    runner       text        NOT NULL,
    claim_term   bigint      NOT NULL,
    started_at   timestamptz NOT NULL,
    finished_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    detail       jsonb       NOT NULL DEFAULT '{}',
    PRIMARY KEY (operation_id, sequence)
);
