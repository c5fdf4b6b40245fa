-- Topics, their segments, and the history of their layouts. Roles and schemas are created by bootstrap.sql.
--
-- The database enforces the rules of a layout. Each rule is a named constraint or trigger, and the COMMENT of a constraint is the
-- error message that a user reads if the rule is broken (controller/store/postgres/errors.py looks up the comment by name).
-- Schema "cleave" holds the control tables, "inspect" the views for people, and "staging" the input rows of the loaders.

CREATE FUNCTION cleave.refuse_rewriting_history() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'Rows of % are history: they are never changed or deleted.', TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation', CONSTRAINT = TG_TABLE_NAME || '_is_history';
END $$;

-- Notifies the channel in the trigger's first argument. The other arguments name the columns of the payload, which colons separate.
CREATE FUNCTION cleave.notify_of_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify(TG_ARGV[0], string_agg(changed ->> name, ':' ORDER BY place))
       FROM to_jsonb(NEW) AS changed, unnest(TG_ARGV[1:]) WITH ORDINALITY AS payload (name, place);
    RETURN NULL;
END $$;

-- A name of a topic or consumer is printable, because names appear in terminals, URLs, logs and pages.
-- controller/domain/names.py has the same rule.
CREATE FUNCTION cleave.is_name(name text) RETURNS boolean
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT name !~ '[\u0001-\u0020\u007F-\u00A0\u00AD\u034F\u0600-\u0605\u061C\u06DD\u070F\u0890-\u0891\u08E2\u115F-\u1160\u1680\u17B4-\u17B5\u180B-\u180F\u2000-\u200F\u2028-\u202F\u205F-\u206F\u2800\u3000\u3164\uD800-\uF8FF\uFDD0-\uFDEF\uFE00-\uFE0F\uFEFF\uFFA0\uFFF0-\uFFFF\U000110BD\U000110CD\U00013430-\U0001345F\U0001BCA0-\U0001BCA3\U0001D173-\U0001D17A\U000E0000-\U0010FFFF]'
       AND name !~ '(^|/)[.][.]?(/|$)' AND name <> '';
$$;
COMMENT ON FUNCTION cleave.is_name(text) IS
    'True if the text holds no space, no control, formatting or invisible character, and no part that is only dots, as in a path.';

CREATE FUNCTION cleave.demand_name() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'The name of a % holds printable characters only: no space, no control or bidirectional character, no part . or ..', TG_TABLE_NAME
        USING ERRCODE = 'check_violation', CONSTRAINT = TG_TABLE_NAME || '_name_printable';
END $$;

CREATE TABLE cleave.topic (
    topic_id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name                 text        COLLATE "C" NOT NULL,  -- lists page in the same order on every server
    namespace            text        NOT NULL,
    state                text        NOT NULL DEFAULT 'creating',
    data_plane           text        NOT NULL DEFAULT 'embedded',
    epoch                bigint      NOT NULL DEFAULT 0,
    next_segment_id      bigint      NOT NULL,
    subscription_version bigint      NOT NULL DEFAULT 0,
    row_version          bigint      NOT NULL DEFAULT 1,
    properties           jsonb       NOT NULL DEFAULT '{}',
    policy               jsonb,
    last_split_at        timestamptz,
    last_merge_at        timestamptz,
    last_rebucket_at     timestamptz,
    last_consumer_act_at timestamptz,
    created_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_at           timestamptz,
    verified_under       text,  -- the default is cleave.database_identity(), set below
    held_reason          text,
    held_at              timestamptz,
    CONSTRAINT topic_id_fits_ring CHECK (topic_id BETWEEN 1 AND 140737488355327),
    CONSTRAINT topic_name_form CHECK (name ~ '^topic://[^/[:space:]]+/[^/[:space:]]+/[^/[:space:]]+$'),
    CONSTRAINT topic_namespace_form CHECK (name LIKE 'topic://' || replace(replace(namespace, '%', '\%'), '_', '\_') || '/%'),
    CONSTRAINT topic_state_known CHECK (state IN ('creating', 'live', 'deleting', 'deleted')),
    CONSTRAINT topic_counters_not_negative CHECK (epoch >= 0 AND next_segment_id >= 0 AND subscription_version >= 0),
    CONSTRAINT topic_policy_is_object CHECK (policy IS NULL OR jsonb_typeof(policy) = 'object'),
    CONSTRAINT topic_hold_is_dated CHECK ((held_reason IS NULL) = (held_at IS NULL))
);
-- A deleted topic keeps its row, because another topic may take its name but never its segment ids.
CREATE UNIQUE INDEX topic_name_in_use ON cleave.topic (name) WHERE state <> 'deleted';
CREATE INDEX topic_by_name ON cleave.topic (name, topic_id);
CREATE INDEX topic_by_namespace ON cleave.topic (namespace, name) WHERE state <> 'deleted';
CREATE INDEX topic_by_verification ON cleave.topic (verified_under, topic_id) WHERE state <> 'deleted';
COMMENT ON COLUMN cleave.topic.verified_under IS
    'Database identity under which the logs of the topic were last compared with the journal; NULL: a comparison was requested.';
