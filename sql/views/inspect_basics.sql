-- Functions that the views use, the list of migrations, and the list of topics.
-- `cleave migrate` rebuilds schema "inspect" if its files or the tables change. A view of another owner that depends on it stops the rebuild.

CREATE FUNCTION inspect.hash_range_text(range_start integer, range_end integer) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN
    lpad(to_hex(range_start), 4, '0') || '-' || lpad(to_hex(range_end), 4, '0');
COMMENT ON FUNCTION inspect.hash_range_text IS 'A hash range in the notation of Cleave and Pulsar: 0000-7fff.';

-- Murmur3 x86 32-bit, seed 0, over the UTF-8 bytes, as clients compute it (controller/domain/key_hash.py). A product of two 32-bit
-- numbers does not fit a bigint, so the function multiplies the halves of the first number separately.
CREATE FUNCTION inspect.times_32(a bigint, b bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE STRICT RETURN
    (((((a >> 16) * b) & 65535) << 16) + (a & 65535) * b) & 4294967295;
COMMENT ON FUNCTION inspect.times_32 IS 'The low 32 bits of a product; a part of hash_of.';

CREATE FUNCTION inspect.hash_of(key text) RETURNS integer
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    bytes  bytea  := convert_to(key, 'UTF8');
    size   bigint := length(bytes);
    hash   bigint := 0;
    word   bigint;
BEGIN
    FOR at IN 0 .. (size - 1) / 4 LOOP
        EXIT WHEN at * 4 >= size;
        word := 0;
        FOR place IN 0 .. least(3, size - at * 4 - 1) LOOP
            word := word | (get_byte(bytes, (at * 4 + place)::integer)::bigint << (8 * place)::integer);
        END LOOP;
        word := inspect.times_32(word, 3432918353);
        word := ((word << 15) | (word >> 17)) & 4294967295;
        hash := hash # inspect.times_32(word, 461845907);
        CONTINUE WHEN at * 4 + 3 >= size;  -- the tail, which is shorter than a word, skips the rest of the mixing
        hash := ((hash << 13) | (hash >> 19)) & 4294967295;
        hash := (hash * 5 + 3864292196) & 4294967295;
    END LOOP;
    hash := hash # size;
    hash := inspect.times_32(hash # (hash >> 16), 2246822507);
    hash := inspect.times_32(hash # (hash >> 13), 3266489909);
    RETURN (hash # (hash >> 16)) >> 16;
END $$;
COMMENT ON FUNCTION inspect.hash_of IS
    'Hash of a key, 0 to 65535, as producers compute it: the key belongs to the segment with range_start <= hash_of(key) <= range_end.';

CREATE VIEW inspect.migrations AS
SELECT m.name, m.applied_at, m.applied_by, m.checksum FROM cleave.migration m;
COMMENT ON VIEW inspect.migrations IS 'Files of the schema that were applied to this database; `views` means all files of schema inspect.';

CREATE VIEW inspect.topics AS
SELECT t.name AS topic, t.topic_id, t.namespace, t.state, t.data_plane, t.epoch,
       (SELECT count(*) FROM cleave.segment s WHERE s.topic_id = t.topic_id AND s.state = 'ACTIVE') AS active_segments,
       (SELECT count(*) FROM cleave.segment s
         WHERE s.topic_id = t.topic_id AND s.state = 'SEALED' AND s.pruned_epoch IS NULL) AS sealed_segments,
       (SELECT count(*) FROM cleave.operation o
         WHERE o.topic_id = t.topic_id AND o.finished_at IS NULL) AS live_operations,
       t.last_split_at, t.last_merge_at, t.last_rebucket_at, t.last_consumer_act_at, t.created_at, t.deleted_at, t.properties, t.policy,
       t.next_segment_id
  FROM cleave.topic t;
COMMENT ON VIEW inspect.topics IS 'One row per topic, including deleted topics: state, epoch and counts.';
