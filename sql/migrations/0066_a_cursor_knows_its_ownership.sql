-- A part of an embedded cursor remembers under which ownership of its bucket it was taken last: the origin and the generation of the
-- assignment. Whoever comes with an older one is a process that was stopped on its way, and takes nothing from the owner of today.
ALTER TABLE embedded.cursor
    ADD COLUMN owned_origin     bigint,
    ADD COLUMN owned_generation bigint,
    ADD CONSTRAINT cursor_ownership_whole CHECK ((owned_origin IS NULL) = (owned_generation IS NULL));
COMMENT ON COLUMN embedded.cursor.owned_origin IS 'Of the newest ownership under which it was taken; NULL where none was ever named.';
COMMENT ON CONSTRAINT cursor_ownership_whole ON embedded.cursor IS 'An ownership is an origin and a generation.';

CREATE OR REPLACE FUNCTION embedded.divide_part(of_log_id bigint, of_subscription text, at integer) RETURNS void LANGUAGE sql AS $$
    WITH whole AS (
        SELECT last_hash, position, owned_origin, owned_generation FROM embedded.cursor
         WHERE log_id = of_log_id AND subscription = of_subscription AND first_hash < at AND at <= last_hash
    ), lower AS (
        UPDATE embedded.cursor SET last_hash = at - 1
         WHERE log_id = of_log_id AND subscription = of_subscription AND first_hash < at AND at <= last_hash)
    INSERT INTO embedded.cursor (log_id, subscription, first_hash, last_hash, position, generation, owned_origin, owned_generation)
    SELECT of_log_id, of_subscription, at, last_hash, position, nextval('embedded.generation'), owned_origin, owned_generation
      FROM whole;
$$;

-- Make one part of all parts of a generation, if they are at one position. They are locked. The newest of their ownerships is its own.
CREATE OR REPLACE FUNCTION embedded.join_parts(of_log_id bigint, of_subscription text, of_generation bigint)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    parts  record;
    newest record;
BEGIN
    SELECT min(first_hash) AS first_hash, max(last_hash) AS last_hash, sum(msg_out) AS msg_out, sum(byte_out) AS byte_out
      INTO parts
      FROM embedded.cursor
     WHERE log_id = of_log_id AND subscription = of_subscription AND generation = of_generation
    HAVING count(*) > 1 AND min(position) = max(position);
    IF FOUND THEN
        SELECT owned_origin, owned_generation INTO newest
          FROM embedded.cursor
         WHERE log_id = of_log_id AND subscription = of_subscription AND generation = of_generation
         ORDER BY owned_origin DESC NULLS LAST, owned_generation DESC LIMIT 1;
        DELETE FROM embedded.cursor
         WHERE log_id = of_log_id AND subscription = of_subscription AND generation = of_generation
           AND first_hash > parts.first_hash;
        UPDATE embedded.cursor
           SET last_hash = parts.last_hash, msg_out = parts.msg_out, byte_out = parts.byte_out,
               owned_origin = newest.owned_origin, owned_generation = newest.owned_generation
         WHERE log_id = of_log_id AND subscription = of_subscription AND first_hash = parts.first_hash;
    END IF;
END $$;

-- Take the part of a cursor that has the hashes `low` to `high`, all of it or nothing.
-- Answers taken | held (by `holder`, which lives) | stale (a piece was taken under a newer ownership, by `holder` if it still reads)
-- | missing (no such log) | unsubscribed (no such cursor).
-- Whoever held a piece of it loses all that it held. What is outside the range is nobody's then. Without an ownership none is looked at.
DROP FUNCTION embedded.take(text, text, text, text[], integer, integer);
CREATE FUNCTION embedded.take(
    log_name text, of_subscription text, new_owner text, live_owners text[], low integer, high integer,
    of_origin bigint DEFAULT NULL, of_generation bigint DEFAULT NULL,
    OUT outcome text, OUT log_id bigint, OUT generation bigint, OUT start bigint, OUT holder text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    of_log_id bigint;
    lost      bigint[];
BEGIN
    SELECT l.log_id INTO of_log_id FROM embedded.log l WHERE l.name = log_name FOR KEY SHARE;
    log_id := of_log_id;
    IF of_log_id IS NULL THEN
        outcome := 'missing';
        RETURN;
    ELSIF NOT embedded.lock_parts(of_log_id, of_subscription) THEN
        outcome := 'unsubscribed';
        RETURN;
    END IF;
    SELECT c.owner INTO holder FROM embedded.cursor c
     WHERE c.log_id = of_log_id AND c.subscription = of_subscription AND c.first_hash <= high AND c.last_hash >= low
       AND (c.owned_origin, c.owned_generation) > (of_origin, of_generation)
     ORDER BY c.first_hash LIMIT 1;
    IF FOUND THEN
        outcome := 'stale';
        RETURN;
    END IF;
    SELECT c.owner INTO holder FROM embedded.cursor c
     WHERE c.log_id = of_log_id AND c.subscription = of_subscription AND c.first_hash <= high AND c.last_hash >= low
       AND c.owner <> new_owner AND c.owner = ANY (live_owners)
     ORDER BY c.first_hash LIMIT 1;
    IF holder IS NOT NULL THEN
        outcome := 'held';
        RETURN;
    END IF;
    lost := ARRAY(SELECT c.generation FROM embedded.cursor c
                   WHERE c.log_id = of_log_id AND c.subscription = of_subscription
                     AND c.first_hash <= high AND c.last_hash >= low AND c.owner IS NOT NULL);
    IF cardinality(lost) > 0 THEN
        UPDATE embedded.cursor c SET owner = NULL, generation = nextval('embedded.generation')
         WHERE c.log_id = of_log_id AND c.subscription = of_subscription AND c.generation = ANY (lost);
        PERFORM pg_notify('embedded_arrivals', of_log_id::text);
    END IF;
    PERFORM embedded.divide_part(of_log_id, of_subscription, low);
    PERFORM embedded.divide_part(of_log_id, of_subscription, high + 1);
    generation := nextval('embedded.generation');
    UPDATE embedded.cursor c
       SET owner = new_owner, generation = take.generation,
           owned_origin = coalesce(of_origin, c.owned_origin), owned_generation = coalesce(of_generation, c.owned_generation)
     WHERE c.log_id = of_log_id AND c.subscription = of_subscription AND c.first_hash BETWEEN low AND high;
    PERFORM embedded.join_parts(of_log_id, of_subscription, take.generation);
    SELECT min(c.position) INTO start FROM embedded.cursor c
     WHERE c.log_id = of_log_id AND c.subscription = of_subscription AND c.generation = take.generation;
    outcome := 'taken';
END $$;
REVOKE EXECUTE ON FUNCTION embedded.take(text, text, text, text[], integer, integer, bigint, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION embedded.take(text, text, text, text[], integer, integer, bigint, bigint) TO cleave_controller, cleave_client;
