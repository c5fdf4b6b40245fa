#!/bin/sh
# Writes .env with new secrets. An existing .env is never changed: its passwords are those of a database that exists.
set -eu
cd "$(dirname "$0")/.."

if [ -e .env ]; then
  echo ".env exists and is left as it is; move it away for new secrets" >&2
  exit 2
fi
command -v openssl >/dev/null || { echo "openssl is missing; install it, it draws the secrets" >&2; exit 2; }
umask 077
while read -r line; do
  case $line in
    AIRFLOW_FERNET_KEY=) echo "$line$(openssl rand -base64 32 | tr '+/' '-_')" ;;
    [A-Z]*=) echo "$line$(openssl rand -hex 32)" ;;
    *) echo "$line" ;;
  esac
done < .env.example > .env.new
mv .env.new .env
echo ".env has new secrets"
