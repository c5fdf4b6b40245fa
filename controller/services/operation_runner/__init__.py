"""Operation runner: takes live operations and does their steps, one at a time, until they are final.

`run` claims them, `next_step` (domain) says what to do, `log_acts` or `mirror_acts` does it on the data plane, and
`operation_set` records the state it leads to under the claim term. A runner may die anywhere: every step is
idempotent and the next runner starts from the row. Nothing here decides what should be done to a topic, writes an
intent or deletes a log (tombstones do).
"""

from __future__ import annotations

from controller.services.operation_runner.context import Checkpoint, Outcome, RunnerContext
from controller.services.operation_runner.run import run_due, run_operation

__all__ = ["Checkpoint", "Outcome", "RunnerContext", "run_due", "run_operation"]
