-- Whether anybody still has to read a sealed segment, on the segment itself: whoever looks for what a subscription has yet
-- to read finds it by an index, however many segments the topic has had.
--
-- drained_at is set with the last mark that was missing, and taken back with a mark that is taken back. A subscription that
-- is deleted sets nothing: what it alone had not read is found and passed over until something is marked.
ALTER TABLE cleave.segment ADD COLUMN drained_at timestamptz
    CONSTRAINT segment_drained_only_sealed CHECK (drained_at IS NULL OR state = 'SEALED');
COMMENT ON COLUMN cleave.segment.drained_at IS
    'Since when every live subscription has read the segment to its end. NULL: one has not, or nobody has looked.';

COMMENT ON CONSTRAINT segment_drained_only_sealed ON cleave.segment IS
    'Only what is sealed can be read to its end; seal the segment first.';

CREATE FUNCTION cleave.awaits_reader(of_topic bigint, of_segment bigint, sealed bigint) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM cleave.subscription u
         WHERE u.topic_id = of_topic AND u.state = 'live' AND u.created_epoch < sealed
           AND NOT EXISTS (SELECT FROM cleave.segment_drain d
                            WHERE d.topic_id = of_topic AND d.subscription = u.name AND d.segment_id = of_segment))
$$;
COMMENT ON FUNCTION cleave.awaits_reader IS
    'Whether a live subscription, older than the seal (an epoch), has not read the segment to its end.';

UPDATE cleave.segment SET drained_at = clock_timestamp()
 WHERE state = 'SEALED' AND pruned_epoch IS NULL AND NOT cleave.awaits_reader(topic_id, segment_id, sealed_epoch);

CREATE FUNCTION cleave.on_drain_marked() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE cleave.segment s SET drained_at = clock_timestamp()
      FROM (SELECT DISTINCT topic_id, segment_id FROM added) a
     WHERE s.topic_id = a.topic_id AND s.segment_id = a.segment_id AND s.drained_at IS NULL
       AND NOT cleave.awaits_reader(s.topic_id, s.segment_id, s.sealed_epoch);
    RETURN NULL;
END $$;
CREATE TRIGGER segment_drain_insert AFTER INSERT ON cleave.segment_drain REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION cleave.on_drain_marked();

CREATE FUNCTION cleave.on_drain_taken_back() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE cleave.segment s SET drained_at = NULL
      FROM (SELECT DISTINCT topic_id, segment_id FROM removed) r
     WHERE s.topic_id = r.topic_id AND s.segment_id = r.segment_id AND s.drained_at IS NOT NULL
       AND cleave.awaits_reader(s.topic_id, s.segment_id, s.sealed_epoch);
    RETURN NULL;
END $$;
CREATE TRIGGER segment_drain_delete AFTER DELETE ON cleave.segment_drain REFERENCING OLD TABLE AS removed
    FOR EACH STATEMENT EXECUTE FUNCTION cleave.on_drain_taken_back();

CREATE FUNCTION cleave.on_subscription_insert() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- As a rule a subscription begins at the topic's present epoch, and nothing was sealed after that.
    IF NEW.created_epoch < (SELECT epoch FROM cleave.topic WHERE topic_id = NEW.topic_id) THEN
        UPDATE cleave.segment SET drained_at = NULL
         WHERE topic_id = NEW.topic_id AND sealed_epoch > NEW.created_epoch AND drained_at IS NOT NULL;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER subscription_insert AFTER INSERT ON cleave.subscription
    FOR EACH ROW EXECUTE FUNCTION cleave.on_subscription_insert();

CREATE INDEX segment_unread ON cleave.segment (topic_id, sealed_epoch)
 WHERE state = 'SEALED' AND pruned_epoch IS NULL AND drained_at IS NULL;
