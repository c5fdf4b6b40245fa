"""Answer what the DAG `bundle_balance` proposed in namespaces that wait for approval; its next run carries out what is approved.

*Approvals* are ids of `inspect.approvals`, with spaces or commas between them; `inspect.bundles_proposals` has the id of each proposal that
waits. *Dry run* shows what would become of the proposals, and changes nothing. The page of bundles in Airflow has buttons for this form.
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
