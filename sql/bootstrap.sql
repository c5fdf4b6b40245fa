-- Creates the objects that every migration needs: roles, the right to create, schemas, and the list of migrations.
--
-- `cleave migrate` runs this file first, under the user's login. Each statement does nothing if its object exists, so
-- a member of cleave_owner without further rights can run later migrations. After the SET ROLE, cleave_owner creates
-- and owns all objects; the merge functions run with the rights of cleave_owner.

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
                NULL;  -- roles belong to the server, and the migration of another database created this role first
            WHEN insufficient_privilege THEN
                RAISE EXCEPTION 'role % does not exist, and role % may not create it; as a superuser run CREATE ROLE % NOLOGIN, then run the migration again',
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

-- The lock makes concurrent runs of `cleave migrate` wait for each other.
LOCK TABLE cleave.migration IN EXCLUSIVE MODE;
