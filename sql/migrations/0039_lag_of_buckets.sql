-- Messages of each bucket that are not acknowledged, by the buckets' first hashes in order (the first one is 0); NULL where there
-- is no such log or cursor. Counts one by one from the lowest position on.
CREATE FUNCTION embedded.backlog_of_buckets(log_name text, of_subscription text, starts integer[]) RETURNS bigint[]
LANGUAGE sql STABLE AS $$
    WITH parts AS (
        SELECT c.log_id, array_agg(c.first_hash ORDER BY c.first_hash) AS firsts,
               array_agg(c.position ORDER BY c.first_hash) AS positions, min(c.position) AS lowest
          FROM embedded.cursor c JOIN embedded.log l USING (log_id)
         WHERE l.name = log_name AND c.subscription = of_subscription GROUP BY c.log_id
    ), counted AS (
        SELECT width_bucket(h.hash, starts) AS at, count(*) AS messages
          FROM parts p JOIN embedded.message m ON m.log_id = p.log_id AND m.log_offset >= p.lowest
         CROSS JOIN LATERAL (SELECT coalesce(m.bucket_hash, embedded.bucket_hash_of(m.key)) AS hash) h
         WHERE m.log_offset >= p.positions[width_bucket(h.hash, p.firsts)] GROUP BY 1
    )
    SELECT ARRAY(SELECT coalesce(c.messages, 0) FROM generate_subscripts(starts, 1) AS i
                   LEFT JOIN counted c ON c.at = i ORDER BY i)
      FROM parts
$$;
REVOKE EXECUTE ON FUNCTION embedded.backlog_of_buckets(text, text, integer[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION embedded.backlog_of_buckets(text, text, integer[]) TO cleave_controller;
