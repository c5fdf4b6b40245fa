-- Overview of the fleet: the load of each topic, and the topics that need attention.

CREATE VIEW inspect.fleet AS
WITH stuck AS (
    SELECT topic, min(operation_id) AS operation_id, min(stuck_because) AS stuck_because FROM inspect.stuck_operations GROUP BY topic
)
SELECT t.topic, t.topic_id, t.namespace, t.state, t.data_plane, t.epoch, t.active_segments, t.sealed_segments, t.live_operations,
       l.hottest_ratio, l.hottest_metric, l.hot_segments, l.stale_segments,
       l.msg_rate_in, l.byte_rate_in, l.msg_rate_out, l.byte_rate_out, coalesce(r.reasons, '{}') AS held_back_by, r.budget_until, p.acts AS waiting_acts,
       need.urgency, need.what AS needs, t.last_split_at, t.last_merge_at
  FROM inspect.topics t
  LEFT JOIN stuck s ON s.topic = t.topic
  LEFT JOIN inspect.held_topics h ON h.topic_id = t.topic_id
 CROSS JOIN LATERAL (
       SELECT count(*) FILTER (WHERE l.is_hot AND NOT l.is_stale) AS hot_segments, count(*) FILTER (WHERE l.is_stale) AS stale_segments,
              max(l.hottest_ratio) FILTER (WHERE NOT l.is_stale) AS hottest_ratio,
              (array_agg(l.hottest_metric ORDER BY l.hottest_ratio DESC NULLS LAST) FILTER (WHERE NOT l.is_stale))[1] AS hottest_metric,
              sum(l.msg_rate_in) AS msg_rate_in, sum(l.byte_rate_in) AS byte_rate_in,
              sum(l.msg_rate_out) AS msg_rate_out, sum(l.byte_rate_out) AS byte_rate_out
         FROM inspect.load_now l WHERE l.topic_id = t.topic_id) l
 CROSS JOIN LATERAL (
       SELECT array_agg(DISTINCT w.reason ORDER BY w.reason) AS reasons,
              array_agg(DISTINCT w.reason ORDER BY w.reason) FILTER (WHERE w.lane = 'load') AS load_reasons,
              min(w.not_before) FILTER (WHERE w.reason = 'reconnection-budget') AS budget_until
         FROM inspect.why_not w WHERE w.topic_id = t.topic_id AND w.is_current) r
 CROSS JOIN LATERAL (
       SELECT count(*) AS buckets FROM cleave.bucket_owner o
        WHERE o.topic_id = t.topic_id AND o.release_asked_at < clock_timestamp() - interval '60 seconds') w
 CROSS JOIN LATERAL (
       SELECT count(*) AS ranges FROM inspect.uncovered_ranges u WHERE u.topic_id = t.topic_id AND t.state = 'live') hole
 CROSS JOIN LATERAL (
       SELECT count(*) AS buckets FROM inspect.bucket_gaps g
        WHERE g.topic_id = t.topic_id AND g.gap_seconds > 60 AND g.reason = 'not assigned yet'
          AND EXISTS (SELECT FROM cleave.consumer c WHERE c.topic_id = t.topic_id)) gap
 CROSS JOIN LATERAL (
       SELECT count(*) AS acts, min(a.expires_at) AS until FROM cleave.approval a
        WHERE a.topic_id = t.topic_id AND a.state = 'pending') p
 CROSS JOIN LATERAL (
       SELECT * FROM (VALUES
           (6, hole.ranges > 0, hole.ranges || ' range(s) of its ring belong to no segment'),
           (6, h.held_reason IS NOT NULL, 'held, see `cleave topics recover`: ' || h.held_reason),
           (6, s.stuck_because IS NOT NULL, 'operation ' || s.operation_id || ' is stuck: ' || s.stuck_because),
           (5, 'invalid-policy' = ANY (r.reasons), 'its policy is not valid'),
           (4, l.hot_segments > 0 AND r.reasons && ARRAY['disabled', 'foreign-controller', 'at-max-segments', 'unsplittable', 'width-one'],
               'hot, and waiting does not help: ' || array_to_string(r.reasons, ', ')),
           (4, w.buckets > 0, w.buckets || ' entry bucket(s) are not released by their owners'),
           (4, gap.buckets > 0, gap.buckets || ' entry bucket(s) are not assigned'),
           (4, h.unverified, 'no operation begins until its logs have been compared with the journal'),
           (3, t.state = 'live' AND l.stale_segments > 0, 'no fresh load of ' || l.stale_segments || ' segment(s)'),
           (3, p.acts > 0, p.acts || ' action(s) wait for an approval, the first until '
               || to_char(p.until AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI') || ' UTC'),
           (2, l.hot_segments > 0 AND 'reconnection-budget' = ANY (r.reasons), 'hot, and waits for the reconnection budget'),
           (2, l.hot_segments > 0, 'hot' || coalesce(', and waits: ' || array_to_string(r.load_reasons, ', '), '')),
           (1, t.live_operations > 0, 'an operation is in progress'),
           (0, true, NULL)) AS rule (urgency, applies, what)
        WHERE applies ORDER BY urgency DESC LIMIT 1) need
 WHERE t.state <> 'deleted';
COMMENT ON VIEW inspect.fleet IS
    'One row per topic: its load relative to the split thresholds, the current refusals (held_back_by), and what the topic needs. urgency: 6 held, stuck or a gap in its ring, 5 invalid policy, 4 waiting does not help, 3 no fresh load, or an approval is pending, 2 hot and waiting, 1 operation in progress, 0 nothing.';
