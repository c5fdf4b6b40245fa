"""Create a scalable topic of one or more equal segments.

Fill in the form and trigger. *Dry run* shows in the log which segments the topic would have, and changes nothing. The policy's cap
on segments does not bind a creation.

A run stands for one request: if you clear or retry it in Airflow, it finds the operation it started.
"""

from __future__ import annotations

from cleave_dags import action_dag

dag = action_dag("cleave_create_topic", "Cleave: create a topic", "topics create", __doc__)
