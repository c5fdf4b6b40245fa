-- Views of layouts: present and past segments, layout changes, and lineage.

CREATE VIEW inspect.layout_now AS
SELECT t.name AS topic, t.topic_id, t.epoch, s.segment_id,
       inspect.hash_range_text(s.range_start, s.range_end) AS hash_range, s.range_start, s.range_end,
       round((s.range_end - s.range_start + 1) * 100 / 65536.0, 3) AS ring_percent,
       cardinality(s.bucket_splits) + 1 AS buckets, s.merge_depth,
       ARRAY(SELECT p.parent_id FROM cleave.segment_parent p
              WHERE p.topic_id = s.topic_id AND p.child_id = s.segment_id ORDER BY p.ordinal) AS parents,
       s.created_epoch, s.created_at,
       (SELECT o.operation_id FROM cleave.operation_parent o
         WHERE o.topic_id = s.topic_id AND o.segment_id = s.segment_id AND o.live) AS busy_in_operation,
       s.backing_topic
  FROM cleave.topic t
  JOIN cleave.segment s ON s.topic_id = t.topic_id AND s.state = 'ACTIVE'
 WHERE t.state <> 'deleted';
COMMENT ON VIEW inspect.layout_now IS 'The ACTIVE segments of each topic; they tile the ring 0000-ffff.';

CREATE VIEW inspect.segments AS
SELECT t.name AS topic, t.topic_id, s.segment_id, inspect.hash_range_text(s.range_start, s.range_end) AS hash_range, s.state,
       cardinality(s.bucket_splits) + 1 AS buckets, s.merge_depth,
       ARRAY(SELECT p.parent_id FROM cleave.segment_parent p
              WHERE p.topic_id = s.topic_id AND p.child_id = s.segment_id ORDER BY p.ordinal) AS parents,
       ARRAY(SELECT p.child_id FROM cleave.segment_parent p
              WHERE p.topic_id = s.topic_id AND p.parent_id = s.segment_id ORDER BY p.child_id) AS children,
       s.created_epoch, s.created_at, s.sealed_epoch, s.sealed_at, s.pruned_epoch, s.pruned_at, s.range_start, s.range_end,
       s.bucket_splits, s.backing_topic, s.legacy_topic_name, t.state AS topic_state
  FROM cleave.topic t
  JOIN cleave.segment s USING (topic_id);
COMMENT ON VIEW inspect.segments IS
    'One row per segment that ever existed, also of deleted topics, with its parents and children.';

CREATE VIEW inspect.layout_changes AS
SELECT t.name AS topic, t.topic_id, c.epoch, c.committed_at, c.kind,
       ARRAY(SELECT s.segment_id FROM cleave.segment s
              WHERE s.topic_id = c.topic_id AND s.sealed_epoch = c.epoch ORDER BY s.segment_id) AS sealed,
       ARRAY(SELECT s.segment_id FROM cleave.segment s
              WHERE s.topic_id = c.topic_id AND s.created_epoch = c.epoch ORDER BY s.segment_id) AS created,
       ARRAY(SELECT s.segment_id FROM cleave.segment s
              WHERE s.topic_id = c.topic_id AND s.pruned_epoch = c.epoch ORDER BY s.segment_id) AS pruned,
       c.origin, c.actor, c.reason, c.operation_id, c.mirrored_from
  FROM cleave.layout_change c
  JOIN cleave.topic t USING (topic_id);
COMMENT ON VIEW inspect.layout_changes IS 'History of layouts, one row per epoch: kind of change, actor and reason.';

CREATE VIEW inspect.uncovered_ranges AS
SELECT t.name AS topic, t.topic_id, t.state, t.epoch,
       inspect.hash_range_text(lower(gap), upper(gap) - 1) AS hash_range, lower(gap) AS range_start, upper(gap) - 1 AS range_end
  FROM cleave.topic t
 CROSS JOIN LATERAL (
       SELECT range_agg(int4range(s.range_start, s.range_end, '[]')) AS ranges
         FROM cleave.segment s WHERE s.topic_id = t.topic_id AND s.state = 'ACTIVE') covered
 CROSS JOIN LATERAL unnest(int4multirange(int4range(0, 65536)) - coalesce(covered.ranges, '{}')) AS gap
 WHERE t.state IN ('live', 'deleting');
COMMENT ON VIEW inspect.uncovered_ranges IS 'Hashes that no ACTIVE segment owns. Must be empty: a row is an incident.';

