#!/bin/sh
# Is a component of Airflow (scheduler, triggerer, dag_processor) healthy? The API server knows from the component's heartbeats in the
# database; `airflow jobs check` would take seconds of processor time for the same answer.
set -eu

curl --fail --silent --max-time 5 http://airflow-apiserver:8080/api/v2/monitor/health |
  grep -o "\"$1\":{[^}]*}" | grep -q '"status":"healthy"'
