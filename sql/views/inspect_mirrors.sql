-- View of mirrored topics: the age of the mirror, and whether Cleave may act.

CREATE VIEW inspect.mirrors AS
SELECT t.name AS topic, m.topic_id, t.state, t.data_plane, t.epoch, m.paused_reason IS NULL AS acts, m.paused_reason,
       m.policy_before AS auto_scaler_before, m.seen_at,
       round(extract(epoch FROM clock_timestamp() - m.seen_at), 1) AS seen_seconds_ago
  FROM cleave.mirror m
  JOIN cleave.topic t USING (topic_id);
COMMENT ON VIEW inspect.mirrors IS
    'One row per topic whose layout its broker keeps: the mirrored epoch, the time of the last read, and the reason why Cleave does not act, if any.';
