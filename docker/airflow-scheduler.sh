#!/bin/sh
# Airflow's scheduler, whose tasks reach Spark Connect at localhost: without TLS a Connect client sends its token to the name localhost only.
# The forwarder connects to spark-connect for each connection, so it does not matter which of the two containers restarts.
set -eu

while :; do
  socat TCP-LISTEN:15002,bind=127.0.0.1,fork,reuseaddr TCP:spark-connect:15002 || sleep 1
done &

exec airflow scheduler --skip-serve-logs
