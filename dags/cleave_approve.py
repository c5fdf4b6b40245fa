"""Answer what waits for a person about topics, several alike: operations that a policy holds back, and promotions of candidates.

What waits is on Cleave's pages in Airflow, in `inspect.approvals` and in `cleave approvals list`. *Approvals* are its ids, with spaces or
commas between them. An approved operation goes with the next pass. *Dry run* says what would be answered.
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
