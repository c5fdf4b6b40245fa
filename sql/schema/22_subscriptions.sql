-- Subscriptions, their progress in sealed segments, and the consumers that brokers report.
--
-- Segments that a subscription has still to read are found by an index, however many segments the topic has had. For that,
-- segment.drained_at is set while no live subscription must still read the segment. Rows of segment_drain change it, and so does a
-- subscription that is created, reaches further back, is being deleted, or is live again. It only tells readers which segments to look
-- at: a prune reads the rows of segment_drain.

CREATE TABLE cleave.subscription (
    topic_id        bigint      NOT NULL REFERENCES cleave.topic,
    name            text        NOT NULL,
    kind            text        NOT NULL DEFAULT 'STREAM',
    state           text        NOT NULL DEFAULT 'live',
    created_epoch   bigint      NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    generation      bigint      NOT NULL DEFAULT 0,
    parents_block   boolean     NOT NULL DEFAULT true,
    drain_consumers integer     NOT NULL DEFAULT 1,
    consumers       text        NOT NULL DEFAULT 'cleave',
    origin          bigint      NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    PRIMARY KEY (topic_id, name),
    CONSTRAINT subscription_kind_known CHECK (kind IN ('STREAM', 'QUEUE', 'CHECKPOINT')),
    CONSTRAINT subscription_state_known CHECK (state IN ('live', 'deleting')),
    CONSTRAINT subscription_name_form CHECK (name ~ '^[^[:space:]]+$'),
    CONSTRAINT subscription_generation_not_negative CHECK (generation >= 0),
    CONSTRAINT subscription_drain_consumers_positive CHECK (drain_consumers BETWEEN 1 AND 65536),
    CONSTRAINT subscription_consumers_known CHECK (consumers IN ('cleave', 'stock')),
    CONSTRAINT subscription_stock_in_order CHECK (consumers = 'cleave' OR (kind = 'STREAM' AND parents_block))
);
CREATE INDEX subscription_stock ON cleave.subscription (topic_id) WHERE consumers = 'stock';
COMMENT ON COLUMN cleave.subscription.generation IS 'Version of the bucket owners; each change of owners adds 1.';
COMMENT ON COLUMN cleave.subscription.parents_block IS
    'True if a segment is assigned only after all its ancestors are drained. False: low lag matters more than the order of a key.';
COMMENT ON COLUMN cleave.subscription.drain_consumers IS
    'Maximum number of consumers that share the entry buckets of a sealed segment until the segment is drained.';
COMMENT ON COLUMN cleave.subscription.origin IS
    'Number under which applications store positions of this subscription; rises with each seek, which invalidates older positions.';
COMMENT ON COLUMN cleave.subscription.consumers IS
    'Consumers that read the subscription: cleave for registered consumers, stock for standard Pulsar consumers behind gates.';
COMMENT ON CONSTRAINT subscription_consumers_known ON cleave.subscription IS 'The consumers of a subscription are cleave or stock.';
COMMENT ON CONSTRAINT subscription_stock_in_order ON cleave.subscription IS
    'Standard consumers need gates only where order counts: the subscription is of kind STREAM, and its segments wait for their ancestors.';
COMMENT ON CONSTRAINT subscription_kind_known ON cleave.subscription IS 'A subscription is of kind STREAM, QUEUE or CHECKPOINT.';
COMMENT ON CONSTRAINT subscription_state_known ON cleave.subscription IS 'A subscription is live or deleting.';
COMMENT ON CONSTRAINT subscription_name_form ON cleave.subscription IS 'A subscription name is not empty and has no spaces.';
COMMENT ON CONSTRAINT subscription_generation_not_negative ON cleave.subscription IS 'Generations start at 0.';
COMMENT ON CONSTRAINT subscription_drain_consumers_positive ON cleave.subscription IS
    'The number of consumers that share a sealed segment (drain_consumers) is 1 to 65536.';

-- Consumers that brokers list, of applications that never register. One row per subscription in use, updated when it changes. The
-- code that reads the inputs of an evaluation decides how many of these consumers count.
CREATE TABLE cleave.observed_subscription (
    topic_id          bigint      NOT NULL REFERENCES cleave.topic,
    name              text        NOT NULL,
    subscription_type text        NOT NULL,
    consumers         integer     NOT NULL,
    consumer_names    text[]      NOT NULL,
    changed_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic_id, name),
    CONSTRAINT observed_subscription_in_use CHECK (consumers > 0)
);
COMMENT ON COLUMN cleave.observed_subscription.subscription_type IS
    'Type that the broker reports: Exclusive, Failover and Key_Shared are read in order, Shared as a queue.';
