-- Clients watch the topics of a namespace: they are told which become live and which go.
CREATE FUNCTION cleave.on_topics_of_namespace() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('cleave_topics', NEW.namespace);
    RETURN NULL;
END $$;
CREATE TRIGGER topic_of_namespace_first AFTER INSERT ON cleave.topic FOR EACH ROW
    WHEN (NEW.state = 'live') EXECUTE FUNCTION cleave.on_topics_of_namespace();
CREATE TRIGGER topic_of_namespace AFTER UPDATE OF state, properties ON cleave.topic FOR EACH ROW
    WHEN ((OLD.state = 'live') <> (NEW.state = 'live') OR (NEW.state = 'live' AND OLD.properties IS DISTINCT FROM NEW.properties))
    EXECUTE FUNCTION cleave.on_topics_of_namespace();
