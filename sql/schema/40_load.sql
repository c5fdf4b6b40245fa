-- Load of segments: the rates, their history, the memory of the profile `adaptive`, and key histograms of producers.
--
-- Without a history neither a decision nor an action by hand can be judged later.

-- One row a source of samples: its freshness is that of every record it reports, so a tick over idle
-- segments writes one row, and silence is neither cold nor stale-hot.
CREATE TABLE cleave.load_source (
    source      text        PRIMARY KEY,
    observed_at timestamptz NOT NULL
);

-- Two readers of one counter are not added up, and a clock that is set makes another reader. So it is known who reads, and by which clock.
CREATE TABLE cleave.load_reader (
    name             text             PRIMARY KEY,
    reader           text             NOT NULL,
    topic_prefix     text             NOT NULL DEFAULT '',
    data_planes      text[]           NOT NULL DEFAULT '{}',
    interval_seconds double precision NOT NULL DEFAULT 60,
    clock_ahead_ms   bigint           NOT NULL,
    reader_ahead_ms  bigint           NOT NULL,
    seen_at          timestamptz      NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE cleave.load_reader IS 'A collector, or a broker that hands in its counters itself; a row is kept for a day.';
COMMENT ON COLUMN cleave.load_reader.reader IS 'The name in its samples; another one since its clock was set.';
COMMENT ON COLUMN cleave.load_reader.data_planes IS 'The planes whose brokers it reads; empty for a broker.';
COMMENT ON COLUMN cleave.load_reader.clock_ahead_ms IS 'Its clock less the database''s clock, at seen_at.';
COMMENT ON COLUMN cleave.load_reader.reader_ahead_ms IS 'What is taken off its instants, from the beginning of the reader on.';

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
CREATE INDEX load_run_by_applied ON cleave.load_run (applied_at);

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

-- Only material changes are written, so this grows with what happens, not with the number of segments. Maintenance deletes rows
-- older than the decision log's days.
CREATE TABLE cleave.load_history (
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
    recorded_at   timestamptz      NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX load_history_of_segment ON cleave.load_history (topic_id, segment_id, recorded_at);
CREATE INDEX load_history_by_age ON cleave.load_history USING brin (recorded_at);
COMMENT ON TABLE cleave.load_history IS 'Every load record as it was written; recorded_at is when, by the database''s clock.';

CREATE TABLE cleave.load_memory (
    topic_id     bigint             NOT NULL,
    segment_id   bigint             NOT NULL,
    tick_seconds double precision   NOT NULL,
    last_tick    bigint             NOT NULL,
    rates        double precision[] NOT NULL,
    strikes      integer            NOT NULL DEFAULT 0,
    PRIMARY KEY (topic_id, segment_id),
    CONSTRAINT load_memory_ticks_whole CHECK (cardinality(rates) BETWEEN 4 AND 180 AND cardinality(rates) % 4 = 0),
    CONSTRAINT load_memory_tick_positive CHECK (tick_seconds > 0)
) WITH (fillfactor = 70);
COMMENT ON TABLE cleave.load_memory IS 'The last loads of each segment whose topic is decided on by a profile that looks back.';
COMMENT ON COLUMN cleave.load_memory.last_tick IS 'Number of the last tick since the Unix epoch: its time in seconds / tick_seconds.';
COMMENT ON COLUMN cleave.load_memory.rates IS 'Four a tick in the order of the metrics, oldest tick first; at most 45 ticks.';
COMMENT ON COLUMN cleave.load_memory.strikes IS 'Splits in a row that left over 80 % of the load in this segment and its ancestors.';
COMMENT ON CONSTRAINT load_memory_ticks_whole ON cleave.load_memory IS 'A memory has 1 to 45 ticks of four rates each.';
COMMENT ON CONSTRAINT load_memory_tick_positive ON cleave.load_memory IS 'A tick lasts longer than no time.';

CREATE TABLE cleave.segment_producers (
    topic_id   bigint  NOT NULL,
    segment_id bigint  NOT NULL,
    connected  integer,
    counting   integer,
    counted_at timestamptz,
    PRIMARY KEY (topic_id, segment_id),
    CONSTRAINT segment_producers_some CHECK (coalesce(least(connected, counting), -1) >= 0)
) WITH (fillfactor = 70);
COMMENT ON TABLE cleave.segment_producers IS 'How many producers each segment has, as far as anybody can count them.';
COMMENT ON COLUMN cleave.segment_producers.connected IS 'As its broker said when that last changed; null where no broker tells.';
COMMENT ON COLUMN cleave.segment_producers.counting IS 'Producers that sent to it and hand in counts of their keys, at counted_at.';
COMMENT ON CONSTRAINT segment_producers_some ON cleave.segment_producers IS
    'There are no fewer producers than none, and a row says how many.';

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

-- Rounded to thousandths: what fades for ever would leave the range of its type.
CREATE FUNCTION cleave.add_sketch(older real[], weight double precision, newer real[]) RETURNS real[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT array_agg((round((coalesce(o, 0) * weight + coalesce(n, 0)) * 1000) / 1000)::real ORDER BY i)
      FROM unnest(older, newer) WITH ORDINALITY AS bin (o, n, i)
$$;
COMMENT ON FUNCTION cleave.add_sketch(real[], double precision, real[]) IS
    'The sketch of both, in which a message of the older one counts so much.';

-- The sketch of a segment with these messages added; older ones count half as much after half_life seconds.
CREATE FUNCTION cleave.keep_sketch(of_topic bigint, of_segment bigint, counted real[], fresh_for double precision,
                                   half_life double precision)
RETURNS void LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO cleave.segment_sketch AS k (topic_id, segment_id, bins, messages, fresh_until)
    SELECT s.topic_id, s.segment_id, counted, (SELECT sum(bin::float8) FROM unnest(counted) AS bin),
           clock_timestamp() + make_interval(secs => fresh_for)
      FROM cleave.segment s WHERE s.topic_id = of_topic AND s.segment_id = of_segment AND s.state = 'ACTIVE'
    ON CONFLICT (topic_id, segment_id) DO UPDATE
       SET (bins, messages, sampled_at, fresh_until) = (
           SELECT added.bins, (SELECT sum(bin::float8) FROM unnest(added.bins) AS bin), excluded.sampled_at, excluded.fresh_until
             FROM (SELECT cleave.add_sketch(k.bins, power(0.5, least(greatest(extract(epoch FROM excluded.sampled_at - k.sampled_at), 0)
                                                                     / half_life, 60)), excluded.bins) AS bins) added)
$$;
COMMENT ON FUNCTION cleave.keep_sketch(bigint, bigint, real[], double precision, double precision) IS
    'Adds what was counted to the sketch of an ACTIVE segment.';
