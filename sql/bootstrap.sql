-- What must be there before any migration: roles, the right to create, schemas, the ledger.
--
-- Run at the start of every `cleave migrate`, by whoever logs in; every statement changes nothing when it has
-- nothing to do, so that a member of cleave_owner without further rights can run later migrations. From the
-- SET ROLE on, everything is made by and belongs to cleave_owner, whose rights the merge function runs with.

DO $$
DECLARE
    role_name  text;
    can_become text := CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END;
BEGIN
    FOREACH role_name IN ARRAY ARRAY['cleave_owner', 'cleave_controller', 'cleave_spark_loader', 'cleave_inspector', 'cleave_client'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role_name) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', role_name);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL;  -- roles belong to the server, not to the database: another database made it first
            WHEN insufficient_privilege THEN
                RAISE EXCEPTION 'there is no role %, and % may not make it; as a superuser run CREATE ROLE % NOLOGIN, then this again',
                    role_name, current_user, role_name USING ERRCODE = 'insufficient_privilege';
            END;
        END IF;
    END LOOP;
    IF NOT pg_has_role(current_user, 'cleave_owner', can_become) THEN
        EXECUTE format('GRANT cleave_owner TO %I', current_user);
    END IF;
    IF NOT has_database_privilege('cleave_owner', current_database(), 'CREATE') THEN
        EXECUTE format('GRANT CREATE ON DATABASE %I TO cleave_owner', current_database());
    END IF;
END $$;

SET LOCAL ROLE cleave_owner;

CREATE SCHEMA IF NOT EXISTS cleave;
CREATE SCHEMA IF NOT EXISTS inspect;
CREATE SCHEMA IF NOT EXISTS staging;

CREATE TABLE IF NOT EXISTS cleave.migration (
    name       text        PRIMARY KEY,
    checksum   text        NOT NULL,
    applied_by text        NOT NULL DEFAULT session_user,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Runs of `cleave migrate` follow one another.
LOCK TABLE cleave.migration IN EXCLUSIVE MODE;
