"""Split a segment by hand: in two at the midpoint, at cut points, or into equal parts.

Fill in the form and trigger. *Dry run* shows in the log which segments would be sealed and which would take over, and changes
nothing. Cooldowns and caps of the policy do not bind a person; a segment that is in an operation already is refused.

A run stands for one request: if you clear or retry it in Airflow, it finds the operation it started and never splits again.
The result (operation, epoch, children) is the XCom `return_value` of the task.
"""

from __future__ import annotations

from cleave_dags import action_dag

dag = action_dag("cleave_manual_split", "Cleave: split a segment", "segments split", __doc__)