COMMENT ON COLUMN cleave.topic.held_reason IS
    'Evidence that the logs are ahead of the journal; nothing acts on the topic until it is recovered. NULL: not held.';
COMMENT ON COLUMN cleave.topic.held_at IS 'Time at which the topic was held; NULL: the topic is not held.';
COMMENT ON CONSTRAINT topic_id_fits_ring ON cleave.topic IS 'A topic id times 65536 fits a bigint.';
COMMENT ON CONSTRAINT topic_name_form ON cleave.topic IS 'A topic name is topic://tenant/namespace/name, without spaces or other slashes.';
COMMENT ON CONSTRAINT topic_namespace_form ON cleave.topic IS 'The namespace column is the tenant/namespace of the topic name.';
COMMENT ON CONSTRAINT topic_state_known ON cleave.topic IS 'A topic is creating, live, deleting or deleted.';
COMMENT ON CONSTRAINT topic_counters_not_negative ON cleave.topic IS 'Epoch, next segment id and subscription version are at least 0.';
COMMENT ON CONSTRAINT topic_policy_is_object ON cleave.topic IS 'A stored policy is a JSON object of parameters.';
COMMENT ON CONSTRAINT topic_hold_is_dated ON cleave.topic IS 'A held topic has a reason and a time; any other topic has neither.';
COMMENT ON INDEX cleave.topic_name_in_use IS 'A topic of this name exists already; delete it first or choose another name.';
CREATE TRIGGER topic_name_is_printable BEFORE INSERT ON cleave.topic
    FOR EACH ROW WHEN (NOT cleave.is_name(NEW.name)) EXECUTE FUNCTION cleave.demand_name();

-- SECURITY DEFINER lets inspectors, who may not read schema cleave, read the identity in views.
CREATE FUNCTION cleave.database_identity() RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT concat_ws('/', c.system_identifier,
                     CASE WHEN pg_is_in_recovery() THEN 'standby' ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END,
                     (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()), pg_relation_filenode('cleave.topic'),
                     (extract(epoch FROM pg_postmaster_start_time()) * 1000)::bigint)
      FROM pg_control_system() c
$$;
COMMENT ON FUNCTION cleave.database_identity() IS
    'System identifier, timeline, database, file of the topics, start of the server; a restart, promotion or restore changes it.';

-- The default is set here because the function refers to the table.
ALTER TABLE cleave.topic ALTER COLUMN verified_under SET DEFAULT cleave.database_identity();

