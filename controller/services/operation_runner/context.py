"""The context of an operation runner: store, data planes, duration of claims, and the possible ends of a run."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from controller.clock import Clock, SystemClock
from controller.dataplane.base import DataPlane
from controller.dataplane.layout_keeper import LayoutKeeper
from controller.domain.errors import InvalidInput
from controller.services.operation_runner.operations_in_progress import OperationsInProgress
from controller.store.postgres.engine import Store

PARALLEL_CALLS = 4
"""Default of the number of data-plane calls that a runner makes at the same time."""

Checkpoint = Callable[[str], None]
"""Called with `<step>:before` and `<step>:after` around each commit of a step; tests end or pause the process
there.
"""


class Outcome(StrEnum):
    """End of a run."""

    FINISHED = "finished"
    """The operation is done or aborted."""
    DEFERRED = "deferred"
    """The operation failed for now, or waits. The journal holds the reason and the instant of the next attempt."""
    FENCED_OUT = "fenced-out"
    """The claim has expired or passed to another runner, or a fail-over lost the operation. The next runner continues
    from the last recorded step.
    """
    STOPPED = "stopped"
    """The runner stopped. The claim is released, and any runner may continue."""
    NOT_CLAIMED = "not-claimed"
    """The runner got no claim, for one of the reasons that `run_operation` lists."""


def _ignore(_name: str) -> None:
    """Ignore the checkpoint."""


def _never() -> bool:
    return False


def new_incarnation() -> str:
    """Return a unique name for one process; each call returns another name."""
    return os.urandom(4).hex()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerContext:
    """Identity, store, data planes and claim duration (`lease_seconds`) of a runner. `should_stop` is called
    between steps; once it returns True, threads release their claims and end. May be shared by threads if the
    data planes may. Raises InvalidInput at construction unless a claim lasts longer than every call of the data
    planes.
    """

    store: Store
    planes: Mapping[str, DataPlane]
    runner_id: str
    lease_seconds: float = 30.0
    parallel_calls: int = PARALLEL_CALLS
    checkpoint: Checkpoint = _ignore
    should_stop: Callable[[], bool] = _never
    clock: Clock = field(default_factory=SystemClock)
    claiming: threading.Lock = field(default_factory=threading.Lock)
    """Lock under which threads claim one after another. Without it, operations that could share calls would
    be divided among threads.
    """
    incarnation: str = field(default_factory=new_incarnation)
    in_progress: OperationsInProgress = field(default_factory=OperationsInProgress)
    """Memory of this incarnation. It proves which claims in the journal may be resumed."""

    def __post_init__(self) -> None:
        keepers = [plane for plane in self.planes.values() if isinstance(plane, LayoutKeeper)]
        longest = max([self.call_timeout_seconds, *(keeper.reshape_timeout_seconds for keeper in keepers)])
        if self.lease_seconds <= longest:
            raise InvalidInput(
                f"a claim of {self.lease_seconds:g} s does not outlive a data-plane call of {longest:g} s; raise "
                "operation_claim_seconds, or lower call_timeout_seconds and reshape_timeout_seconds"
            )

    @property
    def claimant(self) -> str:
        """Name of the runner in claims. A restarted process of the same name is another claimant, because it
        does not know the calls that were made before.
        """
        return f"{self.runner_id}/{self.incarnation}"

    @property
    def call_timeout_seconds(self) -> float:
        """Longest time of an ordinary call of any data plane here. A takeover waits that long after a claim's
        expiry.
        """
        return max((plane.call_timeout_seconds for plane in self.planes.values()), default=0.0)
