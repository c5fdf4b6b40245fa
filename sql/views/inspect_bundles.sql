-- Views of bundles: their load and owner, the proposals of the balancer, and the reasons why it does not act.

CREATE FUNCTION inspect.bundle_text(lower_bound bigint, upper_bound bigint) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN
    '0x' || lpad(to_hex(lower_bound), 8, '0') || '_0x' || lpad(to_hex(upper_bound), 8, '0');
COMMENT ON FUNCTION inspect.bundle_text IS 'The range of a bundle in the notation of Pulsar: 0x00000000_0x40000000.';

CREATE VIEW inspect.bundles_now AS
SELECT n.cluster, n.namespace, inspect.bundle_text(edge.lower_bound, edge.upper_bound) AS bundle, l.broker, n.mode,
       l.topic_count, l.producer_count, l.consumer_count, l.msg_rate_in, l.byte_rate_in, l.msg_rate_out, l.byte_rate_out,
       round((l.msg_rate_in + l.msg_rate_out)::numeric, 1) AS msg_rate, round((l.byte_rate_in + l.byte_rate_out)::numeric) AS byte_rate,
       round(((l.byte_rate_in + l.byte_rate_out)
              / nullif(s.byte_rate_in + s.byte_rate_out, 0))::numeric, 3) AS share_of_namespace,
       edge.upper_bound - edge.lower_bound > 1 AS can_split, l.cache_size_bytes, l.modified_at, b.observed_at,
       round(extract(epoch FROM clock_timestamp() - b.observed_at), 1) AS silent_seconds,
       edge.lower_bound, edge.upper_bound
  FROM cleave.namespace_bundles n
 CROSS JOIN LATERAL (
       SELECT bound AS lower_bound, lead(bound) OVER (ORDER BY place) AS upper_bound
         FROM unnest(n.boundaries) WITH ORDINALITY AS u (bound, place)) edge
  LEFT JOIN cleave.bundle_load l
         ON l.cluster = n.cluster AND l.namespace = n.namespace AND l.lower_bound = edge.lower_bound AND l.upper_bound = edge.upper_bound
  LEFT JOIN cleave.namespace_load s ON s.cluster = n.cluster AND s.namespace = n.namespace
  LEFT JOIN cleave.broker_load b ON b.cluster = l.cluster AND b.broker = l.broker
 WHERE edge.upper_bound IS NOT NULL;
COMMENT ON VIEW inspect.bundles_now IS
    'One row per bundle with its owner and load. Empty figures: no report since the boundaries changed. A bundle without a broker has no owner until the next lookup.';

CREATE VIEW inspect.bundles_namespaces AS
SELECT n.cluster, n.namespace, n.mode, cardinality(n.boundaries) - 1 AS bundle_count, l.topic_count,
       l.msg_rate_in, l.byte_rate_in, l.msg_rate_out, l.byte_rate_out, l.peak_msg_rate, l.peak_byte_rate, l.peak_topic_count,
       n.split_settings, n.row_version, n.actor, n.boundaries_at, n.updated_at
  FROM cleave.namespace_bundles n
  LEFT JOIN cleave.namespace_load l USING (cluster, namespace);
COMMENT ON VIEW inspect.bundles_namespaces IS
    'One row per namespace whose bundles are known: its mode (dry-run until enabled) and its load. peak: value of the largest bundle.';

CREATE VIEW inspect.bundles_brokers AS
SELECT b.cluster, b.broker, round(u.usage::numeric, 4) AS usage, u.signal AS busiest_signal, b.bundle_count, b.topic_count,
       b.msg_rate_in, b.byte_rate_in, b.msg_rate_out, b.byte_rate_out,
       round((b.msg_rate_in + b.msg_rate_out)::numeric, 1) AS msg_rate, round((b.byte_rate_in + b.byte_rate_out)::numeric) AS byte_rate,
       b.producer_count, b.consumer_count,
       round((u.usage - avg(u.usage) OVER of_cluster)::numeric, 4) AS above_mean,
       b.report, b.version, b.observed_at, round(extract(epoch FROM clock_timestamp() - b.observed_at), 1) AS silent_seconds
  FROM cleave.broker_load b
  LEFT JOIN LATERAL (
       SELECT signal, signal_usage / signal_limit AS usage
         FROM (VALUES (1, 'cpu', b.cpu_usage, b.cpu_limit), (2, 'direct_memory', b.direct_memory_usage, b.direct_memory_limit),
                      (3, 'bandwidth_in', b.bandwidth_in_usage, b.bandwidth_in_limit),
                      (4, 'bandwidth_out', b.bandwidth_out_usage, b.bandwidth_out_limit))
              AS signals (ordinal, signal, signal_usage, signal_limit)
        WHERE signal_limit > 0
        ORDER BY usage DESC, ordinal LIMIT 1) u ON true
WINDOW of_cluster AS (PARTITION BY b.cluster);
COMMENT ON VIEW inspect.bundles_brokers IS
    'One row per broker with its load. usage: maximum of CPU, direct memory and bandwidth, each as a fraction of its limit (empty: unknown); above_mean: usage minus the mean of the cluster.';