COMMENT ON COLUMN cleave.observed_subscription.consumer_names IS 'The first 100 names; consumers without a name are only counted.';
COMMENT ON CONSTRAINT observed_subscription_in_use ON cleave.observed_subscription IS 'A subscription is listed only while it has consumers.';

CREATE TABLE cleave.segment_drain (
    topic_id     bigint      NOT NULL,
    subscription text        NOT NULL,
    segment_id   bigint      NOT NULL,
    drained_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic_id, subscription, segment_id),
    CONSTRAINT segment_drain_subscription FOREIGN KEY (topic_id, subscription) REFERENCES cleave.subscription ON DELETE CASCADE,
    CONSTRAINT segment_drain_segment FOREIGN KEY (topic_id, segment_id) REFERENCES cleave.segment
);
COMMENT ON CONSTRAINT segment_drain_segment ON cleave.segment_drain IS 'A drained segment exists in the layout; read the layout again.';

CREATE TABLE cleave.drain_backlog (
    topic_id     bigint      NOT NULL,
    segment_id   bigint      NOT NULL,
    messages     bigint      NOT NULL,
    counted_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    moved_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    subscription text        NOT NULL,
    PRIMARY KEY (topic_id, subscription, segment_id),
    CONSTRAINT drain_backlog_subscription FOREIGN KEY (topic_id, subscription) REFERENCES cleave.subscription ON DELETE CASCADE,
    CONSTRAINT drain_backlog_segment FOREIGN KEY (topic_id, segment_id) REFERENCES cleave.segment,
    CONSTRAINT drain_backlog_counts CHECK (messages >= 0)
) WITH (fillfactor = 70);
COMMENT ON TABLE cleave.drain_backlog IS
    'Unacknowledged messages of a sealed segment, counted once a minute while the subscription drains it.';
COMMENT ON COLUMN cleave.drain_backlog.moved_at IS 'Time at which the present number of messages was first counted.';
COMMENT ON CONSTRAINT drain_backlog_segment ON cleave.drain_backlog IS 'A backlog belongs to a segment that exists; read the layout again.';
COMMENT ON CONSTRAINT drain_backlog_counts ON cleave.drain_backlog IS 'A backlog is never negative.';

CREATE FUNCTION cleave.awaits_reader(of_topic bigint, of_segment bigint, sealed bigint) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM cleave.subscription u
         WHERE u.topic_id = of_topic AND u.state = 'live' AND u.created_epoch < sealed
           AND NOT EXISTS (SELECT FROM cleave.segment_drain d
                            WHERE d.topic_id = of_topic AND d.subscription = u.name AND d.segment_id = of_segment))
$$;
COMMENT ON FUNCTION cleave.awaits_reader IS 'True if a live subscription older than the epoch `sealed` must still read the segment.';

CREATE FUNCTION cleave.on_drains_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE cleave.segment s SET drained_at = CASE WHEN s.drained_at IS NULL THEN clock_timestamp() END
      FROM (SELECT DISTINCT topic_id, segment_id FROM changed) c
     WHERE s.topic_id = c.topic_id AND s.segment_id = c.segment_id
       AND (s.drained_at IS NULL) <> cleave.awaits_reader(s.topic_id, s.segment_id, s.sealed_epoch);
    RETURN NULL;
END $$;
CREATE TRIGGER segment_drain_insert AFTER INSERT ON cleave.segment_drain REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION cleave.on_drains_changed();
CREATE TRIGGER segment_drain_delete AFTER DELETE ON cleave.segment_drain REFERENCING OLD TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION cleave.on_drains_changed();

CREATE FUNCTION cleave.on_subscription_reads() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- A subscription that begins at the topic's present epoch has no sealed segment to read.
    IF NEW.created_epoch < (SELECT epoch FROM cleave.topic WHERE topic_id = NEW.topic_id) THEN
        UPDATE cleave.segment s SET drained_at = CASE WHEN NEW.state <> 'live' THEN clock_timestamp() END
         WHERE s.topic_id = NEW.topic_id AND s.sealed_epoch > NEW.created_epoch AND s.pruned_epoch IS NULL
           AND (s.drained_at IS NULL) = (NEW.state <> 'live')
           AND cleave.awaits_reader(s.topic_id, s.segment_id, s.sealed_epoch) = (NEW.state = 'live');
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER subscription_reads AFTER INSERT OR UPDATE OF created_epoch, state ON cleave.subscription
    FOR EACH ROW EXECUTE FUNCTION cleave.on_subscription_reads();
