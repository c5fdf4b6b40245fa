-- Which process holds a lease, and which schema it was written for. A worker of an earlier program writes neither.

ALTER TABLE cleave.lease ADD COLUMN incarnation text;
COMMENT ON COLUMN cleave.lease.incarnation IS
    'Process that holds this lease, unlike any other of the same name; NULL where an earlier program took the lease.';
ALTER TABLE cleave.lease ADD COLUMN schema_version text;
COMMENT ON COLUMN cleave.lease.schema_version IS
    'Newest migration that the holder of a worker lease knows; NULL on shard leases, and where an earlier program took the lease.';
