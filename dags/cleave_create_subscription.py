"""Create a subscription of a topic.

Fill in the form and trigger the DAG. Choose *stock* consumers for applications on the standard Pulsar client,
with Failover or Exclusive: gates at the broker then keep the order of keys across splits and merges. *Dry run*
logs what would be created, and changes nothing.

A run stands for one request: a run that is cleared or retried in Airflow finds the operation of its first
attempt.
"""

from __future__ import annotations

from cleave_dags import action_dag

dag = action_dag(
    "cleave_create_subscription", "Cleave: create a subscription", "subscriptions create", __doc__
)
