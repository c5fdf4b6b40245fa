"""Promote a topic's candidate after a person has seen the regrets of both policies and approved.

The run simulates the policy in force and the candidate on the topic's own past. A candidate that would have
cost more is refused at once. Otherwise its promotion awaits approval, for at most a week: the DAG
`cleave_approvals` presents it under Airflow's *Required Actions*, with both regrets. An approval sets the
topic's policy, unless the policy in force was changed in the meantime. *Reject* leaves the candidate in
shadow; `cleave policy withdraw` withdraws it.
"""

from __future__ import annotations

from cleave_dags import WAITING_ACTS, action_dag

dag = action_dag(
    "policy_promote",
    "Cleave: promote a policy",
    "policy promote",
    __doc__,
    loader=True,
    outlets=[WAITING_ACTS],
    ask=True,
)
