-- `cleave decisions replay ID` asks for one row of the ledger, which is kept by day and by topic. Partitions made later
-- copy this index, and those there are get it here.
CREATE INDEX decision_by_id ON cleave.decision (decision_id);