CREATE TABLE cleave.segment (
    topic_id            bigint      NOT NULL REFERENCES cleave.topic,
    segment_id          bigint      NOT NULL,
    range_start         integer     NOT NULL,
    range_end           integer     NOT NULL,
    state               text        NOT NULL DEFAULT 'ACTIVE',
    merge_depth         integer     NOT NULL DEFAULT 0,
    bucket_splits       integer[]   NOT NULL DEFAULT '{}',
    created_epoch       bigint      NOT NULL,
    sealed_epoch        bigint,
    pruned_epoch        bigint,
    created_at          timestamptz NOT NULL,
    sealed_at           timestamptz,
    pruned_at           timestamptz,
    backing_topic       text        NOT NULL,
    legacy_topic_name   text,
    ring                int8range   GENERATED ALWAYS AS
        (int8range(topic_id * 65536 + range_start, topic_id * 65536 + range_end, '[]')) STORED,
    drained_at          timestamptz,
    log_token           text,
    PRIMARY KEY (topic_id, segment_id),
    CONSTRAINT segment_range_on_ring CHECK (0 <= range_start AND range_start <= range_end AND range_end <= 65535),
    CONSTRAINT segment_state_known CHECK (state IN ('ACTIVE', 'SEALED')),
    CONSTRAINT segment_sealed_is_dated CHECK ((state = 'SEALED') = (sealed_epoch IS NOT NULL AND sealed_at IS NOT NULL)),
    CONSTRAINT segment_epochs_in_order CHECK (sealed_epoch >= created_epoch AND pruned_epoch >= sealed_epoch),
    CONSTRAINT segment_pruned_only_sealed CHECK (
        (pruned_epoch IS NULL OR state = 'SEALED') AND (pruned_epoch IS NULL) = (pruned_at IS NULL)),
    CONSTRAINT segment_backing_topic_once UNIQUE (backing_topic, topic_id),
    CONSTRAINT segment_active_ranges_disjoint
        EXCLUDE USING gist (ring WITH &&) WHERE (state = 'ACTIVE') DEFERRABLE INITIALLY DEFERRED,
    CONSTRAINT segment_drained_only_sealed CHECK (drained_at IS NULL OR state = 'SEALED')
);
CREATE INDEX segment_active ON cleave.segment (topic_id, range_start) WHERE state = 'ACTIVE';
-- Pruned segments accumulate. This index keeps the cost of reading a layout independent of their number.
CREATE INDEX segment_present ON cleave.segment (topic_id, segment_id) WHERE pruned_epoch IS NULL;
CREATE INDEX segment_collectable ON cleave.segment (sealed_at) WHERE state = 'SEALED' AND pruned_epoch IS NULL;
CREATE INDEX segment_unread ON cleave.segment (topic_id, sealed_epoch)
 WHERE state = 'SEALED' AND pruned_epoch IS NULL AND drained_at IS NULL;
COMMENT ON COLUMN cleave.segment.drained_at IS
    'Time at which every live subscription was first known to have drained the segment; NULL: not drained, or not checked.';
COMMENT ON COLUMN cleave.segment.log_token IS
    'Token in the log of a recovered segment, whose operation the database lost; NULL: the operation has the token.';
COMMENT ON CONSTRAINT segment_range_on_ring ON cleave.segment IS 'A segment owns an inclusive range within 0..65535; the start is not above the end.';
COMMENT ON CONSTRAINT segment_state_known ON cleave.segment IS 'A segment is ACTIVE or SEALED.';
COMMENT ON CONSTRAINT segment_backing_topic_once ON cleave.segment IS 'Every segment has a log of its own.';
COMMENT ON CONSTRAINT segment_sealed_is_dated ON cleave.segment IS 'A SEALED segment has a sealed epoch and time; an ACTIVE segment has neither.';
COMMENT ON CONSTRAINT segment_epochs_in_order ON cleave.segment IS 'A segment is created, then sealed, then pruned.';
COMMENT ON CONSTRAINT segment_pruned_only_sealed ON cleave.segment IS
    'Only a SEALED segment can be pruned, and a pruned segment has both an epoch and a time of pruning.';
COMMENT ON CONSTRAINT segment_active_ranges_disjoint ON cleave.segment IS 'Two ACTIVE segments of one topic never own the same hash.';
COMMENT ON CONSTRAINT segment_drained_only_sealed ON cleave.segment IS
    'Only a sealed segment can be drained; seal the segment first.';
CREATE TRIGGER segment_is_history BEFORE DELETE ON cleave.segment
    FOR EACH ROW EXECUTE FUNCTION cleave.refuse_rewriting_history();

