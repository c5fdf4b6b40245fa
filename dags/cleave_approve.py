"""Give approvals about topics the same answer: operations that a policy holds back, and promotions of
candidates.

The approvals are on Cleave's pages in Airflow, in `inspect.approvals` and in `cleave approvals list`.
*Approvals* are their ids, separated by spaces or commas. An approved operation begins with the next pass.
*Dry run* shows what would be answered, and changes nothing.
"""

from __future__ import annotations

from cleave_dags import action_dag

dag = action_dag(
    "cleave_approve",
    "Cleave: answer what waits",
    "approvals",
    __doc__,
    answers=("approve", "reject"),
    level=None,
)
