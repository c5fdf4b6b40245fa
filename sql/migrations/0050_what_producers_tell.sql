-- How many producers a segment has: what sealing it costs them counts as what it costs its consumers.

CREATE TABLE cleave.segment_producers (
    topic_id   bigint      NOT NULL,
    segment_id bigint      NOT NULL,
    producers  integer     NOT NULL,
    counted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic_id, segment_id),
    CONSTRAINT segment_producers_counted CHECK (producers >= 0)
) WITH (fillfactor = 70);
COMMENT ON TABLE cleave.segment_producers IS 'How many producers were connected to each segment when that last changed, where anybody can count them.';
COMMENT ON CONSTRAINT segment_producers_counted ON cleave.segment_producers IS 'There are no fewer producers than none.';
GRANT SELECT, INSERT, UPDATE, DELETE ON cleave.segment_producers TO cleave_controller;
