-- A name of a topic or a consumer is printable: it appears on terminals, in URLs, logs and pages. The trigger checks rows that are
-- inserted, so that a row of before this rule can still be changed and deleted. The rule is that of controller/domain/names.py.

CREATE FUNCTION cleave.is_name(name text) RETURNS boolean
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT name !~ '[\u0001-\u0020\u007F-\u00A0\u00AD\u034F\u0600-\u0605\u061C\u06DD\u070F\u0890-\u0891\u08E2\u115F-\u1160\u1680\u17B4-\u17B5\u180B-\u180F\u2000-\u200F\u2028-\u202F\u205F-\u206F\u2800\u3000\u3164\uD800-\uF8FF\uFDD0-\uFDEF\uFE00-\uFE0F\uFEFF\uFFA0\uFFF0-\uFFFF\U000110BD\U000110CD\U00013430-\U0001345F\U0001BCA0-\U0001BCA3\U0001D173-\U0001D17A\U000E0000-\U0010FFFF]'
       AND name !~ '(^|/)[.][.]?(/|$)' AND name <> '';
$$;
COMMENT ON FUNCTION cleave.is_name(text) IS
    'True if the text holds no space, no control, formatting or invisible character, and no part that is only dots, as in a path.';

CREATE FUNCTION cleave.demand_name() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'The name of a % holds printable characters only: no space, no control or bidirectional character, no part . or ..', TG_TABLE_NAME
        USING ERRCODE = 'check_violation', CONSTRAINT = TG_TABLE_NAME || '_name_printable';
END $$;
COMMENT ON FUNCTION cleave.demand_name() IS 'Refuses the row.';

CREATE TRIGGER consumer_name_is_printable BEFORE INSERT ON cleave.consumer
    FOR EACH ROW WHEN (NOT cleave.is_name(NEW.name)) EXECUTE FUNCTION cleave.demand_name();
CREATE TRIGGER topic_name_is_printable BEFORE INSERT ON cleave.topic
    FOR EACH ROW WHEN (NOT cleave.is_name(NEW.name)) EXECUTE FUNCTION cleave.demand_name();

-- Dry runs are audited: a dry run costs as much as the change, and shows as much.
ALTER TABLE cleave.audit ADD COLUMN dry_run boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN cleave.audit.dry_run IS 'True if the request was a dry run.';