-- ordinal is the place of a parent in the order in which the merge named its parents.
CREATE TABLE cleave.segment_parent (
    topic_id  bigint   NOT NULL,
    child_id  bigint   NOT NULL,
    parent_id bigint   NOT NULL,
    ordinal   smallint NOT NULL DEFAULT 0,
    PRIMARY KEY (topic_id, child_id, parent_id),
    CONSTRAINT segment_parent_child FOREIGN KEY (topic_id, child_id) REFERENCES cleave.segment,
    CONSTRAINT segment_parent_parent FOREIGN KEY (topic_id, parent_id) REFERENCES cleave.segment,
    CONSTRAINT segment_parent_older CHECK (parent_id < child_id)
);
CREATE INDEX segment_parent_by_parent ON cleave.segment_parent (topic_id, parent_id);
COMMENT ON CONSTRAINT segment_parent_older ON cleave.segment_parent IS 'A parent is older than its child: its id is smaller.';
CREATE TRIGGER segment_parent_is_history BEFORE UPDATE OR DELETE ON cleave.segment_parent
    FOR EACH ROW EXECUTE FUNCTION cleave.refuse_rewriting_history();

CREATE TABLE cleave.layout_change (
    topic_id      bigint      NOT NULL REFERENCES cleave.topic,
    epoch         bigint      NOT NULL,
    kind          text        NOT NULL,
    operation_id  bigint,
    origin        text        NOT NULL,
    actor         text        NOT NULL,
    reason        text        NOT NULL,
    mirrored_from bigint,
    committed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic_id, epoch),
    CONSTRAINT layout_change_kind_known CHECK (kind IN (
        'create', 'split', 'merge', 'rebucket', 'recut', 'heal', 'prune', 'adopt',
        'mirrored', 'detach', 'delete', 'recover')),
    CONSTRAINT layout_change_mirrored_gap CHECK ((kind = 'mirrored') = (mirrored_from IS NOT NULL))
);
CREATE INDEX layout_change_by_time ON cleave.layout_change (topic_id, committed_at);
-- Readers that follow the changes of all layouts request, after a disconnection, the changes since a time. Rows are written in the
-- order of time and never changed, so a BRIN index suffices and costs almost nothing.
CREATE INDEX layout_change_since ON cleave.layout_change USING brin (committed_at) WITH (pages_per_range = 32, autosummarize = on);
COMMENT ON CONSTRAINT layout_change_mirrored_gap ON cleave.layout_change IS
    'A change that was read from a broker has the epoch from which it was read; no other change has one.';
COMMENT ON CONSTRAINT layout_change_kind_known ON cleave.layout_change IS
    'Unknown kind of layout change: a newer version wrote it; upgrade this program.';
CREATE TRIGGER layout_change_is_history BEFORE UPDATE OR DELETE ON cleave.layout_change
    FOR EACH ROW EXECUTE FUNCTION cleave.refuse_rewriting_history();

-- Epochs of a topic rise by one, and the commit times rise with the epochs.
CREATE FUNCTION cleave.layout_change_before_insert() RETURNS trigger LANGUAGE plpgsql AS $$
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
CREATE TRIGGER layout_change_before_insert BEFORE INSERT ON cleave.layout_change
    FOR EACH ROW EXECUTE FUNCTION cleave.layout_change_before_insert();

CREATE FUNCTION cleave.segment_before_write() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF OLD.state = 'SEALED' AND NEW.state = 'ACTIVE' THEN
            RAISE EXCEPTION 'Segment % of topic % is sealed and never becomes active again.', OLD.segment_id, OLD.topic_id
                USING ERRCODE = 'check_violation', CONSTRAINT = 'segment_sealed_for_good';
        ELSIF (OLD.topic_id, OLD.segment_id, OLD.range_start, OLD.range_end, OLD.created_epoch, OLD.backing_topic, OLD.bucket_splits)
            IS DISTINCT FROM
              (NEW.topic_id, NEW.segment_id, NEW.range_start, NEW.range_end, NEW.created_epoch, NEW.backing_topic, NEW.bucket_splits) THEN
            RAISE EXCEPTION 'Segment % of topic % may not change its range, buckets, epoch or backing topic.',
                OLD.segment_id, OLD.topic_id USING ERRCODE = 'check_violation', CONSTRAINT = 'segment_fixed_for_life';
        END IF;
    ELSIF NEW.segment_id >= (SELECT next_segment_id FROM cleave.topic WHERE topic_id = NEW.topic_id) THEN
        RAISE EXCEPTION 'Segment id % of topic % was not reserved: take ids from next_segment_id.', NEW.segment_id, NEW.topic_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'segment_id_reserved';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER segment_before_write BEFORE INSERT OR UPDATE ON cleave.segment
    FOR EACH ROW EXECUTE FUNCTION cleave.segment_before_write();

