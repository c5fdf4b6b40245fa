-- Entry buckets that got an owner, or another one, are counted by topic as well: the rows of owners say only who has them now.
ALTER TABLE cleave.topic_tally DROP CONSTRAINT topic_tally_known;
ALTER TABLE cleave.topic_tally ADD CONSTRAINT topic_tally_known CHECK (tally IN ('change', 'refusal', 'bucket'));
COMMENT ON CONSTRAINT topic_tally_known ON cleave.topic_tally IS 'A tally is of changes, of refusals or of entry buckets.';
COMMENT ON TABLE cleave.topic_tally IS
    'Changes of a topic''s layout by kind and origin, outcomes in the ledger that refused something, by lane and reason, and entry buckets that got an owner: how many so far.';
