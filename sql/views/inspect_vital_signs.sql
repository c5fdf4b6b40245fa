-- Figures of the fleet, which `cleave metrics` serves: totals, segments that are not drained, readers, skipped subjects, and health.

CREATE VIEW inspect.tallies AS
SELECT t.name AS topic, y.topic_id, y.tally, y.kind, y.because, y.total
  FROM cleave.topic_tally y
  JOIN cleave.topic t USING (topic_id);
COMMENT ON VIEW inspect.tallies IS
    'Totals since the creation of a topic: layout changes by kind and origin, rows of the decision log with a refusal by lane (kind) and reason, and assignments of entry buckets (bucket, granted). Deleted topics keep their totals.';

CREATE VIEW inspect.undrained AS
SELECT t.name AS topic, t.topic_id, u.name AS subscription, s.segment_id, inspect.hash_range_text(s.range_start, s.range_end) AS hash_range,
       s.sealed_at, round(extract(epoch FROM clock_timestamp() - s.sealed_at), 1) AS age_seconds,
       left_over.messages AS unread_messages, left_over.counted_at,
       EXISTS (SELECT FROM cleave.segment_parent p
                 JOIN cleave.segment older ON older.topic_id = p.topic_id AND older.segment_id = p.parent_id
                WHERE p.topic_id = s.topic_id AND p.child_id = s.segment_id
                  AND older.pruned_epoch IS NULL AND older.drained_at IS NULL AND older.sealed_epoch > u.created_epoch
                  AND NOT EXISTS (SELECT FROM cleave.segment_drain d WHERE d.topic_id = p.topic_id
                                     AND d.subscription = u.name AND d.segment_id = p.parent_id)) AS waits_for_parents,
       round(extract(epoch FROM clock_timestamp() - greatest(coalesce(left_over.moved_at, s.sealed_at),
             (SELECT max(d.drained_at) FROM cleave.segment_parent p
                JOIN cleave.segment_drain d ON d.topic_id = p.topic_id AND d.segment_id = p.parent_id
               WHERE p.topic_id = s.topic_id AND p.child_id = s.segment_id AND d.subscription = u.name))), 1) AS still_seconds
  FROM cleave.segment s
  JOIN cleave.topic t ON t.topic_id = s.topic_id AND t.state = 'live'
  JOIN cleave.subscription u ON u.topic_id = s.topic_id AND u.kind = 'STREAM' AND u.state = 'live' AND u.parents_block
                              AND u.created_epoch < s.sealed_epoch
  LEFT JOIN cleave.drain_backlog left_over
    ON left_over.topic_id = s.topic_id AND left_over.subscription = u.name AND left_over.segment_id = s.segment_id
 WHERE s.state = 'SEALED' AND s.pruned_epoch IS NULL AND s.drained_at IS NULL
   AND (EXISTS (SELECT FROM cleave.consumer c WHERE c.topic_id = s.topic_id AND c.subscription = u.name AND c.incarnation <> '')
        OR u.consumers = 'stock' AND EXISTS (SELECT FROM cleave.observed_subscription o
                                              WHERE o.topic_id = s.topic_id AND o.name = u.name))
   AND NOT EXISTS (SELECT FROM cleave.segment_drain d
                    WHERE d.topic_id = s.topic_id AND d.subscription = u.name AND d.segment_id = s.segment_id);
COMMENT ON VIEW inspect.undrained IS
    'Sealed segments that a subscription has not drained although it has consumers with a session, or standard consumers at the broker; the children wait for the drain. still_seconds: time since unread_messages last changed, or since the seal if the messages are not counted yet, and at most the time since the parents were drained. A segment that waits for its own parents is not expected to change.';

