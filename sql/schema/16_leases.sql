-- Leases of shards and workers.

-- A lease is a term and an expiry, both judged by the database's clock.
CREATE TABLE cleave.lease (
    name           text        PRIMARY KEY,
    holder         text        NOT NULL,
    term           bigint      NOT NULL DEFAULT 1,
    acquired_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at     timestamptz NOT NULL,
    address        text,
    incarnation    text,
    schema_version text,
    CONSTRAINT lease_term_positive CHECK (term >= 1)
);
COMMENT ON COLUMN cleave.lease.address IS 'Web address of the lease''s worker, to which consumers are sent; NULL: it serves none.';
COMMENT ON COLUMN cleave.lease.incarnation IS
    'Process that holds this lease, unlike any other of the same name; NULL where an earlier program took the lease.';
COMMENT ON COLUMN cleave.lease.schema_version IS
    'Newest migration that the holder of a worker lease knows; NULL on shard leases, and where an earlier program took the lease.';
COMMENT ON CONSTRAINT lease_term_positive ON cleave.lease IS 'Lease terms start at 1.';

-- A watcher of a layout is told where its topic's leader answers, at once when another worker has taken the lease of its shard.
CREATE FUNCTION cleave.on_leader_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('cleave_leaders', split_part(NEW.name, '/', 2));
    RETURN NULL;
END $$;
CREATE TRIGGER lease_of_first_leader AFTER INSERT ON cleave.lease FOR EACH ROW
    WHEN (starts_with(NEW.name, 'shard/')) EXECUTE FUNCTION cleave.on_leader_change();
CREATE TRIGGER lease_of_leader AFTER UPDATE OF term ON cleave.lease FOR EACH ROW
    WHEN (starts_with(NEW.name, 'shard/') AND NEW.term <> OLD.term) EXECUTE FUNCTION cleave.on_leader_change();
