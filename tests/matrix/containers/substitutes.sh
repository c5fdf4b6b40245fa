#!/bin/sh
# Images with the names that Dockerfile and docker-compose.yml use, made of Debian's packages, for a machine that reaches no image registry.
# An image that is there already is left as it is. They are for tests: PostgreSQL is Debian's 15, Prometheus Debian's 2.42, and of the official
# images' entry points there is what docker-compose.yml uses.
set -eu
here=$(dirname "$(realpath "$0")")
mirror=${1:-http://deb.debian.org/debian}
python=python:3.11-slim-bookworm
postgres=postgres:17-bookworm
prometheus=prom/prometheus:v3.5.0

have() {
  docker image inspect "$1" > /dev/null 2>&1
}

if ! have $python; then
  root=$(mktemp --directory)
  debootstrap --variant=minbase --include=python3,python3-venv,python3-pip,ca-certificates bookworm "$root" "$mirror"
  umount "$root/proc" "$root/sys" 2> /dev/null || true
  ln -s python3 "$root/usr/bin/python"
  rm -rf "$root/var/cache/apt/archives" "$root/var/lib/apt/lists"
  # What this machine trusts, the image trusts.
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
  tar --create --one-file-system --directory "$root" . |
    docker import --change 'ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt' --change 'CMD ["python3"]' - $python
  rm -rf --one-file-system "$root"
fi
have $postgres || docker build --tag $postgres "$here/postgres"
have $prometheus || docker build --tag $prometheus "$here/prometheus"
