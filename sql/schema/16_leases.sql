-- Leases of shards and workers.

-- A lease has a term and an expiry time. The clock of the database decides whether the lease has expired.
CREATE TABLE cleave.lease (
    name           text        PRIMARY KEY,
    holder         text        NOT NULL,
    term           bigint      NOT NULL DEFAULT 1,
    acquired_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at     timestamptz NOT NULL,
    renewed_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    address        text,
    incarnation    text,
    schema_version text,
    CONSTRAINT lease_term_positive CHECK (term >= 1)
);
COMMENT ON COLUMN cleave.lease.renewed_at IS
    'Time at which the lease was taken or renewed last; in the future if the clock of the server went back since.';
COMMENT ON COLUMN cleave.lease.address IS 'Web address at which the worker serves consumers; NULL: the worker serves no HTTP.';
COMMENT ON COLUMN cleave.lease.incarnation IS
    'Identifier of the process that holds the lease, unique among processes of that name; NULL: an older version took the lease.';
COMMENT ON COLUMN cleave.lease.schema_version IS
    'Newest migration known to the holder of a worker lease; NULL on shard leases, and if an older version took the lease.';
COMMENT ON CONSTRAINT lease_term_positive ON cleave.lease IS 'Lease terms start at 1.';

-- Notifies watchers of a layout as soon as another worker has taken the lease of the topic's shard, and so has become the leader.
CREATE FUNCTION cleave.on_leader_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('cleave_leaders', split_part(NEW.name, '/', 2));
    RETURN NULL;
END $$;
CREATE TRIGGER lease_of_first_leader AFTER INSERT ON cleave.lease FOR EACH ROW
    WHEN (starts_with(NEW.name, 'shard/')) EXECUTE FUNCTION cleave.on_leader_change();
CREATE TRIGGER lease_of_leader AFTER UPDATE OF term ON cleave.lease FOR EACH ROW
    WHEN (starts_with(NEW.name, 'shard/') AND NEW.term <> OLD.term) EXECUTE FUNCTION cleave.on_leader_change();
