# At the first start: a cluster whose superuser has POSTGRES_PASSWORD, and the scripts of /docker-entrypoint-initdb.d, while the server
# listens on its socket only. Then the server.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  printf %s "$POSTGRES_PASSWORD" > /tmp/password
  initdb --auth-local=trust --auth-host=scram-sha-256 --pwfile=/tmp/password
  rm /tmp/password
  pg_ctl start --wait --options="-c listen_addresses=''"
  for script in /docker-entrypoint-initdb.d/*; do
    "$script"
  done
  pg_ctl stop --wait --mode=fast
  echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
fi
exec postgres -c listen_addresses='*'
