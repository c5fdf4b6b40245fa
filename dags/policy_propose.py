"""Put a policy for a topic into shadow: it is asked beside the one in force, and never acts.

*Parameters* is a JSON object of what it sets on top of the policy in force: `{"max_segments": 16}`. What it would have done stands in
`inspect.shadow_decisions`; the DAG `policy_promote` weighs it against the policy in force on the topic's own past. A topic has one candidate
in shadow at most. A run that is retried in Airflow finds its candidate there.
"""

from __future__ import annotations

from cleave_dags import action_dag

dag = action_dag("policy_propose", "Cleave: propose a policy", "policy propose", __doc__)
