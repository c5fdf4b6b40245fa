-- Reading an embedded log at a position that the application stores.

-- Return the bounds of a log, and the offset at which to continue after a stored position: the next offset, or the offset at which the
-- history of the log departs from that of the position, which is the first message of a later timeline, or the end of the log. `timeline`
-- is that of the message before `start`.
CREATE FUNCTION embedded.open_at(
    log_name text, of_offset bigint, of_timeline bigint,
    OUT log_id bigint, OUT first_offset bigint, OUT next_offset bigint, OUT start bigint, OUT timeline bigint
) RETURNS SETOF record LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT l.log_id, l.first_offset, l.next_offset, f.start, embedded.timeline_before(l.log_id, f.start)
      FROM embedded.log l
     CROSS JOIN LATERAL (
           SELECT least(of_offset + 1, CASE WHEN of_timeline IS NOT NULL THEN coalesce(
                  (SELECT min(t.first_offset) FROM embedded.timeline t WHERE t.log_id = l.log_id AND t.timeline > of_timeline),
                  l.next_offset) END) AS start) f
     WHERE l.name = log_name
$$;

-- Return the next messages from an offset on: up to `most` messages and about `most_bytes` bytes. The last row has no payload; it holds
-- the offset of the next read, the first offset of the log, and whether the log is terminated and read to its end. Returns no row if the
-- log does not exist, or, for an older client (without a timeline), if the log ends before the offset. The last row has no offset if the
-- log does not have the message before `from_offset` in `of_timeline`. A restored database may assign the log's id to another log, so
-- the name is compared. The function is STABLE, so that one snapshot distinguishes trimmed messages from messages that never existed.
-- The limits are those of `read`.
CREATE FUNCTION embedded.read_at(
    of_log_id bigint, from_offset bigint, most integer, most_bytes bigint, of_timeline bigint DEFAULT NULL, log_name text DEFAULT NULL
) RETURNS TABLE (
    log_offset bigint, published_at timestamptz, key bytea, payload bytea, metadata jsonb, first_offset bigint, is_at_end boolean,
    timelines bigint[]
) LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    target embedded.log;
    before record;
    bytes  bigint := 0;
    metadata_size integer;
    given  integer := 0;
    upto   bigint := from_offset;
BEGIN
    most := least(most, 10000);
    most_bytes := least(most_bytes, 16777216);
    IF (from_offset >= 0 AND most >= 0 AND most_bytes >= 0) IS NOT TRUE THEN
        RAISE EXCEPTION 'a read of % messages and % bytes from % on; give 0 or more', most, most_bytes, from_offset
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT * INTO target FROM embedded.log l WHERE l.log_id = of_log_id AND l.name = coalesce(log_name, l.name);
    IF NOT FOUND OR (of_timeline IS NULL AND from_offset > target.next_offset) THEN
        RETURN;
    END IF;
    SELECT t.first_offset, t.timeline INTO before FROM embedded.timeline t
     WHERE t.log_id = of_log_id AND t.first_offset < from_offset ORDER BY t.first_offset DESC LIMIT 1;
    IF from_offset > target.next_offset OR of_timeline <> coalesce(before.timeline, 0) THEN
        RETURN NEXT;
        RETURN;
    END IF;
    FOR log_offset, published_at, key, payload, metadata, metadata_size IN
        SELECT m.log_offset, m.published_at, m.key, m.payload, m.metadata, m.metadata_bytes FROM embedded.message m
         WHERE m.log_id = of_log_id AND m.log_offset >= from_offset AND m.log_offset < from_offset + most
         ORDER BY m.log_offset
    LOOP
        bytes := bytes + octet_length(read_at.payload) + coalesce(octet_length(read_at.key), 0) + coalesce(metadata_size, 0);
        EXIT WHEN given > 0 AND bytes > most_bytes;
        given := given + 1;
        upto := read_at.log_offset + 1;
        RETURN NEXT;
    END LOOP;
    log_offset := upto;
    published_at := NULL; key := NULL; payload := NULL; metadata := NULL;
    first_offset := target.first_offset;
    is_at_end := target.terminated_at IS NOT NULL AND upto >= target.next_offset;
    IF upto > from_offset THEN
        SELECT array_agg(ARRAY[t.first_offset, t.timeline] ORDER BY t.first_offset) INTO timelines FROM embedded.timeline t
         WHERE t.log_id = of_log_id AND t.first_offset >= coalesce(before.first_offset, 0) AND t.first_offset < upto;
    END IF;
    RETURN NEXT;
END $$;
