"""Set the auto-scale policy of the cluster, a namespace or a topic.

*Parameters* is a JSON object: `{"max_segments": 16, "split_cooldown_seconds": 30}`; null takes a parameter back, so that the level above
applies. *Replace* forgets the level's other parameters. *Dry run* says which parameters would change and which topics would be treated
differently at once, and changes nothing. The pages of Cleave in Airflow have a form with every
parameter and where its value comes from.
"""

from __future__ import annotations

from cleave_dags import action_dag

dag = action_dag("cleave_policy", "Cleave: set an auto-scale policy", "policy set", __doc__)
