-- Views of policies: the parameters in force for each topic with their levels, and the history of changes.

CREATE VIEW inspect.policy_effective AS
SELECT t.name AS topic, t.topic_id, d.parameter,
       coalesce(cleave.parameter_stored(d.parameter, t.policy, n.policy, c.policy), d.value) AS value,
       CASE WHEN t.policy ->> d.parameter IS NOT NULL THEN 'topic'
            WHEN n.policy ->> d.parameter IS NOT NULL THEN 'namespace'
            WHEN coalesce(nullif(c.policy -> d.parameter, 'null'), d.value) <> d.value THEN 'cluster'
            ELSE 'default' END AS level,
       d.value AS default_value
  FROM cleave.topic t
  LEFT JOIN cleave.namespace_policy n ON n.namespace = t.namespace
 CROSS JOIN cleave.cluster_policy c
 CROSS JOIN cleave.policy_default d
 WHERE t.state <> 'deleted';
COMMENT ON VIEW inspect.policy_effective IS 'Every parameter in force for a topic and the level it comes from: topic, else namespace, else cluster, else default.';

CREATE VIEW inspect.policy_history AS
SELECT c.changed_at, c.level, c.name, c.actor, parameter.name AS parameter, c.before -> parameter.name AS was, c.after -> parameter.name AS value,
       c.change_id, c.topic_id
  FROM cleave.policy_change c
 CROSS JOIN LATERAL (
       SELECT DISTINCT k AS name FROM jsonb_object_keys(c.before || c.after) AS k
        WHERE c.before -> k IS DISTINCT FROM c.after -> k) parameter;
COMMENT ON VIEW inspect.policy_history IS
    'One row per changed parameter: time, level and actor. was (or value) is empty if the level did not set the parameter before (or after) the change.';

CREATE VIEW inspect.policies AS
SELECT 'cluster' AS level, NULL::text AS name, c.policy, c.row_version, c.actor, c.updated_at FROM cleave.cluster_policy c
UNION ALL
SELECT 'namespace', n.namespace, n.policy, n.row_version, n.actor, n.updated_at FROM cleave.namespace_policy n
 WHERE n.policy <> '{}'
UNION ALL
SELECT 'topic', t.name, t.policy, t.row_version, NULL, NULL FROM cleave.topic t WHERE t.policy IS NOT NULL AND t.state <> 'deleted';
COMMENT ON VIEW inspect.policies IS 'One row per stored policy, with its level.';
