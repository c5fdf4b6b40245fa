-- Deletion of logs, and logs that this journal must not delete.

-- The queue of deletions. Every deletion of a backing topic passes through this table.
CREATE TABLE cleave.deletion_entry (
    deletion_entry_id    bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    data_plane      text        NOT NULL,
    backing_topic   text        NOT NULL,
    topic_id        bigint      NOT NULL REFERENCES cleave.topic,
    segment_id      bigint,
    operation_id    bigint,
    reason          text        NOT NULL,
    absences        integer     NOT NULL DEFAULT 0,
    absent_since    timestamptz,
    attempts        integer     NOT NULL DEFAULT 0,
    not_before      timestamptz NOT NULL DEFAULT '-infinity',
    last_error      text,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    closed_at       timestamptz,
    discards_unread boolean     NOT NULL DEFAULT false,
    drained_for     text[]      NOT NULL DEFAULT '{}',
    kept_because    text,
    CONSTRAINT deletion_entry_kept_is_closed CHECK (kept_because IS NULL OR closed_at IS NOT NULL)
);
CREATE UNIQUE INDEX deletion_entry_open_once ON cleave.deletion_entry (data_plane, backing_topic) WHERE closed_at IS NULL;
CREATE INDEX deletion_entry_of_topic ON cleave.deletion_entry (topic_id) WHERE closed_at IS NULL;
CREATE INDEX deletion_entry_due ON cleave.deletion_entry (not_before) WHERE closed_at IS NULL;
COMMENT ON COLUMN cleave.deletion_entry.discards_unread IS 'A person requested the deletion of the topic with everything in it.';
COMMENT ON COLUMN cleave.deletion_entry.drained_for IS
    'Subscriptions that had drained the segment when it was pruned; still valid if a broker has lost acknowledgements since.';
COMMENT ON COLUMN cleave.deletion_entry.kept_because IS 'Reason for which the log was kept; NULL: the log is deleted, or will be.';
COMMENT ON CONSTRAINT deletion_entry_kept_is_closed ON cleave.deletion_entry IS 'A deletion entry whose log is kept is closed.';
COMMENT ON INDEX cleave.deletion_entry_open_once IS 'A log has at most one open deletion entry.';

CREATE TABLE cleave.unmanaged_log (
    data_plane    text NOT NULL,
    backing_topic text NOT NULL,
    topic_id      bigint NOT NULL REFERENCES cleave.topic,
    segment_id    bigint,
    reason        text NOT NULL,
    token         text,
    epoch         bigint,
    unread        bigint,
    found_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (data_plane, backing_topic)
);
CREATE INDEX unmanaged_log_of_topic ON cleave.unmanaged_log (topic_id);
COMMENT ON TABLE cleave.unmanaged_log IS 'One row per log that has the name of a segment and that this journal must not delete.';
COMMENT ON COLUMN cleave.unmanaged_log.segment_id IS 'Segment id in the name of the log; NULL: the name holds none.';
COMMENT ON COLUMN cleave.unmanaged_log.reason IS 'Reason for which the log is kept.';
COMMENT ON COLUMN cleave.unmanaged_log.token IS 'Token stored with the log by the operation that created it; NULL: none.';
COMMENT ON COLUMN cleave.unmanaged_log.epoch IS 'Layout epoch stored with the log; NULL: none.';
COMMENT ON COLUMN cleave.unmanaged_log.unread IS 'Largest number of unread messages of any subscription; NULL: not known.';
COMMENT ON COLUMN cleave.unmanaged_log.found_at IS 'Time at which the log was first found.';
COMMENT ON COLUMN cleave.unmanaged_log.seen_at IS 'Time at which the log was last found.';
