-- Under strict_pulsar a topic's load records follow the rule of Pulsar's reporter, so the aggregation has to know it. A
-- program that is older does not ask for the column.
CREATE OR REPLACE VIEW cleave.threshold_in_force AS
SELECT t.topic_id,
       max(number) FILTER (WHERE knob = 'split_msg_rate_in')   AS split_msg_rate_in,
       max(number) FILTER (WHERE knob = 'split_byte_rate_in')  AS split_byte_rate_in,
       max(number) FILTER (WHERE knob = 'split_msg_rate_out')  AS split_msg_rate_out,
       max(number) FILTER (WHERE knob = 'split_byte_rate_out') AS split_byte_rate_out,
       max(number) FILTER (WHERE knob = 'merge_msg_rate_in')   AS merge_msg_rate_in,
       max(number) FILTER (WHERE knob = 'merge_byte_rate_in')  AS merge_byte_rate_in,
       max(number) FILTER (WHERE knob = 'merge_msg_rate_out')  AS merge_msg_rate_out,
       max(number) FILTER (WHERE knob = 'merge_byte_rate_out') AS merge_byte_rate_out,
       max(number) FILTER (WHERE knob = 'load_change_threshold') AS load_change_threshold,
       coalesce(bool_or(stored = 'true') FILTER (WHERE knob = 'strict_pulsar'), false) AS strict_pulsar
  FROM cleave.topic t
  LEFT JOIN cleave.namespace_policy n ON n.namespace = t.namespace
 CROSS JOIN cleave.cluster_policy c
 CROSS JOIN LATERAL (
       SELECT d.knob, held.stored, coalesce(cleave.knob_number(held.stored), cleave.knob_number(d.value)) AS number
         FROM cleave.policy_default d
        CROSS JOIN LATERAL (
              SELECT coalesce(nullif(t.policy -> d.knob, 'null'), nullif(n.policy -> d.knob, 'null'),
                              nullif(c.policy -> d.knob, 'null')) AS stored) held
        WHERE d.knob ~ '^(split|merge)_(msg|byte)_rate_(in|out)$' OR d.knob IN ('load_change_threshold', 'strict_pulsar')) k
 WHERE t.state <> 'deleted'
 GROUP BY t.topic_id;
