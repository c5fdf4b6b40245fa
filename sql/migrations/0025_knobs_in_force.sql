-- What is stored of a knob: by the topic, else the namespace, else the cluster. JSON's null is the same as absent.
CREATE FUNCTION cleave.knob_stored(knob text, topic jsonb, namespace jsonb, cluster jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce(nullif(topic -> knob, 'null'), nullif(namespace -> knob, 'null'), nullif(cluster -> knob, 'null'));
COMMENT ON FUNCTION cleave.knob_stored IS 'The value of the nearest level that sets the knob; NULL where none does, so that its default counts.';

-- A stored knob need not be a number that float8 can hold: a newer program or a hand wrote it. The evaluator leaves such a
-- topic alone; for its load records the default of the knob counts, so that the run goes on for all others.
CREATE FUNCTION cleave.knob_number(value jsonb) RETURNS float8
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN jsonb_typeof(value) = 'number' THEN
        CASE WHEN abs(CAST(value AS numeric)) > 1.7976931348623157e308 THEN NULL
             WHEN abs(CAST(value AS numeric)) < 1e-300 THEN 0
             ELSE CAST(value AS float8) END
    WHEN value IN ('"Infinity"', '"-Infinity"', '"NaN"') THEN CAST(value #>> '{}' AS float8)
END;
COMMENT ON FUNCTION cleave.knob_number IS 'The number that a knob holds, Infinity and NaN as text included; NULL where it holds none that fits.';

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
        CROSS JOIN LATERAL (SELECT cleave.knob_stored(d.knob, t.policy, n.policy, c.policy) AS stored) held
        WHERE d.knob ~ '^(split|merge)_(msg|byte)_rate_(in|out)$' OR d.knob IN ('load_change_threshold', 'strict_pulsar')) k
 WHERE t.state <> 'deleted'
 GROUP BY t.topic_id;
