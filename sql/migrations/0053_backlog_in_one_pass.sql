-- The backlog of a cursor in parts looked up the part of each message by itself; with its bounds in an array it is told seven times as
-- fast, which counts where the parts are a hundred thousand messages apart.
CREATE OR REPLACE FUNCTION embedded.backlog(log_name text, of_subscription text) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN p.frontier IS NULL THEN
           l.next_offset - p.highest + (
           SELECT count(*) FROM embedded.message m
            WHERE m.log_id = l.log_id AND m.log_offset >= p.lowest AND m.log_offset < p.highest
              AND m.log_offset >= p.positions[width_bucket(coalesce(m.bucket_hash, embedded.bucket_hash_of(m.key)), p.firsts)])
           ELSE l.next_offset - p.frontier + (
           SELECT count(*) FROM embedded.unsettled u WHERE u.log_id = l.log_id AND u.subscription = of_subscription) END
      FROM embedded.log l
     CROSS JOIN LATERAL (SELECT min(position) AS lowest, max(position) AS highest, max(frontier) AS frontier,
                                array_agg(first_hash ORDER BY first_hash) AS firsts,
                                array_agg(position ORDER BY first_hash) AS positions
                           FROM embedded.cursor c
                          WHERE c.log_id = l.log_id AND c.subscription = of_subscription) p
     WHERE l.name = log_name AND p.lowest IS NOT NULL
$$;
