-- What many operations a second cost: fewer calls, fewer versions of rows, no table read as a whole.

-- Many layouts may change in one statement: the inputs of their topics are raised together, which costs as much as for one.
CREATE OR REPLACE FUNCTION cleave.on_layout_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM cleave.raise_input(ARRAY(SELECT DISTINCT topic_id FROM added));
    PERFORM pg_notify('cleave_layout', topic_id || ':' || epoch) FROM added ORDER BY topic_id, epoch;
    RETURN NULL;
END $$;
DROP TRIGGER layout_change_insert ON cleave.layout_change;
CREATE TRIGGER layout_change_insert AFTER INSERT ON cleave.layout_change
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION cleave.on_layout_change();

-- Found by its key, whatever the planner knows of the table when it first sees this: a join may read all of it.
CREATE OR REPLACE FUNCTION cleave.raise_input(topics bigint[]) RETURNS void LANGUAGE sql AS $$
    -- ordered, so that two raisers never wait for each other crosswise
    UPDATE cleave.evaluation SET input_version = input_version + 1
     WHERE topic_id = ANY (ARRAY(
           SELECT topic_id FROM cleave.evaluation WHERE topic_id = ANY (topics) ORDER BY topic_id FOR UPDATE));
$$;

-- An operation changes its state four times. While no index looks at the state, new versions of its row stay on its page
-- and out of the indexes; that it is over is said by finished_at as well (operation_finished_dated).
DROP INDEX cleave.operation_live;
CREATE INDEX operation_live ON cleave.operation (not_before, operation_id) WHERE finished_at IS NULL;
DROP INDEX cleave.operation_live_of_topic;
CREATE INDEX operation_live_of_topic ON cleave.operation (topic_id) WHERE finished_at IS NULL;
ALTER TABLE cleave.operation SET (fillfactor = 50);

-- One look instead of two.
CREATE OR REPLACE FUNCTION cleave.layout_must_tile() RETURNS trigger LANGUAGE plpgsql AS $$
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
        RAISE EXCEPTION 'Topic % is at epoch % but its history at %.', NEW.topic_id, topic_epoch, NEW.epoch
            USING ERRCODE = 'check_violation', CONSTRAINT = 'layout_epoch_of_topic';
    END IF;
    RETURN NULL;
END $$;
