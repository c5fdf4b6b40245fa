"""Merge two neighbouring segments by hand.

Fill in the form and trigger the DAG. *Dry run* logs which segments would be sealed and which segment would
take over, and changes nothing. Cooldowns and caps of the policy do not apply to manual merges. Segments that
are not neighbours, or are already in an operation, are refused.

A run stands for one request: a run that is cleared or retried in Airflow finds the operation of its first
attempt, and never merges again. The result (operation, epoch, child) is the XCom `return_value` of the task.
"""

from __future__ import annotations

from cleave_dags import action_dag

dag = action_dag("cleave_manual_merge", "Cleave: merge two segments", "segments merge", __doc__)
