#!/bin/sh
# Once before Airflow starts: its database, and from the environment the passwords of its users: `admin` is a person, `cleave`
# the worker, which posts asset events.
set -eu

: "${AIRFLOW_ADMIN_PASSWORD:?}" "${CLEAVE_AIRFLOW_PASSWORD:?}" "${AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE:?}"

umask 077
python -c 'import json, os, sys
names = {"admin": "AIRFLOW_ADMIN_PASSWORD", "cleave": "CLEAVE_AIRFLOW_PASSWORD"}
json.dump({user: os.environ[name] for user, name in names.items()}, sys.stdout)' \
  > "$AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"
airflow db migrate
