#!/bin/sh
# Once before Airflow starts: its database, and the password of the user `admin` from the environment.
set -eu

: "${AIRFLOW_ADMIN_PASSWORD:?}" "${AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE:?}"

umask 077
python -c 'import json, os, sys; json.dump({"admin": os.environ["AIRFLOW_ADMIN_PASSWORD"]}, sys.stdout)' \
  > "$AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"
airflow db migrate
