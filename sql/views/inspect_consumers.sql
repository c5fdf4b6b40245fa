-- Views of consumers: registered consumers, the segments that the drain barrier lets them read, and the owners of entry buckets.

CREATE VIEW inspect.subscriptions AS
SELECT t.name AS topic, u.topic_id, u.name AS subscription, u.kind, u.state, u.created_epoch, u.created_at,
       u.parents_block, u.drain_consumers, u.consumers AS read_by,
       CASE WHEN u.consumers = 'stock' THEN coalesce(o.consumers, 0)::bigint
            ELSE (SELECT count(*) FROM cleave.consumer c WHERE c.topic_id = u.topic_id AND c.subscription = u.name) END AS consumers,
       CASE WHEN u.consumers = 'stock' THEN coalesce(o.consumer_names, '{}')
            ELSE ARRAY(SELECT c.name FROM cleave.consumer c
                        WHERE c.topic_id = u.topic_id AND c.subscription = u.name ORDER BY c.name) END AS consumer_names
  FROM cleave.subscription u
  JOIN cleave.topic t USING (topic_id)
  LEFT JOIN cleave.observed_subscription o ON o.topic_id = u.topic_id AND o.name = u.name;
COMMENT ON VIEW inspect.subscriptions IS
    'One row per subscription, with its consumers. read_by: cleave for registered consumers, stock for standard Pulsar consumers, which the broker lists.';

-- The column barrier is the rule of controller/domain/drain_barrier.py in SQL. The owners of the buckets are in inspect.buckets.
CREATE VIEW inspect.assignments AS
SELECT t.name AS topic, t.topic_id, u.name AS subscription, u.kind, s.segment_id,
       inspect.hash_range_text(s.range_start, s.range_end) AS hash_range, s.state, done.drained AS is_drained,
       CASE WHEN done.drained THEN 'drained'
            WHEN u.kind <> 'QUEUE' AND u.parents_block AND cardinality(wait.for_segments) > 0 THEN 'withheld'
            ELSE 'readable' END AS barrier,
       CASE WHEN done.drained OR u.kind = 'QUEUE' OR NOT u.parents_block THEN '{}' ELSE wait.for_segments END AS waits_for,
       ARRAY(SELECT c.name FROM cleave.consumer c
              WHERE c.topic_id = u.topic_id AND c.subscription = u.name ORDER BY c.name) AS consumer_names
  FROM cleave.topic t
  JOIN cleave.subscription u USING (topic_id)
  JOIN cleave.segment s ON s.topic_id = t.topic_id AND s.pruned_epoch IS NULL
 CROSS JOIN LATERAL (
       SELECT s.state = 'SEALED' AND (s.sealed_epoch <= u.created_epoch OR EXISTS (
              SELECT FROM cleave.segment_drain d
               WHERE d.topic_id = u.topic_id AND d.subscription = u.name AND d.segment_id = s.segment_id)) AS drained) done
 CROSS JOIN LATERAL (
       WITH RECURSIVE ancestor AS (
           SELECT s.segment_id, NULL::bigint AS sealed_epoch  -- without an epoch, the segment itself is not in the result
           UNION
           SELECT a.segment_id, a.sealed_epoch
             FROM ancestor b
             JOIN cleave.segment_parent p ON p.topic_id = s.topic_id AND p.child_id = b.segment_id
             JOIN cleave.segment a ON a.topic_id = p.topic_id AND a.segment_id = p.parent_id AND a.pruned_epoch IS NULL)
       SELECT coalesce(array_agg(a.segment_id ORDER BY a.segment_id), '{}') AS for_segments
         FROM ancestor a
        WHERE a.sealed_epoch > u.created_epoch AND NOT EXISTS (
              SELECT FROM cleave.segment_drain d
               WHERE d.topic_id = u.topic_id AND d.subscription = u.name AND d.segment_id = a.segment_id)) wait
 WHERE t.state <> 'deleted';
COMMENT ON VIEW inspect.assignments IS
    'One row per subscription and segment: readable, withheld until the segments in waits_for are drained, or drained.';

