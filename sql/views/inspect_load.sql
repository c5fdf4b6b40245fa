-- Views of load: the load records that decisions read, with the thresholds in force.

CREATE VIEW inspect.load_now AS
SELECT t.name AS topic, t.topic_id, s.segment_id, inspect.hash_range_text(s.range_start, s.range_end) AS hash_range,
       l.msg_rate_in, l.byte_rate_in, l.msg_rate_out, l.byte_rate_out,
       round(hot.ratio::numeric, 3) AS hottest_ratio, hot.metric AS hottest_metric, hot.ratio > 1 AS is_hot,
       l.msg_rate_in < k.merge_msg_rate_in AND l.byte_rate_in < k.merge_byte_rate_in
           AND l.msg_rate_out < k.merge_msg_rate_out AND l.byte_rate_out < k.merge_byte_rate_out AS is_cold,
       l.cold_since, l.modified_at, seen.observed_at,
       round(extract(epoch FROM clock_timestamp() - seen.observed_at), 1) AS silent_seconds,
       l.topic_id IS NULL
           OR NOT k.strict_pulsar
              AND coalesce(extract(epoch FROM clock_timestamp() - seen.observed_at) > k.load_stale_after_seconds, true) AS is_stale,
       l.source, k.split_msg_rate_in, k.split_byte_rate_in, k.split_msg_rate_out, k.split_byte_rate_out,
       k.merge_msg_rate_in, k.merge_byte_rate_in, k.merge_msg_rate_out, k.merge_byte_rate_out, k.load_stale_after_seconds
  FROM cleave.topic t
  JOIN cleave.threshold_in_force k USING (topic_id)
  JOIN cleave.segment s ON s.topic_id = t.topic_id AND s.state = 'ACTIVE'
  LEFT JOIN cleave.segment_load l ON l.topic_id = s.topic_id AND l.segment_id = s.segment_id
  LEFT JOIN cleave.load_source o ON o.source = l.source
 CROSS JOIN LATERAL (SELECT coalesce(l.silent_since, o.observed_at) AS observed_at) seen
  LEFT JOIN LATERAL (
       SELECT metric, least(rate, 1e200) / greatest(threshold, 1e-100) AS ratio  -- an overflow would make the view fail for all topics
         FROM (VALUES (1, 'msg_rate_in', l.msg_rate_in, k.split_msg_rate_in), (2, 'byte_rate_in', l.byte_rate_in, k.split_byte_rate_in),
                      (3, 'msg_rate_out', l.msg_rate_out, k.split_msg_rate_out), (4, 'byte_rate_out', l.byte_rate_out, k.split_byte_rate_out))
              AS m (ordinal, metric, rate, threshold)
        WHERE threshold > 0 AND rate IS NOT NULL
        ORDER BY ratio DESC, ordinal LIMIT 1) hot ON true;
COMMENT ON VIEW inspect.load_now IS
    'Load of each ACTIVE segment and the thresholds in force. hottest_ratio above 1 is hot; a stale reading is neither hot nor cold. Under strict_pulsar only a segment without a load record is stale.';

CREATE VIEW inspect.key_sketches AS
SELECT l.topic, k.topic_id, k.segment_id, l.hash_range,
       inspect.hash_range_text(hot.first_hash, hot.last_hash) AS hottest, round((hot.messages / k.messages)::numeric, 3) AS share,
       l.hottest_ratio AS load, round(l.hottest_ratio * (hot.messages / k.messages)::numeric, 3) AS load_on_hottest,
       CASE WHEN k.messages < 9e18 THEN round(k.messages)::bigint END AS messages, k.sampled_at,
       round(extract(epoch FROM clock_timestamp() - k.sampled_at), 1) AS age_seconds,
       k.fresh_until > clock_timestamp() AS is_fresh
  FROM inspect.load_now l
  JOIN cleave.segment_sketch k ON k.topic_id = l.topic_id AND k.segment_id = l.segment_id
  JOIN cleave.segment s ON s.topic_id = l.topic_id AND s.segment_id = l.segment_id
 CROSS JOIN LATERAL (SELECT s.range_end - s.range_start + 1 AS width, cardinality(k.bins) AS bins) r
 CROSS JOIN LATERAL (
       SELECT s.range_start + ((i::integer - 1) * r.width + r.bins - 1) / r.bins AS first_hash,
              s.range_start + (i::integer * r.width + r.bins - 1) / r.bins - 1 AS last_hash, bin AS messages
         FROM unnest(k.bins) WITH ORDINALITY AS bins (bin, i) ORDER BY bin DESC, i LIMIT 1) hot;
