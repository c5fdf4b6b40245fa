"""Set which consumers read a subscription (Cleave's, or standard Pulsar consumers), and how they share its segments.

Fill in the form and trigger the DAG in Airflow. A field that is left empty keeps its value. The consumers change only
while no consumer reads the subscription. *Dry run* logs what would be set, and changes nothing.
"""

from __future__ import annotations

from cleave_dags import action_dag

dag = action_dag("cleave_set_subscription", "Cleave: change a subscription", "subscriptions set", __doc__)