CREATE VIEW inspect.bundles_proposals AS
SELECT p.proposal_id, p.cycle_id, d.decided_at, p.cluster, p.namespace, inspect.bundle_text(p.lower_bound, p.upper_bound) AS bundle,
       p.kind, p.state, p.broker, p.destination,
       ARRAY(SELECT '0x' || lpad(to_hex(cut), 8, '0') FROM unnest(p.cut_points) AS cut) AS cut_points,
       p.reason, p.outcome, p.actor, n.mode, p.attempts, round(extract(epoch FROM clock_timestamp() - d.decided_at)) AS age_seconds,
       p.claimed_by, p.claimed_until, p.changed_at, d.code_version, p.detail,
       (SELECT a.approval_id FROM cleave.approval a
         WHERE a.subject = 'bundle-proposal' AND a.subject_id = p.proposal_id AND a.state = 'pending') AS approval_id
  FROM cleave.bundle_proposal p
  JOIN cleave.bundle_decision d USING (cycle_id)
  LEFT JOIN cleave.namespace_bundles n ON n.cluster = p.cluster AND n.namespace = p.namespace;
COMMENT ON VIEW inspect.bundles_proposals IS
    'One row per proposal of the balancer, with its reason and state. Proposals of a namespace in dry run are only shown.';
COMMENT ON COLUMN inspect.bundles_proposals.approval_id IS 'Pending approval of the proposal; NULL: none is pending.';

CREATE VIEW inspect.bundles_why_not AS
WITH newest AS (
    SELECT DISTINCT ON (cluster) * FROM cleave.bundle_decision ORDER BY cluster, cycle_id DESC
)
SELECT d.cluster, d.cycle_id, d.decided_at, r.refusal ->> 'namespace' AS namespace, r.refusal ->> 'bundle' AS bundle,
       r.refusal ->> 'broker' AS broker, r.refusal ->> 'rule' AS rule, r.refusal ->> 'reason' AS reason,
       (r.refusal ->> 'value')::float8 AS value, (r.refusal ->> 'needed')::float8 AS needed, NULL::bigint AS proposal_id,
       r.refusal ->> 'metric' AS metric
  FROM newest d CROSS JOIN LATERAL jsonb_array_elements(d.refusals) AS r (refusal)
UNION ALL
SELECT p.cluster, p.cycle_id, d.decided_at, p.namespace, inspect.bundle_text(p.lower_bound, p.upper_bound), p.broker, p.kind,
       CASE WHEN p.state = 'proposed' AND n.mode = 'approval' THEN 'waits for approval'
            WHEN p.state = 'proposed' AND n.mode = 'automatic' THEN 'waits for the next application of proposals'
            WHEN p.state = 'proposed' THEN 'the namespace is in dry run; enable the namespace'
            ELSE p.outcome END,
       NULL, NULL, p.proposal_id, NULL
  FROM cleave.bundle_proposal p
  JOIN newest d USING (cluster)
  LEFT JOIN cleave.namespace_bundles n ON n.cluster = p.cluster AND n.namespace = p.namespace
 WHERE p.cycle_id = d.cycle_id AND p.state IN ('proposed', 'failed', 'refused');
COMMENT ON VIEW inspect.bundles_why_not IS
    'Why no further action is taken on the bundles of a cluster: refusals of the newest cycle, and its proposals that were not applied.';

CREATE VIEW inspect.bundles_imbalance AS
SELECT d.cluster, d.cycle_id, d.decided_at, l.window_end, l.broker_count, l.bundle_count, l.topic_count,
       l.usage_mean, l.usage_stddev, l.msg_rate_mean, l.msg_rate_stddev, l.byte_rate_mean, l.byte_rate_stddev,
       round((l.byte_rate_stddev / nullif(l.byte_rate_mean, 0))::numeric, 4) AS byte_rate_variation,
       p.proposals, p.verified, p.failed
  FROM cleave.bundle_decision d
  LEFT JOIN LATERAL (
       SELECT * FROM cleave.cluster_load c
        WHERE c.cluster = d.cluster AND c.window_end <= d.decided_at ORDER BY c.window_end DESC LIMIT 1) l ON true
 CROSS JOIN LATERAL (
       SELECT count(*) AS proposals, count(*) FILTER (WHERE state = 'verified') AS verified,
              count(*) FILTER (WHERE state = 'failed') AS failed
         FROM cleave.bundle_proposal p WHERE p.cycle_id = d.cycle_id) p;
COMMENT ON VIEW inspect.bundles_imbalance IS
    'One row per cycle: spread of the load over the brokers (population standard deviation) before the cycle, and the number of proposals by outcome.';

CREATE VIEW inspect.bundles_load_runs AS
SELECT r.run_id, r.window_end, r.applied_at, r.engine, r.topics, r.written, r.outrun, r.quarantined,
       round(extract(epoch FROM clock_timestamp() - r.window_end), 1) AS age_seconds
  FROM cleave.bundle_load_run r;
COMMENT ON VIEW inspect.bundles_load_runs IS 'Aggregation runs of bundle load; the next run writes the rows that are counted as outrun.';
