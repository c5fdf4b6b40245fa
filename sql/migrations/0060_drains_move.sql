-- How much a subscription has still to read of a sealed segment, as a worker counts it now and then, and since when that number has
-- stood still: a drain that is slow is not one that does not move.

CREATE TABLE cleave.drain_backlog (
    topic_id     bigint      NOT NULL,
    segment_id   bigint      NOT NULL,
    messages     bigint      NOT NULL,
    counted_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    moved_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    subscription text        NOT NULL,
    PRIMARY KEY (topic_id, subscription, segment_id),
    CONSTRAINT drain_backlog_subscription FOREIGN KEY (topic_id, subscription) REFERENCES cleave.subscription ON DELETE CASCADE,
    CONSTRAINT drain_backlog_segment FOREIGN KEY (topic_id, segment_id) REFERENCES cleave.segment,
    CONSTRAINT drain_backlog_counts CHECK (messages >= 0)
) WITH (fillfactor = 70);
COMMENT ON TABLE cleave.drain_backlog IS
    'Messages of sealed segments that a subscription has not acknowledged, counted once a minute where it takes longer than a moment.';
COMMENT ON COLUMN cleave.drain_backlog.moved_at IS 'When the number was first counted as it is.';
COMMENT ON CONSTRAINT drain_backlog_subscription ON cleave.drain_backlog IS 'A backlog is of a subscription that exists.';
COMMENT ON CONSTRAINT drain_backlog_segment ON cleave.drain_backlog IS 'A backlog is of a segment that exists; read the layout again.';
COMMENT ON CONSTRAINT drain_backlog_counts ON cleave.drain_backlog IS 'Nobody has less than nothing left to read.';
GRANT SELECT, INSERT, UPDATE, DELETE ON cleave.drain_backlog TO cleave_controller;
