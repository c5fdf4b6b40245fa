"""Answer proposals of the DAG `bundle_balance` in namespaces that require approval. The next run of
`bundle_balance` applies approved proposals.

*Approvals* are ids of `inspect.approvals`, separated by spaces or commas; `inspect.bundles_proposals` has the
id of each waiting proposal. *Dry run* shows the result of the answer, and changes nothing. The page of
bundles in Airflow has buttons for this form.
"""

from __future__ import annotations

from cleave_dags import action_dag

dag = action_dag(
    "bundle_approve",
    "Cleave: answer bundle proposals",
    "approvals",
    __doc__,
    answers=("approve", "reject"),
    level="cluster",
)
