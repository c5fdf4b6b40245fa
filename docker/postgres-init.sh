#!/bin/sh
# Two databases and their logins, at the first start of the server. Passwords come from the environment and go to
# psql as variables, so that no character of theirs is SQL. The roles without LOGIN get their rights from
# `cleave migrate`, which finds them here and needs no right to create roles.
set -eu

: "${AIRFLOW_DB_PASSWORD:?}" "${CLEAVE_OWNER_PASSWORD:?}" "${CLEAVE_APP_PASSWORD:?}" "${CLEAVE_LOAD_PASSWORD:?}" \
  "${CLEAVE_READER_PASSWORD:?}" "${CLEAVE_APPLICATION_PASSWORD:?}"

psql --no-psqlrc --quiet --set=ON_ERROR_STOP=1 --username "${POSTGRES_USER:-postgres}" --dbname postgres \
  --set=airflow="$AIRFLOW_DB_PASSWORD" \
  --set=owner="$CLEAVE_OWNER_PASSWORD" \
  --set=app="$CLEAVE_APP_PASSWORD" \
  --set=load="$CLEAVE_LOAD_PASSWORD" \
  --set=reader="$CLEAVE_READER_PASSWORD" \
  --set=application="$CLEAVE_APPLICATION_PASSWORD" <<'SQL'
CREATE ROLE airflow LOGIN PASSWORD :'airflow';
CREATE DATABASE airflow OWNER airflow;
REVOKE CONNECT ON DATABASE airflow FROM PUBLIC;

CREATE ROLE cleave_owner NOLOGIN;
CREATE ROLE cleave_controller NOLOGIN;
CREATE ROLE cleave_spark_loader NOLOGIN;
CREATE ROLE cleave_inspector NOLOGIN;
CREATE ROLE cleave_client NOLOGIN;
CREATE ROLE cleave_migrator LOGIN PASSWORD :'owner' IN ROLE cleave_owner;
CREATE ROLE cleave_app LOGIN PASSWORD :'app' IN ROLE cleave_controller;
CREATE ROLE cleave_load LOGIN PASSWORD :'load' IN ROLE cleave_spark_loader;
CREATE ROLE cleave_reader LOGIN PASSWORD :'reader' IN ROLE cleave_inspector;
CREATE ROLE cleave_application LOGIN PASSWORD :'application' IN ROLE cleave_client;

-- The limit on connections holds always; time-outs bound accidents, since a login may set others. Processes of Cleave set their own.
ALTER ROLE cleave_load CONNECTION LIMIT 10;
ALTER ROLE cleave_reader CONNECTION LIMIT 10;
ALTER ROLE cleave_application CONNECTION LIMIT 40;
ALTER ROLE cleave_reader SET statement_timeout = '60s';
ALTER ROLE cleave_application SET statement_timeout = '30s';
ALTER ROLE cleave_reader SET lock_timeout = '10s';
ALTER ROLE cleave_application SET lock_timeout = '10s';
ALTER ROLE cleave_reader SET idle_in_transaction_session_timeout = '10s';
ALTER ROLE cleave_application SET idle_in_transaction_session_timeout = '10s';
-- So that the worker can end a transaction of an application that keeps a log locked.
GRANT pg_signal_backend, pg_read_all_stats TO cleave_owner;

CREATE DATABASE cleave OWNER cleave_owner;
REVOKE CONNECT, TEMPORARY ON DATABASE cleave FROM PUBLIC;
GRANT CONNECT ON DATABASE cleave TO cleave_owner, cleave_controller, cleave_spark_loader, cleave_inspector,
  cleave_client;
GRANT TEMPORARY ON DATABASE cleave TO cleave_owner, cleave_controller, cleave_spark_loader;
REVOKE CONNECT, TEMPORARY ON DATABASE postgres, template1 FROM PUBLIC;

-- `cleave migrate` does this too, where it may: functions of the server belong to its superuser.
\connect cleave
SELECT format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', oid::regprocedure) FROM pg_proc
 WHERE pronamespace = 'pg_catalog'::regnamespace AND proname ~ '^(pg_(try_)?advisory_|lo_|loread$|lowrite$)' \gexec
SQL
