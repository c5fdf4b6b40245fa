"""Merge two neighbouring segments by hand.

Fill in the form and trigger. *Dry run* shows in the log which segments would be sealed and which would take over, and changes
nothing. Cooldowns and caps of the policy do not bind a person. Segments that are no neighbours, or in an operation already, are
refused.

A run stands for one request: if you clear or retry it in Airflow, it finds the operation it started and never merges again.
The result (operation, epoch, child) is the XCom `return_value` of the task.
"""

from __future__ import annotations

from cleave_dags import action_dag

dag = action_dag("cleave_manual_merge", "Cleave: merge two segments", "segments merge", __doc__)
