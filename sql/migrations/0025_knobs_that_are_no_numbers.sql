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
       max(number) FILTER (WHERE knob = 'load_change_threshold') AS load_change_threshold
  FROM cleave.topic t
  LEFT JOIN cleave.namespace_policy n ON n.namespace = t.namespace
 CROSS JOIN cleave.cluster_policy c
 CROSS JOIN LATERAL (
       SELECT d.knob,
              coalesce(cleave.knob_number(coalesce(nullif(t.policy -> d.knob, 'null'), nullif(n.policy -> d.knob, 'null'),
                                                   nullif(c.policy -> d.knob, 'null'))),
                       cleave.knob_number(d.value)) AS number
         FROM cleave.policy_default d
        WHERE d.knob ~ '^(split|merge)_(msg|byte)_rate_(in|out)$' OR d.knob = 'load_change_threshold') k
 WHERE t.state <> 'deleted'
 GROUP BY t.topic_id;
