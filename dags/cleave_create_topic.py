"""Create a scalable topic with one or more equal segments.

Fill in the form and trigger the DAG. *Dry run* logs the segments that the topic would have, and changes
nothing. The policy's maximum number of segments does not apply to a creation.

A run stands for one request: a run that is cleared or retried in Airflow finds the operation of its first
attempt.
"""

from __future__ import annotations

from cleave_dags import action_dag

dag = action_dag("cleave_create_topic", "Cleave: create a topic", "topics create", __doc__)