-- A topic that takes the name of a deleted topic continues its segment ids, so that no log name is used twice.
CREATE FUNCTION cleave.topic_before_insert() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE used bigint;
BEGIN
    SELECT next_segment_id INTO used FROM cleave.topic WHERE name = NEW.name ORDER BY topic_id DESC LIMIT 1;
    IF NEW.next_segment_id < used THEN
        RAISE EXCEPTION 'Segment ids of % below % were used by an earlier topic of that name; start at %.', NEW.name, used, used
            USING ERRCODE = 'check_violation', CONSTRAINT = 'topic_ids_continue';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER topic_before_insert BEFORE INSERT ON cleave.topic FOR EACH ROW EXECUTE FUNCTION cleave.topic_before_insert();

CREATE FUNCTION cleave.topic_before_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.epoch < OLD.epoch OR NEW.next_segment_id < OLD.next_segment_id OR NEW.subscription_version < OLD.subscription_version THEN
        RAISE EXCEPTION 'Epoch, next segment id and subscription version of topic % only rise.', OLD.topic_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'topic_counters_only_rise';
    ELSIF OLD.state = 'deleted' THEN
        RAISE EXCEPTION 'Topic % is deleted and its row is history.', OLD.topic_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'topic_deleted_is_history';
    ELSIF NEW.row_version <> OLD.row_version + 1 THEN
        RAISE EXCEPTION 'Every change of topic % raises row_version by 1.', OLD.topic_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'topic_row_version_by_one';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER topic_before_update BEFORE UPDATE ON cleave.topic FOR EACH ROW EXECUTE FUNCTION cleave.topic_before_update();

-- ACTIVE ranges tile the ring. The trigger checks this once per layout change, at commit, after the new segments are written. The
-- exclusion constraint keeps the ranges disjoint, so the trigger only adds their widths.
CREATE FUNCTION cleave.layout_must_tile() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    topic_state text;
    topic_epoch bigint;
    covered     bigint;
BEGIN
    SELECT t.state, t.epoch, (SELECT coalesce(sum(s.range_end - s.range_start + 1), 0)
                                FROM cleave.segment s WHERE s.topic_id = t.topic_id AND s.state = 'ACTIVE')
        INTO topic_state, topic_epoch, covered FROM cleave.topic t WHERE t.topic_id = NEW.topic_id;
    IF NOT (covered = 65536 AND topic_state IN ('live', 'deleting') OR covered = 0 AND topic_state IN ('creating', 'deleted')) THEN
        RAISE EXCEPTION 'ACTIVE segments of % topic % cover % of 65536 hashes at epoch %.', topic_state, NEW.topic_id, covered, NEW.epoch
            USING ERRCODE = 'check_violation', CONSTRAINT = 'layout_tiles_ring';
    ELSIF topic_epoch < NEW.epoch THEN
        RAISE EXCEPTION 'Topic % is at epoch %, but its history is at epoch %.', NEW.topic_id, topic_epoch, NEW.epoch
            USING ERRCODE = 'check_violation', CONSTRAINT = 'layout_epoch_of_topic';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER layout_tiles_ring AFTER INSERT ON cleave.layout_change
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION cleave.layout_must_tile();

-- Clients watch the topics of a namespace, and are notified when a topic becomes live or is deleted.
CREATE TRIGGER topic_of_namespace_first AFTER INSERT ON cleave.topic FOR EACH ROW
    WHEN (NEW.state = 'live') EXECUTE FUNCTION cleave.notify_of_row('cleave_topics', 'namespace');
CREATE TRIGGER topic_of_namespace AFTER UPDATE OF state, properties ON cleave.topic FOR EACH ROW
    WHEN ((OLD.state = 'live') <> (NEW.state = 'live') OR (NEW.state = 'live' AND OLD.properties IS DISTINCT FROM NEW.properties))
    EXECUTE FUNCTION cleave.notify_of_row('cleave_topics', 'namespace');