-- One row for each entry bucket that a subscription still has to read: its owner, or the reason why no consumer reads it, and since when.
CREATE VIEW inspect.buckets AS
SELECT a.topic, a.topic_id, a.subscription, a.segment_id, a.hash_range, a.state,
       inspect.hash_range_text(b.bucket_start, b.bucket_end) AS bucket, o.consumer AS owner, o.successor, o.generation,
       CASE WHEN seek.asked_at IS NOT NULL AND o.consumer IS NOT NULL THEN 'to be released for a seek'
            WHEN seek.asked_at IS NOT NULL THEN 'stopped for a seek'
            WHEN u.consumers = 'stock' THEN gate.reason
            WHEN a.barrier = 'withheld' THEN 'withheld until its parents are drained'
            WHEN o.release_asked_at IS NOT NULL AND holder.disconnected_at IS NOT NULL THEN 'being handed over: owner is not connected'
            WHEN o.release_asked_at IS NOT NULL THEN 'being handed over'
            WHEN holder.disconnected_at IS NOT NULL THEN 'owner is not connected: it may come back until its grace period is over'
            WHEN o.consumer IS NOT NULL THEN coalesce(o.said, 'owned')
            WHEN cardinality(a.consumer_names) = 0 THEN 'no consumer is registered'
            ELSE 'not assigned yet' END AS reason,
       CASE WHEN seek.asked_at IS NOT NULL THEN seek.asked_at
            WHEN u.consumers = 'stock' THEN gate.since
            WHEN a.barrier = 'withheld' THEN s.created_at
            WHEN o.release_asked_at IS NOT NULL THEN o.release_asked_at
            WHEN holder.disconnected_at IS NOT NULL THEN holder.disconnected_at
            WHEN o.consumer IS NOT NULL THEN coalesce(o.said_since, o.owned_since)
            WHEN cardinality(a.consumer_names) > 0 THEN greatest(s.created_at, free.parents_read_at, free.first_registered_at)
            END AS since,
       a.waits_for,
       CASE WHEN a.barrier = 'withheld' THEN ARRAY(
            SELECT DISTINCT h.consumer FROM cleave.bucket_owner h
             WHERE h.topic_id = a.topic_id AND h.subscription = a.subscription AND h.segment_id = ANY (a.waits_for)
             ORDER BY 1)
            ELSE '{}' END AS held_by,
       unread.backlog, unread.backlog_counted_at
  FROM inspect.assignments a
  JOIN cleave.segment s ON s.topic_id = a.topic_id AND s.segment_id = a.segment_id
  JOIN cleave.subscription u ON u.topic_id = a.topic_id AND u.name = a.subscription
  LEFT JOIN LATERAL (
       SELECT CASE WHEN g.breached_at IS NOT NULL THEN 'gate breached: a consumer has acknowledged the barrier; set its crypto failure action to FAIL'
                   WHEN o.subscription_type NOT IN ('Failover', 'Exclusive')
                   THEN 'read as ' || o.subscription_type || ', which no gate keeps in order: use Failover or Exclusive'
                   WHEN g.state = 'closed' AND a.barrier = 'withheld' THEN 'gate closed until its ancestors are read'
                   WHEN g.state <> 'open' THEN 'gate being opened: every ancestor is read'
                   WHEN a.barrier = 'withheld' THEN 'gate open before its ancestors are read: the reconciler closes it'
                   WHEN o.consumers > 0 THEN 'read by standard consumers'
                   ELSE 'no standard consumer was seen at the broker' END AS reason,
              CASE WHEN g.breached_at IS NOT NULL THEN g.breached_at
                   WHEN g.state = 'closed' THEN g.closed_at
                   WHEN g.state = 'ready' THEN g.ready_at
                   ELSE o.changed_at END AS since
         FROM (SELECT) one
         LEFT JOIN cleave.gate g ON g.topic_id = a.topic_id AND g.subscription = a.subscription AND g.segment_id = a.segment_id
         LEFT JOIN cleave.observed_subscription o ON o.topic_id = a.topic_id AND o.name = a.subscription) gate ON u.consumers = 'stock'
 CROSS JOIN LATERAL (
       SELECT bucket_start, coalesce(lead(bucket_start) OVER (ORDER BY bucket_start) - 1, 65535) AS bucket_end
         FROM unnest(0 || s.bucket_splits) AS bucket_start) b
  LEFT JOIN cleave.bucket_owner o
    ON o.topic_id = a.topic_id AND o.subscription = a.subscription AND o.segment_id = a.segment_id
   AND b.bucket_start BETWEEN o.bucket_start AND o.bucket_end  -- a row of bucket_owner may cover several adjacent buckets
  LEFT JOIN cleave.consumer holder
    ON holder.topic_id = o.topic_id AND holder.subscription = o.subscription AND holder.name = o.consumer
 CROSS JOIN LATERAL (
       SELECT min(k.intended_at) AS asked_at FROM cleave.operation k
        WHERE k.topic_id = a.topic_id AND k.kind = 'seek' AND k.parameters ->> 'subscription' = a.subscription
          AND k.finished_at IS NULL AND k.state <> 'committed') seek
 CROSS JOIN LATERAL (
       SELECT (SELECT max(d.drained_at) FROM cleave.segment_parent p
                 JOIN cleave.segment_drain d ON d.topic_id = p.topic_id AND d.segment_id = p.parent_id
                WHERE p.topic_id = a.topic_id AND p.child_id = a.segment_id AND d.subscription = a.subscription) AS parents_read_at,
              (SELECT min(c.registered_at) FROM cleave.consumer c
                WHERE c.topic_id = a.topic_id AND c.subscription = a.subscription) AS first_registered_at) free
 CROSS JOIN LATERAL (
       SELECT (CASE WHEN sum(left_over.messages) > 9223372036854775807 THEN 9223372036854775807 ELSE sum(left_over.messages) END)::bigint AS backlog, min(left_over.counted_at) AS backlog_counted_at
         FROM cleave.drain_backlog left_over
        WHERE left_over.topic_id = a.topic_id AND left_over.subscription = a.subscription
          AND left_over.segment_id = ANY (a.waits_for)) unread
 WHERE NOT a.is_drained AND (a.kind = 'STREAM' OR a.kind = 'CHECKPOINT' AND cardinality(a.consumer_names) > 0);
