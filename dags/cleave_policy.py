"""Set the auto-scaling policy of a namespace or a topic. That of the cluster has the form `cleave_cluster_policy`.

*Parameters* is a JSON object: `{"max_segments": 16, "split_cooldown_seconds": 30}`; null removes a parameter,
so that the level above applies. *Replace* removes the level's other parameters. *Dry run* shows which
parameters would change and which topics would have other decisions at once, and changes nothing. Cleave's
pages in Airflow have a form with all parameters and the sources of their values.
"""

from __future__ import annotations

from cleave_dags import action_dag

dag = action_dag("cleave_policy", "Cleave: set an auto-scale policy", "policy set", __doc__)
