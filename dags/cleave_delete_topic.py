"""Delete a scalable topic and every log behind it, **unread messages included**.

Fill in the form, name the topic twice, and trigger. *Dry run* shows in the log what would be lost, and changes nothing. From the
request on the topic takes no other request; reshapes under way end first.

A run stands for one request: if you clear or retry it in Airflow, it finds the operation it started.
"""

from __future__ import annotations

from cleave_dags import action_dag

dag = action_dag("cleave_delete_topic", "Cleave: delete a topic", "topics delete", __doc__)
