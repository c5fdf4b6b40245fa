#!/bin/sh
# Succeeds if a component of Airflow is healthy: metadatabase, scheduler, triggerer or dag_processor. The API server knows from its
# database, to which the components write heartbeats. `airflow jobs check` would take seconds of processor time for the same answer.
set -eu

curl --fail --silent --max-time 5 http://airflow-apiserver:8080/api/v2/monitor/health |
  grep -o "\"$1\":{[^}]*}" | grep -q '"status":"healthy"'
