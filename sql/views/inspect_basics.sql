-- What the other files of views stand on (they are read in the order of their names), and the list of topics.
-- Schema "inspect" is rebuilt by every migration: nothing but people and their dashboards may depend on it.

CREATE FUNCTION inspect.hash_range_text(range_start integer, range_end integer) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN
    lpad(to_hex(range_start), 4, '0') || '-' || lpad(to_hex(range_end), 4, '0');
COMMENT ON FUNCTION inspect.hash_range_text IS 'A hash range as Cleave and Pulsar write it: 0000-7fff.';

CREATE VIEW inspect.topics AS
SELECT t.name AS topic, t.topic_id, t.namespace, t.state, t.data_plane, t.epoch,
       (SELECT count(*) FROM cleave.segment s WHERE s.topic_id = t.topic_id AND s.state = 'ACTIVE') AS active_segments,
       (SELECT count(*) FROM cleave.segment s
         WHERE s.topic_id = t.topic_id AND s.state = 'SEALED' AND s.pruned_epoch IS NULL) AS sealed_segments,
       (SELECT count(*) FROM cleave.operation o
         WHERE o.topic_id = t.topic_id AND o.finished_at IS NULL) AS live_operations,
       t.last_split_at, t.last_merge_at, t.last_rebucket_at, t.created_at, t.deleted_at, t.properties, t.policy
  FROM cleave.topic t;
COMMENT ON VIEW inspect.topics IS 'Every topic, deleted ones included: state, epoch and counts.';
