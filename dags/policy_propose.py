"""Propose a policy for a topic into shadow: it is evaluated in addition to the policy in force, and never
acts.

*Parameters* is a JSON object with the parameters that it sets on top of the policy in force:
`{"max_segments": 16}`. `inspect.shadow_decisions` has its decisions. The DAG `policy_promote` compares it
with the policy in force on the topic's own past. A topic has at most one candidate in shadow. A run that is
retried in Airflow finds its candidate.
"""

from __future__ import annotations

from cleave_dags import action_dag

dag = action_dag("policy_propose", "Cleave: propose a policy", "policy propose", __doc__)
