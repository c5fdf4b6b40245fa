-- A consumer without its stream keeps its entry buckets while it may come back, and nobody reads them: that is to be seen by all.
ALTER TABLE cleave.consumer ADD COLUMN disconnected_at timestamptz;
COMMENT ON COLUMN cleave.consumer.disconnected_at IS
    'Since when its topic''s leader has been without its stream, noted once that is longer than a moment; NULL while it is connected.';
