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
CREATE DATABASE cleave OWNER cleave_owner;
REVOKE CONNECT ON DATABASE cleave FROM PUBLIC;
GRANT CONNECT ON DATABASE cleave TO cleave_owner, cleave_controller, cleave_spark_loader, cleave_inspector,
  cleave_client;
SQL
