-- How often something happened to a topic since the beginning, kept apart from the rows that tell of it: those of the ledger go with
-- time, and a counter must not.

CREATE TABLE cleave.topic_tally (
    topic_id bigint NOT NULL,
    tally    text   NOT NULL,
    kind     text   NOT NULL,
    because  text   NOT NULL,
    total    bigint NOT NULL,
    PRIMARY KEY (topic_id, tally, kind, because),
    CONSTRAINT topic_tally_known CHECK (tally IN ('change', 'refusal')),
    CONSTRAINT topic_tally_counts CHECK (total > 0)
) WITH (fillfactor = 50);
COMMENT ON TABLE cleave.topic_tally IS
    'Changes of a topic''s layout by kind and origin, and outcomes in the ledger that refused something, by lane and reason: how many so far.';
COMMENT ON CONSTRAINT topic_tally_known ON cleave.topic_tally IS 'A tally is of changes or of refusals.';
COMMENT ON CONSTRAINT topic_tally_counts ON cleave.topic_tally IS 'A row is made when something is counted, and nothing is taken off.';
GRANT SELECT, INSERT, UPDATE ON cleave.topic_tally TO cleave_controller;

CREATE FUNCTION cleave.on_change_counted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO cleave.topic_tally AS t (topic_id, tally, kind, because, total)
    SELECT topic_id, 'change', kind, origin, count(*) FROM added GROUP BY topic_id, kind, origin ORDER BY topic_id, kind, origin
        ON CONFLICT (topic_id, tally, kind, because) DO UPDATE SET total = t.total + excluded.total;
    RETURN NULL;
END $$;
CREATE TRIGGER layout_change_counted AFTER INSERT ON cleave.layout_change
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION cleave.on_change_counted();

-- Each outcome counts once for a reason, however many segments it is told of.
CREATE FUNCTION cleave.on_decision_counted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO cleave.topic_tally AS t (topic_id, tally, kind, because, total)
    SELECT d.topic_id, 'refusal', r.lane, r.reason, count(DISTINCT d.decision_id)
      FROM added d
     CROSS JOIN LATERAL (SELECT coalesce(refusal ->> 'lane', 'all') AS lane, refusal ->> 'reason' AS reason
                           FROM jsonb_array_elements(d.refusals) AS refusal) r
     GROUP BY d.topic_id, r.lane, r.reason ORDER BY d.topic_id, r.lane, r.reason
        ON CONFLICT (topic_id, tally, kind, because) DO UPDATE SET total = t.total + excluded.total;
    RETURN NULL;
END $$;
CREATE TRIGGER decision_counted AFTER INSERT ON cleave.decision
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION cleave.on_decision_counted();

-- What there is of both is counted; of the ledger that is as much as was kept.
INSERT INTO cleave.topic_tally (topic_id, tally, kind, because, total)
SELECT topic_id, 'change', kind, origin, count(*) FROM cleave.layout_change GROUP BY topic_id, kind, origin;
INSERT INTO cleave.topic_tally (topic_id, tally, kind, because, total)
SELECT d.topic_id, 'refusal', coalesce(refusal ->> 'lane', 'all'), refusal ->> 'reason', count(DISTINCT d.decision_id)
  FROM cleave.decision d CROSS JOIN LATERAL jsonb_array_elements(d.refusals) AS refusal
 GROUP BY d.topic_id, coalesce(refusal ->> 'lane', 'all'), refusal ->> 'reason';
