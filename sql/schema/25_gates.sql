-- Gates: a gate holds the messages of a segment back from one subscription of standard consumers until the segment's ancestors are
-- drained (ADR 0024).
--
-- A row states what the data plane must show. A gate is shut in every state except `open`. The runner of a
-- reshape closes the gate of each child and then writes the row. The child becomes ACTIVE later, at the commit.

CREATE TABLE cleave.gate (
    topic_id      bigint      NOT NULL,
    subscription  text        NOT NULL,
    segment_id    bigint      NOT NULL,
    state         text        NOT NULL DEFAULT 'closed',
    closed_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    ready_at      timestamptz,
    opened_at     timestamptz,
    opening_until timestamptz NOT NULL DEFAULT '-infinity',
    breached_at   timestamptz,
    last_error    text,
    PRIMARY KEY (topic_id, subscription, segment_id),
    CONSTRAINT gate_subscription FOREIGN KEY (topic_id, subscription) REFERENCES cleave.subscription ON DELETE CASCADE,
    CONSTRAINT gate_state_known CHECK (state IN ('closed', 'ready', 'open')),
    CONSTRAINT gate_state_dated CHECK ((state = 'closed') = (ready_at IS NULL) AND (state = 'open') = (opened_at IS NOT NULL))
) WITH (fillfactor = 70);
CREATE INDEX gate_shut ON cleave.gate (topic_id, subscription) WHERE state <> 'open';
CREATE INDEX gate_of_segment ON cleave.gate (topic_id, segment_id);
COMMENT ON TABLE cleave.gate IS
    'One row per gate, for a segment and a subscription of standard consumers: the state that the data plane must show.';
COMMENT ON COLUMN cleave.gate.state IS
    'closed: the messages of the segment are held back until every ancestor is drained; ready: every ancestor is drained, and the gate is being opened; open: messages are delivered.';
COMMENT ON COLUMN cleave.gate.closed_at IS 'Time at which the gate was last closed.';
COMMENT ON COLUMN cleave.gate.ready_at IS 'Time at which the gate became ready, after every ancestor was recorded as drained; NULL while the gate is closed.';
COMMENT ON COLUMN cleave.gate.opened_at IS 'Time at which the gate was recorded as open, after the data plane had opened the gate; NULL while the gate is shut.';
COMMENT ON COLUMN cleave.gate.opening_until IS 'Time until which a call that opens the gate may be in progress; a seek waits until this time. -infinity before the first call, and once the gate is open.';
COMMENT ON COLUMN cleave.gate.breached_at IS
    'Time at which the closed gate was first seen with an acknowledged or missing barrier; NULL if the barrier is unread.';
COMMENT ON COLUMN cleave.gate.last_error IS 'Error of the last failed attempt to drain an ancestor, to open the gate or to check the gate; NULL if no attempt failed since the gate was closed or opened.';
COMMENT ON CONSTRAINT gate_subscription ON cleave.gate IS 'A gate belongs to an existing subscription.';
COMMENT ON CONSTRAINT gate_state_known ON cleave.gate IS 'The state of a gate is closed, ready or open.';
COMMENT ON CONSTRAINT gate_state_dated ON cleave.gate IS 'A closed gate has no ready_at, and only an open gate has opened_at.';

-- Refuses the commit of a child without a gate for each live subscription of standard consumers. Such consumers would read the child
-- before its ancestors.
CREATE FUNCTION cleave.on_segment_linked() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE gap record;
BEGIN
    SELECT l.topic_id, l.child_id, u.name INTO gap
      FROM added l JOIN cleave.subscription u ON u.topic_id = l.topic_id AND u.consumers = 'stock' AND u.state = 'live'
     WHERE NOT EXISTS (SELECT FROM cleave.gate g
                        WHERE g.topic_id = l.topic_id AND g.subscription = u.name AND g.segment_id = l.child_id)
     LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'Segment % of topic % has no gate for subscription %: standard consumers would read it before its ancestors.',
            gap.child_id, gap.topic_id, gap.name
            USING ERRCODE = 'check_violation', CONSTRAINT = 'segment_has_gates';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER segment_parent_gates AFTER INSERT ON cleave.segment_parent REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION cleave.on_segment_linked();

-- Refuses the registration of a consumer in a subscription that standard consumers read. The trigger runs after the foreign key has
-- waited for a concurrent change of the subscription, so it reads the result of this change.
CREATE FUNCTION cleave.on_consumer_registered() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM cleave.subscription u
                WHERE u.topic_id = NEW.topic_id AND u.name = NEW.subscription AND u.consumers = 'stock') THEN
        RAISE EXCEPTION 'Subscription % is read by standard Pulsar consumers, which do not register; set its consumers to cleave first, or read another subscription.',
            NEW.subscription USING ERRCODE = 'check_violation', CONSTRAINT = 'consumer_of_cleave';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER consumer_is_cleaves AFTER INSERT ON cleave.consumer
    FOR EACH ROW EXECUTE FUNCTION cleave.on_consumer_registered();
