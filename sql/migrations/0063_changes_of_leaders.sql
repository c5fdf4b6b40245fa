-- Who watches a layout is told where its topic's leader answers, at once when another worker has taken the lease of its shard.
CREATE FUNCTION cleave.on_leader_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('cleave_leaders', split_part(NEW.name, '/', 2));
    RETURN NULL;
END $$;
CREATE TRIGGER lease_of_first_leader AFTER INSERT ON cleave.lease FOR EACH ROW
    WHEN (starts_with(NEW.name, 'shard/')) EXECUTE FUNCTION cleave.on_leader_change();
CREATE TRIGGER lease_of_leader AFTER UPDATE OF term ON cleave.lease FOR EACH ROW
    WHEN (starts_with(NEW.name, 'shard/') AND NEW.term <> OLD.term) EXECUTE FUNCTION cleave.on_leader_change();
