"""Set the auto-scaling policy of the cluster, which applies to every topic whose namespace and own policy do
not set a parameter. A user who may trigger this DAG is an administrator of Cleave.

*Parameters* is a JSON object: `{"max_segments": 16, "split_cooldown_seconds": 30}`; null gives a parameter its
default. *Replace* gives all other parameters their defaults. *Dry run* shows which parameters would change and
which topics would have other decisions at once, and changes nothing. Cleave's pages in Airflow have a form
with all parameters.
"""

from __future__ import annotations

from cleave_dags import action_dag

dag = action_dag(
    "cleave_cluster_policy",
    "Cleave: set the auto-scale policy of the cluster",
    "policy set",
    __doc__,
    level="cluster",
)