-- Several topics may have had the name in turn. Segment ids continue within a name, so name and id identify one segment.
CREATE FUNCTION inspect.lineage(topic text, segment bigint)
RETURNS TABLE (
    segment_id bigint, depth integer, relation text, hash_range text, state text, parents bigint[],
    created_epoch bigint, created_at timestamptz, sealed_epoch bigint, sealed_at timestamptz, pruned_at timestamptz,
    made_by text, operation_id bigint, origin text, actor text, reason text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE origin_row AS (
        SELECT s.topic_id, s.segment_id FROM cleave.topic t JOIN cleave.segment s USING (topic_id)
         WHERE t.name = lineage.topic AND s.segment_id = lineage.segment
    ), ancestor AS (
        SELECT topic_id, segment_id, 0 AS depth FROM origin_row
        UNION
        SELECT p.topic_id, p.parent_id, a.depth - 1
          FROM ancestor a JOIN cleave.segment_parent p ON p.topic_id = a.topic_id AND p.child_id = a.segment_id
    ), descendant AS (
        SELECT topic_id, segment_id, 0 AS depth FROM origin_row
        UNION
        SELECT p.topic_id, p.child_id, d.depth + 1
          FROM descendant d JOIN cleave.segment_parent p ON p.topic_id = d.topic_id AND p.parent_id = d.segment_id
    ), relative AS (
        SELECT topic_id, segment_id, max(depth) AS depth FROM ancestor GROUP BY topic_id, segment_id
        UNION
        SELECT topic_id, segment_id, min(depth) FROM descendant GROUP BY topic_id, segment_id
    )
    SELECT s.segment_id, r.depth,
           CASE sign(r.depth) WHEN -1 THEN 'ancestor' WHEN 1 THEN 'descendant' ELSE 'itself' END,
           s.hash_range, s.state, s.parents, s.created_epoch, s.created_at, s.sealed_epoch, s.sealed_at, s.pruned_at,
           c.kind, c.operation_id, c.origin, c.actor, c.reason
      FROM relative r
      JOIN inspect.segments s USING (topic_id, segment_id)
      LEFT JOIN cleave.layout_change c ON c.topic_id = s.topic_id AND c.epoch = s.created_epoch
     ORDER BY r.depth, s.range_start, s.segment_id
$$;
COMMENT ON FUNCTION inspect.lineage IS
    'Ancestors (depth < 0) and descendants (depth > 0) of a segment, including pruned segments; depth is the shortest distance.';

-- The segments of a past layout follow from the three epochs that each segment stores: created, sealed and pruned.
CREATE FUNCTION inspect.layout_of(of_topic_id bigint, at_epoch bigint)
RETURNS TABLE (
    epoch bigint, segment_id bigint, hash_range text, state text, range_start integer, range_end integer,
    buckets integer, parents bigint[], created_epoch bigint, sealed_epoch bigint, backing_topic text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT at_epoch, s.segment_id, s.hash_range, CASE WHEN s.sealed_epoch <= at_epoch THEN 'SEALED' ELSE 'ACTIVE' END,
           s.range_start, s.range_end, s.buckets, s.parents, s.created_epoch,
           CASE WHEN s.sealed_epoch <= at_epoch THEN s.sealed_epoch END, s.backing_topic
      FROM inspect.segments s
     WHERE s.topic_id = of_topic_id AND s.created_epoch <= at_epoch
       AND (s.pruned_epoch IS NULL OR s.pruned_epoch > at_epoch)
     ORDER BY s.range_start, s.segment_id
$$;
COMMENT ON FUNCTION inspect.layout_of IS 'The layout of one topic row at an epoch; layout_at finds the row by name.';

CREATE FUNCTION inspect.layout_at(topic text, instant timestamptz)
RETURNS TABLE (
    epoch bigint, segment_id bigint, hash_range text, state text, range_start integer, range_end integer,
    buckets integer, parents bigint[], created_epoch bigint, sealed_epoch bigint, backing_topic text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT layout.*
      FROM (SELECT c.topic_id, c.epoch FROM cleave.topic t JOIN cleave.layout_change c USING (topic_id)
             WHERE t.name = layout_at.topic AND c.committed_at <= layout_at.instant
             ORDER BY c.committed_at DESC LIMIT 1) then_in_force
     CROSS JOIN LATERAL inspect.layout_of(then_in_force.topic_id, then_in_force.epoch) AS layout
$$;
COMMENT ON FUNCTION inspect.layout_at(text, timestamptz) IS
    'The layout in force at a time; no rows before the first layout of the topic. Write the time as timestamptz ''...''.';

CREATE FUNCTION inspect.layout_at(topic text, at_epoch bigint)
RETURNS TABLE (
    epoch bigint, segment_id bigint, hash_range text, state text, range_start integer, range_end integer,
    buckets integer, parents bigint[], created_epoch bigint, sealed_epoch bigint, backing_topic text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT layout.*
      FROM (SELECT t.topic_id FROM cleave.topic t JOIN cleave.layout_change c USING (topic_id)
             WHERE t.name = layout_at.topic AND c.epoch = layout_at.at_epoch ORDER BY t.topic_id DESC LIMIT 1) newest
     CROSS JOIN LATERAL inspect.layout_of(newest.topic_id, layout_at.at_epoch) AS layout
$$;
COMMENT ON FUNCTION inspect.layout_at(text, bigint) IS
    'The layout at an epoch of the newest topic of that name that had the epoch; no rows for an epoch that never existed.';
