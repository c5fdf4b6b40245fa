-- Policies for people: what holds for a topic, and who said so.

CREATE VIEW inspect.policy_effective AS
SELECT t.name AS topic, t.topic_id, d.knob,
       coalesce(cleave.knob_stored(d.knob, t.policy, n.policy, c.policy), d.value) AS value,
       CASE WHEN t.policy ->> d.knob IS NOT NULL THEN 'topic'
            WHEN n.policy ->> d.knob IS NOT NULL THEN 'namespace'
            WHEN coalesce(nullif(c.policy -> d.knob, 'null'), d.value) <> d.value THEN 'cluster'
            ELSE 'default' END AS level,
       d.value AS default_value
  FROM cleave.topic t
  LEFT JOIN cleave.namespace_policy n ON n.namespace = t.namespace
 CROSS JOIN cleave.cluster_policy c
 CROSS JOIN cleave.policy_default d
 WHERE t.state <> 'deleted';
COMMENT ON VIEW inspect.policy_effective IS 'Every knob in force for a topic and the level it comes from: topic, else namespace, else cluster, else default.';

CREATE VIEW inspect.policy_history AS
SELECT c.changed_at, c.level, c.name, c.actor, knob.name AS knob, c.before -> knob.name AS was, c.after -> knob.name AS value,
       c.change_id, c.topic_id
  FROM cleave.policy_change c
 CROSS JOIN LATERAL (
       SELECT DISTINCT k AS name FROM jsonb_object_keys(c.before || c.after) AS k
        WHERE c.before -> k IS DISTINCT FROM c.after -> k) knob;
COMMENT ON VIEW inspect.policy_history IS
    'Who set which knob when, one row a knob; was or value is empty where the level did not or does not set it.';

CREATE VIEW inspect.policies AS
SELECT 'cluster' AS level, NULL::text AS name, c.policy, c.row_version, c.actor, c.updated_at FROM cleave.cluster_policy c
UNION ALL
SELECT 'namespace', n.namespace, n.policy, n.row_version, n.actor, n.updated_at FROM cleave.namespace_policy n
 WHERE n.policy <> '{}'
UNION ALL
SELECT 'topic', t.name, t.policy, t.row_version, NULL, NULL FROM cleave.topic t WHERE t.policy IS NOT NULL AND t.state <> 'deleted';
COMMENT ON VIEW inspect.policies IS 'Stored policy documents at their level.';
