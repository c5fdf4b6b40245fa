"""Approve or refuse what the DAG `bundle_balance` proposed; its next run carries out what is approved.

*Proposals* are ids of `inspect.bundles_proposals`, with spaces or commas between them. A reason in *Refuse* refuses the proposals. *Dry
run* shows what would become of them, and changes nothing. The page of bundles in Airflow has buttons for this form.
"""

from __future__ import annotations

from cleave_dags import action_dag

dag = action_dag("bundle_approve", "Cleave: approve bundle proposals", "bundles approve", __doc__)
