-- A log can have the name of a log that a restored or promoted database has lost. An owner of the lost time may still hold an ownership of that name,
-- and would read the new log before the log's parents are read. So a new cursor begins at the present origin and generation of its subscription,
-- which are above those of the lost time, and an older ownership is stale.
CREATE FUNCTION embedded.begin_ownership() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    SELECT u.origin, u.generation INTO NEW.owned_origin, NEW.owned_generation
      FROM embedded.log l
      JOIN cleave.topic t ON t.name = 'topic://' || substring(l.name FROM '^segment://(.*)/[^/]*$') AND t.state <> 'deleted'
      JOIN cleave.subscription u ON u.topic_id = t.topic_id AND u.name = NEW.subscription
     WHERE l.log_id = NEW.log_id;
    RETURN NEW;
END $$;
CREATE TRIGGER cursor_begins_at_the_present_ownership BEFORE INSERT ON embedded.cursor
    FOR EACH ROW WHEN (NEW.first_hash = 0 AND NEW.owned_generation IS NULL) EXECUTE FUNCTION embedded.begin_ownership();
REVOKE EXECUTE ON FUNCTION embedded.begin_ownership() FROM PUBLIC;
