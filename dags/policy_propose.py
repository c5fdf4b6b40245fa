"""Propose a candidate policy for a topic: Cleave evaluates the candidate in shadow, in addition to the policy
in force, and never performs the candidate's decisions.

*Parameters* is a JSON object with the parameters that differ from the policy in force:
`{"max_segments": 16}`. `inspect.shadow_decisions` has the decisions of the candidate. The DAG
`policy_promote` compares the candidate with the policy in force on the topic's own past. A topic has at most
one candidate in shadow. A run that is retried in Airflow finds its candidate.
"""

from __future__ import annotations

from cleave_dags import action_dag

dag = action_dag("policy_propose", "Cleave: propose a policy", "policy propose", __doc__)