CREATE VIEW inspect.readers AS
SELECT t.name AS topic, t.topic_id, count(*) FILTER (WHERE s.readers > 1) AS shared_segments, sum(s.owned)::bigint AS buckets_owned,
       sum(s.withheld)::bigint AS buckets_withheld,
       round(extract(epoch FROM clock_timestamp() - min(s.asked_at)), 1) AS oldest_withheld_seconds,
       sum(s.away)::bigint AS buckets_away,
       round(extract(epoch FROM clock_timestamp() - min(s.disconnected_at)), 1) AS oldest_away_seconds
  FROM (SELECT o.topic_id, o.subscription, o.segment_id, count(DISTINCT o.consumer) AS readers, count(*) AS owned,
               count(o.release_asked_at) AS withheld, min(o.release_asked_at) AS asked_at,
               count(c.disconnected_at) AS away, min(c.disconnected_at) AS disconnected_at
          FROM cleave.bucket_owner o
          LEFT JOIN cleave.consumer c ON c.topic_id = o.topic_id AND c.subscription = o.subscription AND c.name = o.consumer
         GROUP BY o.topic_id, o.subscription, o.segment_id) s
  JOIN cleave.topic t USING (topic_id)
 GROUP BY t.name, t.topic_id;
COMMENT ON VIEW inspect.readers IS
    'One row per topic with owned entry buckets: segments that several consumers share, owned buckets, buckets whose owner must release them and has not yet done so (withheld), and buckets whose owner is not connected (away).';

CREATE VIEW inspect.set_aside AS
SELECT s.batch, s.subject, t.name AS topic, s.topic_id, s.reason, s.times, s.first_at, s.last_at,
       s.last_at > clock_timestamp() - greatest(interval '15 minutes', least(interval '1 day',
           4 * (s.last_at - s.first_at) / greatest(s.times - 1, 1))) AS is_current  -- a fixed time would end between two rare batches
  FROM cleave.set_aside s
  LEFT JOIN cleave.topic t ON t.topic_id = s.topic_id;
COMMENT ON VIEW inspect.set_aside IS
    'Subjects that a batch over many topics skipped, and why; the batch continued with the other subjects. is_current: skipped within the last 15 minutes, or within four times the mean time between its skips. A row is kept for a day.';

