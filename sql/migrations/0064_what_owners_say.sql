-- Why nothing comes of a bucket its owner knows best: paused, out of reach, a key that is held. It tells its leader, and everybody can see.
ALTER TABLE cleave.bucket_owner
    ADD COLUMN said text,
    ADD COLUMN said_since timestamptz,
    ADD CONSTRAINT bucket_owner_said CHECK ((said IS NULL) = (said_since IS NULL));
COMMENT ON COLUMN cleave.bucket_owner.said IS 'Why nothing comes of it, as its owner has told; NULL while it reads.';
COMMENT ON COLUMN cleave.bucket_owner.said_since IS 'When that began.';
COMMENT ON CONSTRAINT bucket_owner_said ON cleave.bucket_owner IS 'What an owner says of a bucket began at an instant.';
