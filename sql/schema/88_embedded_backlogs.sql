-- Counts of unacknowledged messages of embedded logs, and the deletion of messages that every cursor has acknowledged.

-- Return the number of unacknowledged messages; NULL if the log or cursor does not exist. Only messages between the lowest and the
-- highest position of the parts, and the unsettled messages of a queue, are counted one by one. The bounds of the parts are in an array,
-- which is seven times as fast as a lookup per message if the parts are 100,000 messages apart.
CREATE FUNCTION embedded.backlog(log_name text, of_subscription text) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN p.frontier IS NULL THEN
           l.next_offset - p.highest + (
           SELECT count(*) FROM embedded.message m
            WHERE m.log_id = l.log_id AND m.log_offset >= p.lowest AND m.log_offset < p.highest
              AND m.log_offset >= p.positions[width_bucket(m.bucket_hash, p.firsts)])
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

-- Return the number of unacknowledged messages of each bucket, in the order of the buckets' first hashes (the first is 0); NULL if the
-- log or cursor does not exist. Messages from the lowest position on are counted one by one.
CREATE FUNCTION embedded.backlog_of_buckets(log_name text, of_subscription text, starts integer[]) RETURNS bigint[]
LANGUAGE sql STABLE AS $$
    WITH parts AS (
        SELECT c.log_id, array_agg(c.first_hash ORDER BY c.first_hash) AS firsts,
               array_agg(c.position ORDER BY c.first_hash) AS positions, min(c.position) AS lowest
          FROM embedded.cursor c JOIN embedded.log l USING (log_id)
         WHERE l.name = log_name AND c.subscription = of_subscription GROUP BY c.log_id
    ), counted AS (
        SELECT width_bucket(m.bucket_hash, starts) AS at, count(*) AS messages
          FROM parts p JOIN embedded.message m ON m.log_id = p.log_id AND m.log_offset >= p.lowest
         WHERE m.log_offset >= p.positions[width_bucket(m.bucket_hash, p.firsts)] GROUP BY 1
    )
    SELECT ARRAY(SELECT coalesce(c.messages, 0) FROM generate_subscripts(starts, 1) AS i
                   LEFT JOIN counted c ON c.at = i ORDER BY i)
      FROM parts
$$;

-- Check the next `most` logs above `after`. Returns the last of these logs, NULL if there is none, and those logs whose first message is
-- older than `before` and acknowledged by all parts of all cursors.
CREATE FUNCTION embedded.trimmable(after bigint, before timestamptz, most bigint, OUT last bigint, OUT found bigint[])
LANGUAGE sql STABLE AS $$
    SELECT max(l.log_id),
           array_agg(l.log_id ORDER BY l.log_id) FILTER (WHERE
               l.first_offset < l.next_offset
               AND NOT EXISTS (SELECT FROM embedded.cursor c WHERE c.log_id = l.log_id AND c.position <= l.first_offset)
               AND (SELECT m.published_at FROM embedded.message m
                     WHERE m.log_id = l.log_id AND m.log_offset = l.first_offset) < before)
      FROM (SELECT log_id, first_offset, next_offset FROM embedded.log
             WHERE log_id > after ORDER BY log_id LIMIT most) l
$$;

-- Delete up to `most` messages from the front of a log that are older than `before` and acknowledged by all parts of all cursors. Returns
-- the number of deleted messages. The lock keeps cursors from being created or moved; a log that is locked is skipped. Producers that
-- have sent nothing since `before`, and for a day, are deleted, because they no longer repeat a batch.
CREATE FUNCTION embedded.trim_log(of_log_id bigint, before timestamptz, most bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    start bigint;
    mark  bigint;
BEGIN
    SELECT first_offset INTO start FROM embedded.log WHERE log_id = of_log_id FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    mark := least(start + most, embedded.offset_at(of_log_id, before),
                  (SELECT min(position) FROM embedded.cursor WHERE log_id = of_log_id));
    IF mark <= start THEN
        RETURN 0;
    END IF;
    DELETE FROM embedded.message WHERE log_id = of_log_id AND log_offset < mark;
    UPDATE embedded.log SET first_offset = mark WHERE log_id = of_log_id;
    IF mark < start + most THEN
        DELETE FROM embedded.producer WHERE log_id = of_log_id AND used_at < least(before, clock_timestamp() - interval '1 day');
    END IF;
    RETURN mark - start;
END $$;
