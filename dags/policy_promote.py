"""Put a topic's candidate in force, once somebody has seen both figures and approved.

The run asks what the policy in force and the candidate would have cost on the topic's own past; a candidate that would have cost more is
refused there and then, and there is nothing to approve. Else its promotion waits for an approval, a week at most: the DAG `cleave_approvals`
asks under Airflow's *Required Actions*, with both figures. An approval sets the topic's policy, unless the policy in force was changed
meanwhile. *Reject* leaves the candidate in shadow; `cleave policy withdraw` takes it out.
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
