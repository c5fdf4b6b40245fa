-- Policies at three levels: cluster, namespace and topic; and the history of their changes.

-- The defaults. `cleave migrate` writes them from the dataclass in controller/domain, so that they are declared once.
CREATE TABLE cleave.policy_default (
    parameter  text  PRIMARY KEY,
    value jsonb NOT NULL
);

CREATE TABLE cleave.cluster_policy (
    singleton   boolean     PRIMARY KEY DEFAULT true,
    policy      jsonb       NOT NULL DEFAULT '{}',
    row_version bigint      NOT NULL DEFAULT 1,
    actor       text        NOT NULL DEFAULT 'migrate',
    updated_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT cluster_policy_one_row CHECK (singleton),
    CONSTRAINT cluster_policy_is_object CHECK (jsonb_typeof(policy) = 'object')
);
-- A cluster begins with the profile `adaptive`.
INSERT INTO cleave.cluster_policy (policy) VALUES ('{"profile": "adaptive"}');
COMMENT ON CONSTRAINT cluster_policy_one_row ON cleave.cluster_policy IS 'There is one cluster policy.';
COMMENT ON CONSTRAINT cluster_policy_is_object ON cleave.cluster_policy IS 'A stored policy is a JSON object of parameters.';

CREATE TABLE cleave.namespace_policy (
    namespace   text        PRIMARY KEY,
    policy      jsonb       NOT NULL,
    row_version bigint      NOT NULL DEFAULT 1,
    actor       text        NOT NULL,
    updated_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT namespace_policy_form CHECK (namespace ~ '^[^/[:space:]]+/[^/[:space:]]+$'),
    CONSTRAINT namespace_policy_is_object CHECK (jsonb_typeof(policy) = 'object')
);
COMMENT ON CONSTRAINT namespace_policy_form ON cleave.namespace_policy IS 'A namespace is tenant/namespace.';
COMMENT ON CONSTRAINT namespace_policy_is_object ON cleave.namespace_policy IS 'A stored policy is a JSON object of parameters.';

-- The stored value of a parameter: by the topic, else the namespace, else the cluster. JSON's null is the same as absent.
CREATE FUNCTION cleave.parameter_stored(parameter text, topic jsonb, namespace jsonb, cluster jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce(nullif(topic -> parameter, 'null'), nullif(namespace -> parameter, 'null'), nullif(cluster -> parameter, 'null'));
COMMENT ON FUNCTION cleave.parameter_stored IS 'Value of the nearest level that sets the parameter; NULL: the default applies.';

-- A stored parameter may not fit float8 if a newer version or a manual update wrote it. Evaluations skip such a topic. Its load
-- records use the default of the parameter, so that the aggregation continues for all other topics.
CREATE FUNCTION cleave.parameter_number(value jsonb) RETURNS float8
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN jsonb_typeof(value) = 'number' THEN
        CASE WHEN abs(CAST(value AS numeric)) > 1.7976931348623157e308 THEN NULL
             WHEN abs(CAST(value AS numeric)) < 1e-300 THEN 0
             ELSE CAST(value AS float8) END
    WHEN value IN ('"Infinity"', '"-Infinity"', '"NaN"') THEN CAST(value #>> '{}' AS float8)
END;
COMMENT ON FUNCTION cleave.parameter_number IS 'Number that a parameter holds, also Infinity and NaN as text; NULL: no number that fits float8.';

-- One row for each change of a stored policy, at any level, including changes by SQL.
CREATE TABLE cleave.policy_change (
    change_id  bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    level      text        NOT NULL,
    name       text,
    topic_id   bigint,
    actor      text        NOT NULL,
    before     jsonb       NOT NULL,
    after      jsonb       NOT NULL,
    CONSTRAINT policy_change_level_known CHECK (level IN ('cluster', 'namespace', 'topic')),
    CONSTRAINT policy_change_named CHECK ((level = 'cluster') = (name IS NULL) AND (level = 'topic') = (topic_id IS NOT NULL))
);
CREATE INDEX policy_change_of ON cleave.policy_change (level, name, change_id);
COMMENT ON CONSTRAINT policy_change_level_known ON cleave.policy_change IS 'The level of a policy is cluster, namespace or topic.';
COMMENT ON CONSTRAINT policy_change_named ON cleave.policy_change IS
    'A change of a namespace or topic has its name, a change of a topic also the topic id, and a change of the cluster neither.';
CREATE TRIGGER policy_change_is_history BEFORE UPDATE OR DELETE ON cleave.policy_change
    FOR EACH ROW EXECUTE FUNCTION cleave.refuse_rewriting_history();

-- The program sets the actor in the transaction's setting cleave.actor; without the setting, the actor is the login. The column
-- `actor` of the changed row is not used: a manual update that sets only the policy leaves the previous actor in that column.
CREATE FUNCTION cleave.note_policy_change() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    changed jsonb := to_jsonb(coalesce(NEW, OLD));
    was jsonb := CASE WHEN TG_OP = 'INSERT' THEN '{}' ELSE coalesce(OLD.policy, '{}') END;
    now jsonb := CASE WHEN TG_OP = 'DELETE' THEN '{}' ELSE coalesce(NEW.policy, '{}') END;
    who text := coalesce(nullif(current_setting('cleave.actor', true), ''), session_user::text);
BEGIN
    IF was <> now THEN
        INSERT INTO cleave.policy_change (level, name, topic_id, actor, before, after)
        VALUES (TG_ARGV[0], coalesce(changed ->> 'name', changed ->> 'namespace'), (changed ->> 'topic_id')::bigint, who, was, now);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER cluster_policy_history AFTER UPDATE ON cleave.cluster_policy
    FOR EACH ROW EXECUTE FUNCTION cleave.note_policy_change('cluster');
CREATE TRIGGER namespace_policy_history AFTER INSERT OR UPDATE OR DELETE ON cleave.namespace_policy
    FOR EACH ROW EXECUTE FUNCTION cleave.note_policy_change('namespace');
CREATE TRIGGER topic_policy_history AFTER UPDATE OF policy ON cleave.topic
    FOR EACH ROW WHEN (OLD.policy IS DISTINCT FROM NEW.policy) EXECUTE FUNCTION cleave.note_policy_change('topic');
CREATE TRIGGER topic_policy_first AFTER INSERT ON cleave.topic
    FOR EACH ROW WHEN (NEW.policy IS NOT NULL) EXECUTE FUNCTION cleave.note_policy_change('topic');
