-- Where in a segment's range its load lies.

CREATE TABLE cleave.segment_sketch (
    topic_id    bigint           NOT NULL,
    segment_id  bigint           NOT NULL,
    bins        real[]           NOT NULL,
    messages    double precision NOT NULL,
    sampled_at  timestamptz      NOT NULL DEFAULT clock_timestamp(),
    fresh_until timestamptz      NOT NULL,
    PRIMARY KEY (topic_id, segment_id),
    CONSTRAINT segment_sketch_bins CHECK (cardinality(bins) BETWEEN 1 AND 1024),
    CONSTRAINT segment_sketch_counts CHECK (messages > 0)
) WITH (fillfactor = 70);
COMMENT ON TABLE cleave.segment_sketch IS 'How many messages lie in each part of a segment''s range, newer ones counting more.';
COMMENT ON COLUMN cleave.segment_sketch.bins IS
    'Messages in bins of equal width, the first bin at the first hash; a hash a bin where the segment has no more than 1024.';
COMMENT ON COLUMN cleave.segment_sketch.messages IS 'The sum of the bins.';
COMMENT ON COLUMN cleave.segment_sketch.fresh_until IS 'From then on it plays no part in decisions.';
COMMENT ON CONSTRAINT segment_sketch_bins ON cleave.segment_sketch IS 'A sketch has 1 to 1024 bins.';
COMMENT ON CONSTRAINT segment_sketch_counts ON cleave.segment_sketch IS 'A sketch counts something.';
GRANT SELECT, INSERT, UPDATE, DELETE ON cleave.segment_sketch TO cleave_controller;

-- Rounded to thousandths: what fades for ever would leave the range of its type.
CREATE FUNCTION cleave.add_sketch(older real[], weight double precision, newer real[]) RETURNS real[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT array_agg((round((coalesce(o, 0) * weight + coalesce(n, 0)) * 1000) / 1000)::real ORDER BY i)
      FROM unnest(older, newer) WITH ORDINALITY AS bin (o, n, i)
$$;
COMMENT ON FUNCTION cleave.add_sketch(real[], double precision, real[]) IS
    'The sketch of both, in which a message of the older one counts so much.';
