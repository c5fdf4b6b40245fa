-- Load of segments: the rates, their history, the memory of the profile `adaptive`, and key histograms of producers.
--
-- The history lets people judge decisions and manual actions later.

-- One row per source of samples, with the time of its last samples. That time is the age of every load record of the source, so an
-- aggregation over idle segments writes one row, and a source that reports nothing makes its segments stale instead of cold or hot.
CREATE TABLE cleave.load_source (
    source      text        PRIMARY KEY,
    observed_at timestamptz NOT NULL
);

-- Counts of two readers of one counter are not added, and a reader whose clock was set counts as another reader. So each reader and its
-- clock are recorded.
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
COMMENT ON TABLE cleave.load_reader IS 'One row per load collector, or broker that reports its own counters; a row is kept for a day.';
COMMENT ON COLUMN cleave.load_reader.reader IS 'Name of the reader in its samples; changes when the clock of the reader is set.';
COMMENT ON COLUMN cleave.load_reader.data_planes IS 'Data planes whose logs the collector reads; empty for a broker.';
COMMENT ON COLUMN cleave.load_reader.clock_ahead_ms IS 'Milliseconds by which the reader''s clock was ahead of the database''s clock at seen_at.';
COMMENT ON COLUMN cleave.load_reader.reader_ahead_ms IS 'Milliseconds that the reader subtracts from the times of its samples, since it began.';

-- One row per aggregation run; window_end is the watermark.
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

-- Return true if the rates, per second, are finite and not negative. All tables with load have these columns and use this rule.
CREATE FUNCTION cleave.rates_are_valid(msg_rate_in double precision, byte_rate_in double precision,
                                       msg_rate_out double precision, byte_rate_out double precision) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT least(msg_rate_in, byte_rate_in, msg_rate_out, byte_rate_out) >= 0
       AND greatest(msg_rate_in, byte_rate_in, msg_rate_out, byte_rate_out) < 'infinity'::double precision;
$$;

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
    CONSTRAINT segment_load_rates_valid CHECK (cleave.rates_are_valid(msg_rate_in, byte_rate_in, msg_rate_out, byte_rate_out))
);
COMMENT ON CONSTRAINT segment_load_rates_valid ON cleave.segment_load IS 'Rates are finite and not negative.';

-- Only material changes are written, so the table grows with the changes of load and not with the number of segments. Maintenance
-- deletes rows that are older than the decision log keeps its rows.
CREATE TABLE cleave.load_history (
    LIKE cleave.segment_load INCLUDING DEFAULTS, recorded_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX load_history_of_segment ON cleave.load_history (topic_id, segment_id, recorded_at);
CREATE INDEX load_history_by_age ON cleave.load_history USING brin (recorded_at);
COMMENT ON TABLE cleave.load_history IS 'Every load record as it was written at recorded_at, by the clock of the database.';

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
COMMENT ON TABLE cleave.load_memory IS 'Recent rates of each segment whose topic has a policy profile that uses past load.';
COMMENT ON COLUMN cleave.load_memory.last_tick IS 'Number of the last tick since the Unix epoch: its time in seconds / tick_seconds.';
COMMENT ON COLUMN cleave.load_memory.rates IS 'Four rates per tick in the order of the metrics, oldest tick first; at most 45 ticks.';
COMMENT ON COLUMN cleave.load_memory.strikes IS 'Splits in a row that left over 80 % of the load in this segment and its ancestors.';
COMMENT ON CONSTRAINT load_memory_ticks_whole ON cleave.load_memory IS 'A memory has 1 to 45 ticks of four rates each.';
COMMENT ON CONSTRAINT load_memory_tick_positive ON cleave.load_memory IS 'A tick lasts more than 0 seconds.';

CREATE TABLE cleave.segment_producers (
    topic_id   bigint  NOT NULL,
    segment_id bigint  NOT NULL,
    connected  integer,
    counting   integer,
    counted_at timestamptz,
    PRIMARY KEY (topic_id, segment_id),
    CONSTRAINT segment_producers_some CHECK (coalesce(least(connected, counting), -1) >= 0)
) WITH (fillfactor = 70);
COMMENT ON TABLE cleave.segment_producers IS 'Number of producers of each segment, as far as brokers and producers report them.';
COMMENT ON COLUMN cleave.segment_producers.connected IS 'Producers that the broker reported when the number last changed; NULL: no broker reports producers.';
COMMENT ON COLUMN cleave.segment_producers.counting IS 'Producers that sent to the segment and reported counts of their keys at counted_at; NULL: none.';
COMMENT ON CONSTRAINT segment_producers_some ON cleave.segment_producers IS
    'A row has at least one number of producers, and no number is negative.';

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
COMMENT ON TABLE cleave.segment_sketch IS 'Key histogram of a segment: messages by part of its hash range, in which recent messages count more.';
COMMENT ON COLUMN cleave.segment_sketch.bins IS
    'Messages in bins of equal width, in the order of the hashes; one hash per bin if the segment has at most 1024 hashes.';
COMMENT ON COLUMN cleave.segment_sketch.messages IS 'The sum of the bins.';
COMMENT ON COLUMN cleave.segment_sketch.fresh_until IS 'Time from which decisions ignore the histogram.';
COMMENT ON CONSTRAINT segment_sketch_bins ON cleave.segment_sketch IS 'A key histogram has 1 to 1024 bins.';
COMMENT ON CONSTRAINT segment_sketch_counts ON cleave.segment_sketch IS 'The messages of a key histogram are more than 0.';

-- Bins are rounded to thousandths, because a count that is reduced again and again would leave the range of its type.
CREATE FUNCTION cleave.add_sketch(older real[], weight double precision, newer real[]) RETURNS real[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT array_agg((round((coalesce(o, 0) * weight + coalesce(n, 0)) * 1000) / 1000)::real ORDER BY i)
      FROM unnest(older, newer) WITH ORDINALITY AS bin (o, n, i)
$$;
COMMENT ON FUNCTION cleave.add_sketch(real[], double precision, real[]) IS
    'Sum of two key histograms; a message of the older histogram counts `weight`.';

-- Adds counted messages to the key histogram of an ACTIVE segment. The weight of a message halves every half_life seconds.
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