CREATE VIEW inspect.health AS
SELECT fleet.topics, fleet.active_segments, uncovered.ranges AS uncovered_ranges,
       live.operations AS live_operations, live.oldest_seconds AS oldest_operation_seconds, stuck.operations AS stuck_operations,
       deletion_entries.open AS open_deletion_entries, backlog.evaluations AS evaluations_due, backlog.oldest_seconds AS oldest_evaluation_due_seconds,
       load.age_seconds AS load_age_seconds, samples.age_seconds AS sample_age_seconds,
       leases.workers, leases.shards, leases.shards_without_worker, leases.lease_changes,
       undrained.segments AS undrained_segments, undrained.oldest_seconds AS oldest_undrained_seconds,
       undrained.still_seconds AS still_drain_seconds,
       withheld.buckets AS buckets_withheld, withheld.oldest_seconds AS oldest_withheld_seconds,
       away.buckets AS buckets_away, away.oldest_seconds AS oldest_away_seconds,
       held.topics AS held_topics, held.unverified AS unverified_topics, unmanaged.logs AS unmanaged_logs, skipped.subjects AS set_aside,
       readers.collectors_beside, readers.clock_off_seconds,
       gates.shut AS gates_shut, gates.overdue AS gates_overdue, gates.oldest_seconds AS oldest_overdue_gate_seconds,
       gates.breached AS gates_breached, unordered.subscriptions AS unordered_stock_subscriptions
  FROM (SELECT (SELECT count(*) FROM cleave.topic WHERE state = 'live') AS topics,
               (SELECT count(*) FROM cleave.segment s JOIN cleave.topic t USING (topic_id)
                 WHERE s.state = 'ACTIVE' AND t.state = 'live') AS active_segments) fleet
 CROSS JOIN (SELECT count(*) AS ranges FROM inspect.uncovered_ranges) uncovered
 CROSS JOIN (SELECT count(*) AS operations, extract(epoch FROM clock_timestamp() - min(intended_at)) AS oldest_seconds
               FROM cleave.operation WHERE finished_at IS NULL) live
 CROSS JOIN (SELECT count(*) AS operations FROM inspect.stuck_operations) stuck
 CROSS JOIN (SELECT count(*) AS open FROM cleave.deletion_entry WHERE closed_at IS NULL) deletion_entries
 CROSS JOIN (SELECT count(*) FILTER (WHERE NOT paused) AS evaluations,
                    extract(epoch FROM clock_timestamp() - min(due_at) FILTER (WHERE NOT paused AND due_at < clock_timestamp()))
                        AS oldest_seconds
               FROM inspect.evaluation_backlog) backlog
 CROSS JOIN (SELECT extract(epoch FROM clock_timestamp() - max(window_end)) AS age_seconds
               FROM cleave.load_run WHERE applied_at <= clock_timestamp()) load
 CROSS JOIN (SELECT extract(epoch FROM clock_timestamp() - max(observed_at)) AS age_seconds FROM cleave.load_source) samples
 CROSS JOIN (SELECT count(*) FILTER (WHERE name LIKE 'worker/%' AND expires_at > clock_timestamp()) AS workers,
                    count(*) FILTER (WHERE is_shard AND expires_at > clock_timestamp() - interval '1 hour') AS shards,
                    count(*) FILTER (WHERE is_shard AND expires_at <= clock_timestamp()
                                     AND expires_at > clock_timestamp() - interval '1 hour') AS shards_without_worker,
                    coalesce(sum(term) FILTER (WHERE name LIKE 'shard/%'), 0) AS lease_changes
               FROM (SELECT name, term, expires_at,
                            CASE WHEN name LIKE 'shard/%'  -- a larger shard is of a time with more shards
                                 THEN (substr(name, 7)::bigint < (SELECT holder::bigint FROM cleave.lease WHERE name = 'shard-count')) IS NOT FALSE
                                 ELSE false END AS is_shard
                       FROM cleave.lease) lease) leases
 CROSS JOIN (SELECT count(*) AS segments, max(age_seconds) AS oldest_seconds,
                    max(still_seconds) FILTER (WHERE NOT waits_for_parents) AS still_seconds
               FROM inspect.undrained) undrained
 CROSS JOIN (SELECT count(*) AS buckets, extract(epoch FROM clock_timestamp() - min(release_asked_at)) AS oldest_seconds
               FROM cleave.bucket_owner WHERE release_asked_at IS NOT NULL) withheld
 CROSS JOIN (SELECT count(*) AS buckets, extract(epoch FROM clock_timestamp() - min(c.disconnected_at)) AS oldest_seconds
               FROM cleave.consumer c
               JOIN cleave.bucket_owner o ON o.topic_id = c.topic_id AND o.subscription = c.subscription AND o.consumer = c.name
              WHERE c.disconnected_at IS NOT NULL) away
 CROSS JOIN (SELECT count(*) FILTER (WHERE NOT unverified) AS topics, count(*) FILTER (WHERE unverified) AS unverified
               FROM inspect.held_topics) held
 CROSS JOIN (SELECT count(*) AS logs FROM inspect.unmanaged_logs) unmanaged
 CROSS JOIN (SELECT count(*) AS subjects FROM inspect.set_aside WHERE is_current) skipped
 CROSS JOIN (SELECT count(*) FILTER (WHERE beside <> '{}') AS collectors_beside, max(abs(clock_ahead_seconds)) AS clock_off_seconds
               FROM inspect.load_readers WHERE is_live) readers
 CROSS JOIN (SELECT count(*) AS shut, count(overdue_since) AS overdue, max(overdue_seconds) AS oldest_seconds,
                    count(breached_at) AS breached
               FROM inspect.gates WHERE gate <> 'open') gates
 CROSS JOIN (SELECT count(*) AS subscriptions FROM cleave.subscription u
               JOIN cleave.observed_subscription o ON o.topic_id = u.topic_id AND o.name = u.name
              WHERE u.consumers = 'stock' AND o.subscription_type NOT IN ('Failover', 'Exclusive')) unordered;
COMMENT ON VIEW inspect.health IS
    'One row with the health of the whole installation. An age is empty if there is no object to measure; shards counts the shards that had a worker within the last hour; lease_changes rises by 1 each time a worker acquires a shard.';