COMMENT ON VIEW inspect.key_sketches IS
    'Key histogram of each sampled segment: the part of its range that has the most messages (hottest), its share of the messages, and that share of the load (1 is the capacity). A hottest part of one hash cannot be split.';

CREATE VIEW inspect.load_history AS
SELECT t.name AS topic, h.topic_id, h.segment_id, inspect.hash_range_text(s.range_start, s.range_end) AS hash_range, h.recorded_at,
       h.msg_rate_in, h.byte_rate_in, h.msg_rate_out, h.byte_rate_out, h.source, h.modified_at, h.cold_since, h.silent_since
  FROM cleave.load_history h
  JOIN cleave.segment s USING (topic_id, segment_id)
  JOIN cleave.topic t USING (topic_id);
COMMENT ON VIEW inspect.load_history IS
    'One row per material change of a load record, as it was written; kept as long as the decision log.';

CREATE VIEW inspect.load_runs AS
SELECT r.run_id, r.window_end, r.applied_at, r.engine, r.samples, r.segments, r.written, r.outrun, r.quarantined,
       round(extract(epoch FROM clock_timestamp() - r.window_end), 1) AS age_seconds
  FROM cleave.load_run r;
COMMENT ON VIEW inspect.load_runs IS
    'Aggregation runs. The latest window_end is the watermark; the next run writes the rows that are counted as outrun. Kept as long as the decision log.';

CREATE VIEW inspect.load_sources AS
SELECT o.source, o.observed_at, round(extract(epoch FROM clock_timestamp() - o.observed_at), 1) AS silent_seconds,
       coalesce(l.segments, 0) AS segments
  FROM cleave.load_source o
  LEFT JOIN (SELECT l.source, count(*) AS segments FROM cleave.segment_load l JOIN cleave.segment s USING (topic_id, segment_id)
              WHERE s.state = 'ACTIVE' GROUP BY 1) l ON l.source = o.source;
COMMENT ON VIEW inspect.load_sources IS
    'One row per source of samples (a broker), with the time of its last samples. segments: ACTIVE segments whose load record names the source. A source without load records is kept as long as the decision log.';

CREATE VIEW inspect.hot_keys AS
SELECT l.topic, l.topic_id, l.segment_id, l.hash_range, l.hottest_ratio AS load, coalesce(k.hottest, alone.hash_range) AS hottest,
       coalesce(k.share, alone.share) AS share, coalesce(k.load_on_hottest, alone.share * l.hottest_ratio) AS load_on_hottest,
       k.messages, k.age_seconds, k.is_fresh, CASE WHEN w.segment_id IS NOT NULL THEN l.hottest_ratio END AS unsplittable_load
  FROM inspect.load_now l
  LEFT JOIN LATERAL (SELECT l.hash_range, 1 AS share WHERE left(l.hash_range, 4) = right(l.hash_range, 4)) alone ON true
  LEFT JOIN inspect.key_sketches k ON k.topic_id = l.topic_id AND k.segment_id = l.segment_id
  LEFT JOIN (SELECT DISTINCT topic_id, segment_id FROM inspect.why_not WHERE reason = 'unsplittable') w
         ON w.topic_id = l.topic_id AND w.segment_id = l.segment_id
 WHERE k.segment_id IS NOT NULL OR w.segment_id IS NOT NULL;
COMMENT ON VIEW inspect.hot_keys IS
    'The part of each ACTIVE segment with the most load, in units of capacity. unsplittable_load: the load of a segment that, by its newest evaluation, no split can divide.';

CREATE VIEW inspect.load_readers AS
WITH live AS (
  SELECT *, seen_at > clock_timestamp() - greatest(3 * interval_seconds, 30) * interval '1 s' AS is_live FROM cleave.load_reader
)
SELECT r.name, r.topic_prefix, r.data_planes, r.interval_seconds, r.reader, round(r.clock_ahead_ms / 1000.0, 3) AS clock_ahead_seconds,
       r.seen_at, r.is_live,
       ARRAY(SELECT o.name FROM live o
              WHERE r.is_live AND o.is_live AND o.name <> r.name AND o.data_planes && r.data_planes
                AND (starts_with(o.topic_prefix, r.topic_prefix) OR starts_with(r.topic_prefix, o.topic_prefix)) ORDER BY 1) AS beside
  FROM live r;
COMMENT ON VIEW inspect.load_readers IS
    'Load collectors, and brokers that report their own counters. clock_ahead_seconds: clock of the reader minus clock of the database; beside: other live collectors of the same topics, of which only one is used.';
