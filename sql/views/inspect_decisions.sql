-- Views of decisions: actions and refusals with their inputs, and the evaluations that are due.

CREATE VIEW inspect.decisions AS
SELECT d.decision_id, t.name AS topic, d.topic_id, d.decided_at, d.epoch, d.lanes, d.decided_by,
       ARRAY(SELECT act ->> 'kind' || ' ' || coalesce(act ->> 'segment_id', (act ->> 'left_id') || '+' || (act ->> 'right_id'),
                    act ->> 'segment_ids') || ' (' || (act ->> 'reason') || ')'
               FROM jsonb_array_elements(d.decisions) AS act) AS acts,
       ARRAY(SELECT o.operation_id FROM cleave.operation o
              WHERE o.topic_id = d.topic_id AND o.decision_id = d.decision_id ORDER BY o.operation_id) AS operations,
       d.decisions, d.refusals, d.valid_until, d.input_version, d.code_version, d.situation::jsonb AS situation
  FROM cleave.decision d
  JOIN cleave.topic t USING (topic_id);
COMMENT ON VIEW inspect.decisions IS
    'The decision log: one row per evaluation with a changed outcome, with its complete input (situation).';

-- A separate view, because jsonb does not keep the exact text of the input, and because lists do not need the text.
CREATE VIEW inspect.decision_inputs AS
SELECT d.decision_id, t.name AS topic, d.topic_id, d.decided_at, d.lanes, d.code_version, d.decisions, d.refusals, d.valid_until,
       d.situation
  FROM cleave.decision d
  JOIN cleave.topic t USING (topic_id);
COMMENT ON VIEW inspect.decision_inputs IS
    'Exact input of each evaluation as text (situation), and its outcome; `cleave decisions replay` repeats the evaluation.';

-- Lanes are evaluated separately, so the newest row of each lane counts. A row without refusals of the lane replaces older refusals.
CREATE VIEW inspect.why_not AS
SELECT t.name AS topic, t.topic_id, lane.lane, d.decided_at, r.refusal ->> 'reason' AS reason,
       (r.refusal ->> 'segment_id')::bigint AS segment_id, (r.refusal ->> 'other_id')::bigint AS other_id,
       r.refusal ->> 'metric' AS metric, (r.refusal ->> 'value')::float8 AS value, (r.refusal ->> 'needed')::float8 AS needed,
       to_timestamp((r.refusal ->> 'not_before')::float8 / 1000) AS not_before,
       lane.version = e.input_version AS is_current, d.decision_id,
       CASE WHEN r.refusal ->> 'metric' ~ '_(at|since)$' THEN to_timestamp((r.refusal ->> 'value')::float8 / 1000) END AS value_at,
       CASE WHEN r.refusal ->> 'metric' ~ '_(at|since)$' THEN to_timestamp((r.refusal ->> 'needed')::float8 / 1000) END AS needed_at
  FROM cleave.topic t
  JOIN cleave.evaluation e USING (topic_id)
 CROSS JOIN LATERAL (VALUES ('consumer', e.consumer_version), ('load', e.load_version), ('merge', e.merge_version))
       AS lane (lane, version)
 CROSS JOIN LATERAL (
       SELECT * FROM cleave.decision n
        WHERE n.topic_id = t.topic_id AND n.lanes @> ARRAY[lane.lane] ORDER BY n.decision_id DESC LIMIT 1) d
 CROSS JOIN LATERAL jsonb_array_elements(d.refusals) AS r (refusal)
 WHERE t.state <> 'deleted' AND coalesce(r.refusal ->> 'lane', lane.lane) = lane.lane;
COMMENT ON VIEW inspect.why_not IS
    'Why no further action is taken on a topic: refusals of its newest evaluation, by lane. is_current: no input has changed since. The figures are those of decided_at, because the same refusal with another value is not written again; with the reason saving-below-price, so are the segments. If the metric is a time, value_at and needed_at hold value and needed as times.';

CREATE VIEW inspect.evaluation_backlog AS
SELECT t.name AS topic, t.topic_id, lane.lane, e.input_version - lane.version AS changes_behind, lane.due_at,
       nullif(e.not_before, '-infinity') AS not_before, e.not_before > clock_timestamp() AS paused
  FROM cleave.evaluation e
  JOIN cleave.topic t USING (topic_id)
 CROSS JOIN LATERAL (VALUES ('consumer', e.consumer_version, e.consumer_due), ('load', e.load_version, e.load_due),
                            ('merge', e.merge_version, e.merge_due)) AS lane (lane, version, due_at)
 WHERE t.state = 'live' AND (lane.version < e.input_version OR lane.due_at <= clock_timestamp());
COMMENT ON VIEW inspect.evaluation_backlog IS
    'Topics that are due for an evaluation, by lane, because an input has changed or a time has come; not_before pauses a topic after an abort.';
