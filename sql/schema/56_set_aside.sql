-- Subjects that a batch over many topics skipped because it cannot use them. The batch continues with the other subjects.

CREATE TABLE cleave.set_aside (
    batch    text        NOT NULL,
    subject  text        NOT NULL,
    topic_id bigint,
    reason   text        NOT NULL,
    times    bigint      NOT NULL DEFAULT 1,
    first_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT set_aside_pkey PRIMARY KEY (batch, subject),
    CONSTRAINT set_aside_short CHECK (length(subject) <= 300 AND length(reason) <= 1000)
);
CREATE INDEX set_aside_last ON cleave.set_aside (last_at);
COMMENT ON TABLE cleave.set_aside IS 'A subject that a batch over many topics skipped; kept for a day after the last such batch.';
COMMENT ON COLUMN cleave.set_aside.batch IS 'The batch: load, key counts, bundle load, evaluation, maintenance.';
COMMENT ON COLUMN cleave.set_aside.subject IS 'The segment, source of samples, broker or topic that was skipped.';
COMMENT ON COLUMN cleave.set_aside.topic_id IS 'Topic of the subject; NULL: the subject concerns no topic, or more than one.';
COMMENT ON COLUMN cleave.set_aside.times IS 'Number of batches that skipped the subject.';
COMMENT ON CONSTRAINT set_aside_short ON cleave.set_aside IS 'A subject has at most 300 characters, a reason 1000.';

-- The loaders may not write tables of schema cleave, so they record skipped subjects through this function, which also
-- deletes rows that are a day old.
CREATE FUNCTION cleave.note_set_aside(of_batch text, subjects text[], topic_ids bigint[], reasons text[]) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    DELETE FROM cleave.set_aside WHERE last_at < clock_timestamp() - interval '1 day';
    INSERT INTO cleave.set_aside AS s (batch, subject, topic_id, reason)
    SELECT DISTINCT ON (left(subject, 300)) of_batch, left(subject, 300), topic_id, left(reason, 1000)
      FROM unnest(subjects, topic_ids, reasons) AS given (subject, topic_id, reason) ORDER BY left(subject, 300)
    ON CONFLICT (batch, subject) DO UPDATE
       SET topic_id = excluded.topic_id, reason = excluded.reason, times = s.times + 1, last_at = excluded.last_at;
$$;
