"""Delete a scalable topic and all its logs, **unread messages included**.

Fill in the form, enter the topic's name twice, and trigger the DAG. *Dry run* logs what would be lost, and
changes nothing. After the request, the topic accepts no further request; reshapes in progress end first.

A run stands for one request: a run that is cleared or retried in Airflow finds the operation of its first
attempt.
"""

from __future__ import annotations

from cleave_dags import action_dag

dag = action_dag("cleave_delete_topic", "Cleave: delete a topic", "topics delete", __doc__)
