-- Gates for operators: the segments that are held back from standard consumers, their undrained ancestors, and the gates that are overdue.

CREATE VIEW inspect.gates AS
SELECT a.topic, a.topic_id, a.subscription, a.segment_id, a.hash_range, a.state AS segment_state, g.state AS gate,
       CASE WHEN g.state = 'open' THEN '{}' ELSE a.waits_for END AS waits_for, g.closed_at, g.ready_at, g.opened_at,
       late.since AS overdue_since, round(extract(epoch FROM clock_timestamp() - late.since), 1) AS overdue_seconds,
       g.breached_at, o.subscription_type, coalesce(o.consumers, 0) AS consumers, g.last_error
  FROM cleave.gate g
  JOIN inspect.assignments a ON a.topic_id = g.topic_id AND a.subscription = g.subscription AND a.segment_id = g.segment_id
  LEFT JOIN cleave.observed_subscription o ON o.topic_id = g.topic_id AND o.name = g.subscription
 CROSS JOIN LATERAL (
       SELECT CASE WHEN g.state = 'ready' THEN g.ready_at
                   WHEN g.state = 'closed' AND cardinality(a.waits_for) = 0
                   THEN greatest(g.closed_at, (SELECT max(d.drained_at) FROM cleave.segment_parent p
                                                 JOIN cleave.segment_drain d ON d.topic_id = p.topic_id AND d.segment_id = p.parent_id
                                                WHERE p.topic_id = g.topic_id AND p.child_id = g.segment_id AND d.subscription = g.subscription))
                   END AS since) late;
COMMENT ON VIEW inspect.gates IS
    'One row per gate, which holds the messages of a segment back from a subscription of standard consumers until the segments in waits_for are drained. overdue_since: time since which the gate could be open and is not, NULL if the gate is open or must stay closed; breached_at: time at which the closed gate was first seen with an acknowledged or missing barrier; consumers: number of consumers that the broker lists for the subscription.';
