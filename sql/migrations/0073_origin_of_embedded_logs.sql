-- An embedded log records the operation that created the log. A deletion compares the record with the journal, so that a journal that
-- is older than the logs deletes no log of another operation.
ALTER TABLE embedded.log
    ADD COLUMN origin jsonb,
    ADD CONSTRAINT log_origin_is_object CHECK (jsonb_typeof(origin) = 'object');
COMMENT ON COLUMN embedded.log.origin IS
    'Token, layout epoch, parents and bucket boundaries of the operation that created the log, written once; NULL for a log created by another program or before Cleave recorded origins.';
COMMENT ON CONSTRAINT log_origin_is_object ON embedded.log IS 'The origin of a log is a JSON object.';
