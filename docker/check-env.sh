#!/bin/sh
# Checks the secrets of .env before anything uses them: each problem is one line, and then the services do not start.
set -eu

problems=0
problem() {
  echo "$1" >&2
  problems=1
}

for name in AIRFLOW_DB_PASSWORD CLEAVE_OWNER_PASSWORD CLEAVE_APP_PASSWORD CLEAVE_LOAD_PASSWORD CLEAVE_READER_PASSWORD \
  CLEAVE_APPLICATION_PASSWORD SPARK_CONNECT_TOKEN; do
  eval "value=\${$name}"
  case $value in
    *[!A-Za-z0-9]*) problem "$name contains a character other than letters and digits, which would break a URL; choose another" ;;
  esac
done
for name in AIRFLOW_JWT_SECRET AIRFLOW_API_SECRET_KEY; do
  eval "value=\${$name}"
  [ "${#value}" -ge 64 ] || problem "$name has ${#value} characters; Airflow needs at least 64, for instance of \`openssl rand -hex 32\`"
done
[ "${#CLEAVE_API_SECRET}" -ge 32 ] || problem "CLEAVE_API_SECRET has ${#CLEAVE_API_SECRET} characters; give at least 32"
python -c 'import base64, os, sys
try:
    sys.exit(len(base64.urlsafe_b64decode(os.environ["AIRFLOW_FERNET_KEY"])) != 32)
except ValueError:
    sys.exit(1)' || problem "AIRFLOW_FERNET_KEY is not 32 bytes in URL-safe Base64; make one with \`openssl rand -base64 32 | tr '+/' '-_'\`"
exit $((problems * 2))
