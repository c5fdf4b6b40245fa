-- A restore or an asynchronous fail-over leaves a database that is older than the logs of its topics. Each operation has a token that the
-- logs it creates carry, so that a log is deleted only by the journal that created it. Each topic remembers the database under which its
-- logs were last compared with the journal; another database, or a restarted server, has to compare them again before it acts.

-- Inspectors may not look into schema cleave, and read the identity in views.
CREATE FUNCTION cleave.database_identity() RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT concat_ws('/', c.system_identifier,
                     CASE WHEN pg_is_in_recovery() THEN 'standby' ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END,
                     (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()), pg_relation_filenode('cleave.topic'),
                     (extract(epoch FROM pg_postmaster_start_time()) * 1000)::bigint)
      FROM pg_control_system() c
$$;
COMMENT ON FUNCTION cleave.database_identity() IS
    'System identifier, timeline, database, file of the topics and start of the server: differs after a restart, a promotion or a restore.';
REVOKE EXECUTE ON FUNCTION cleave.database_identity() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION cleave.database_identity() TO cleave_controller, cleave_inspector;

ALTER TABLE cleave.operation ADD COLUMN token uuid;
ALTER TABLE cleave.operation ALTER COLUMN token SET DEFAULT gen_random_uuid();
COMMENT ON COLUMN cleave.operation.token IS
    'Stored with each log that the operation creates; NULL for operations from before tokens were recorded.';

ALTER TABLE cleave.topic
    ADD COLUMN verified_under text DEFAULT cleave.database_identity(),
    ADD COLUMN held_reason text,
    ADD COLUMN held_at timestamptz,
    ADD CONSTRAINT topic_hold_is_dated CHECK ((held_reason IS NULL) = (held_at IS NULL));
COMMENT ON COLUMN cleave.topic.verified_under IS
    'Database identity under which the logs of the topic were last compared with the journal; NULL: a comparison was requested.';
COMMENT ON COLUMN cleave.topic.held_reason IS
    'Evidence that the logs are ahead of the journal; nothing acts on the topic until it is recovered. NULL: the topic is not held.';
COMMENT ON COLUMN cleave.topic.held_at IS 'Time at which the topic was held; NULL: the topic is not held.';
COMMENT ON CONSTRAINT topic_hold_is_dated ON cleave.topic IS 'A held topic has a reason and a time, any other topic neither.';
CREATE INDEX topic_by_verification ON cleave.topic (verified_under, topic_id) WHERE state <> 'deleted';

ALTER TABLE cleave.layout_change
    DROP CONSTRAINT layout_change_kind_known,
    ADD CONSTRAINT layout_change_kind_known CHECK (kind IN ('create', 'split', 'merge', 'rebucket', 'recut', 'heal', 'prune', 'adopt',
                                                            'mirrored', 'detach', 'delete', 'recover'));
COMMENT ON CONSTRAINT layout_change_kind_known ON cleave.layout_change IS
    'Unknown kind of layout change: a newer version wrote it; upgrade this program.';

CREATE OR REPLACE FUNCTION cleave.layout_change_before_insert() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE previous cleave.layout_change;
BEGIN
    SELECT * INTO previous FROM cleave.layout_change WHERE topic_id = NEW.topic_id ORDER BY epoch DESC LIMIT 1;
    IF FOUND AND NEW.kind NOT IN ('mirrored', 'recover') AND NEW.epoch <> previous.epoch + 1 THEN
        RAISE EXCEPTION 'The epoch of topic % rises by exactly 1: % cannot follow %.', NEW.topic_id, NEW.epoch, previous.epoch
            USING ERRCODE = 'check_violation', CONSTRAINT = 'layout_change_epoch_by_one';
    ELSIF FOUND AND NEW.epoch <= previous.epoch THEN
        RAISE EXCEPTION 'The epoch of topic % only rises: % cannot follow %.', NEW.topic_id, NEW.epoch, previous.epoch
            USING ERRCODE = 'check_violation', CONSTRAINT = 'layout_change_epoch_by_one';
    ELSIF NOT FOUND AND NEW.epoch <> 0 AND NEW.kind NOT IN ('mirrored', 'delete', 'recover') THEN
        RAISE EXCEPTION 'The first epoch of topic % is 0, not %.', NEW.topic_id, NEW.epoch
            USING ERRCODE = 'check_violation', CONSTRAINT = 'layout_change_epoch_by_one';
    END IF;
    NEW.committed_at := greatest(clock_timestamp(), previous.committed_at + interval '1 microsecond');
    RETURN NEW;
END $$;

ALTER TABLE cleave.tombstone
    ADD COLUMN discards_unread boolean NOT NULL DEFAULT false,
    ADD COLUMN drained_for text[] NOT NULL DEFAULT '{}',
    ADD COLUMN kept_because text,
    ADD CONSTRAINT tombstone_kept_is_closed CHECK (kept_because IS NULL OR closed_at IS NOT NULL);
COMMENT ON COLUMN cleave.tombstone.discards_unread IS 'A person requested the deletion of the topic with everything in it.';
COMMENT ON COLUMN cleave.tombstone.drained_for IS
    'Subscriptions recorded to have read the segment to its end when the segment was pruned, whatever a broker lost of their acknowledgements.';
COMMENT ON COLUMN cleave.tombstone.kept_because IS 'Reason for which the log was kept; NULL: the log is deleted, or still to be deleted.';
COMMENT ON CONSTRAINT tombstone_kept_is_closed ON cleave.tombstone IS 'A deletion entry whose log is kept is closed.';

CREATE TABLE cleave.foreign_log (
    data_plane    text NOT NULL,
    backing_topic text NOT NULL,
    topic_id      bigint NOT NULL REFERENCES cleave.topic,
    segment_id    bigint,
    reason        text NOT NULL,
    token         text,
    epoch         bigint,
    unread        bigint,
    found_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (data_plane, backing_topic)
);
COMMENT ON TABLE cleave.foreign_log IS 'One row per log that has the name of a segment and that this journal must not delete.';
COMMENT ON COLUMN cleave.foreign_log.segment_id IS 'Segment id in the name of the log; NULL: the name holds none.';
COMMENT ON COLUMN cleave.foreign_log.reason IS 'Reason for which the log is kept.';
COMMENT ON COLUMN cleave.foreign_log.token IS 'Token stored with the log by the operation that created it; NULL: none.';
COMMENT ON COLUMN cleave.foreign_log.epoch IS 'Layout epoch stored with the log; NULL: none.';
COMMENT ON COLUMN cleave.foreign_log.unread IS 'Unread messages of the subscription that has most of them; NULL: not known.';
COMMENT ON COLUMN cleave.foreign_log.found_at IS 'Time at which the log was first found.';
COMMENT ON COLUMN cleave.foreign_log.seen_at IS 'Time at which the log was last found.';
CREATE INDEX foreign_log_of_topic ON cleave.foreign_log (topic_id);
GRANT SELECT, INSERT, UPDATE, DELETE ON cleave.foreign_log TO cleave_controller;