COMMENT ON VIEW inspect.buckets IS
    'One row per entry bucket that a stream subscription, or a checkpoint subscription with registered consumers, has to read: its owner, the reason why it is not read and since when, the consumers (held_by) of the segments that it waits for, and the unread messages of those segments (backlog). The backlog is first counted within two minutes of a seal, then once a minute; empty: not counted.';

CREATE VIEW inspect.failing_messages AS
SELECT t.name AS topic, d.topic_id, d.subscription, d.segment_id,
       inspect.hash_range_text(coalesce(o.bucket_start, d.bucket_start), coalesce(o.bucket_end, d.bucket_start)) AS bucket, o.consumer AS owner,
       d.position, d.deliveries, d.deaths, d.begun_by IS NOT NULL AS is_in_hand, d.error, d.first_at, d.last_at
  FROM cleave.message_delivery d
  JOIN cleave.topic t USING (topic_id)
  LEFT JOIN cleave.bucket_owner o
    ON o.topic_id = d.topic_id AND o.subscription = d.subscription AND o.segment_id = d.segment_id
   AND d.bucket_start BETWEEN o.bucket_start AND o.bucket_end;
COMMENT ON VIEW inspect.failing_messages IS
    'One row per message whose handling failed or ended its process, with the counts and the present owner. Later messages of the same key wait for it.';

CREATE VIEW inspect.bucket_gaps AS
SELECT b.topic, b.topic_id, b.subscription, b.segment_id, b.hash_range, b.bucket, b.owner AS holder, b.successor, b.reason, b.since,
       round(extract(epoch FROM clock_timestamp() - b.since), 1) AS gap_seconds
  FROM inspect.buckets b
 WHERE split_part(b.reason, ':', 1) IN (
       'being handed over', 'to be released for a seek', 'stopped for a seek', 'not assigned yet', 'being opened', 'out of reach',
       'held by another reader', 'owner is not connected');
COMMENT ON VIEW inspect.bucket_gaps IS
    'Entry buckets without an active reader: unassigned, not yet released, not attachable by their owner, or owned by a consumer that is not connected; with the start and the duration.';

CREATE VIEW inspect.observed_consumers AS
SELECT t.name AS topic, t.topic_id, o.name AS subscription, coalesce(u.consumers, 'cleave') AS read_by, o.subscription_type,
       o.consumers, o.consumer_names, o.changed_at,
       CASE WHEN o.subscription_type = 'Shared' THEN 'read as a queue'
            WHEN u.kind <> 'STREAM' THEN 'recorded as ' || lower(u.kind)
            WHEN u.state = 'deleting' THEN 'being deleted'
            WHEN u.consumers = 'stock' THEN 'counts'
            WHEN EXISTS (SELECT FROM cleave.consumer c WHERE c.topic_id = o.topic_id AND c.subscription = o.name)
            THEN 'registered consumers count instead'
            ELSE 'counts' END AS in_decisions
  FROM cleave.observed_subscription o
  JOIN cleave.topic t USING (topic_id)
  LEFT JOIN cleave.subscription u ON u.topic_id = o.topic_id AND u.name = o.name;
COMMENT ON VIEW inspect.observed_consumers IS
    'Consumers that brokers list, also of applications that do not register, and whether they count in decisions.';
