"""Operation runner: claims live operations and performs their steps, one at a time, until they are final.

`claim_and_run` claims operations, `next_step` (domain) chooses the step, `log_steps`, `gate_steps` or `mirror_steps`
performs it on the data plane, and `operation_set` records the resulting state under the claim's term.
`after_a_failure` decides what happens after a failed step. A runner may die at any point: every step is idempotent,
and the next runner continues from the row. This package neither decides what to do with a topic, nor writes intents
of reshapes, nor deletes logs (the sweeper of deletion entries does).
"""

from __future__ import annotations

from controller.services.operation_runner.claim_and_run import run_due, run_operation
from controller.services.operation_runner.context import Checkpoint, Outcome, RunnerContext

__all__ = ["Checkpoint", "Outcome", "RunnerContext", "run_due", "run_operation"]
