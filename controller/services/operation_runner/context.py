"""Who runs operations, on what, for how long at a time, and how a run can end."""

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
from controller.services.operation_runner.claims_in_hand import ClaimsInHand
from controller.store.postgres.engine import Store

PARALLEL_CALLS = 4

Checkpoint = Callable[[str], None]
"""Told `<step>:before` and `<step>:after` each commit of a step; tests end or pause the process there."""


class Outcome(StrEnum):
    """How a run ended."""

    FINISHED = "finished"
    DEFERRED = "deferred"
    """It failed for now; the journal holds the error and the instant of the next attempt."""
    FENCED_OUT = "fenced-out"
    """The claim has passed to another runner, which goes on from the last recorded step."""
    STOPPED = "stopped"
    NOT_CLAIMED = "not-claimed"
    """Final already, not due yet, or somebody else's."""


def _ignore(_name: str) -> None:
    """No checkpoint."""


def _never() -> bool:
    return False


def new_incarnation() -> str:
    """Return a name for one life of a process, used once."""
    return os.urandom(4).hex()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerContext:
    """Who runs, on what, and for how long a claim lasts. May be shared by threads if the data planes may."""

    store: Store
    planes: Mapping[str, DataPlane]
    runner_id: str
    lease_seconds: float = 30.0
    parallel_calls: int = PARALLEL_CALLS
    checkpoint: Checkpoint = _ignore
    should_stop: Callable[[], bool] = _never
    clock: Clock = field(default_factory=SystemClock)
    claiming: threading.Lock = field(default_factory=threading.Lock)
    """Threads claim one after the other: side by side each would get a part of what could share its calls."""
    incarnation: str = field(default_factory=new_incarnation)
    in_hand: ClaimsInHand = field(default_factory=ClaimsInHand)
    """The memory of this incarnation. It proves which of the claims that the journal shows may be resumed."""

    def __post_init__(self) -> None:
        keepers = [plane for plane in self.planes.values() if isinstance(plane, LayoutKeeper)]
        longest = max([self.call_timeout_seconds, *(one.reshape_timeout_seconds for one in keepers)])
        if self.lease_seconds <= longest:
            raise InvalidInput(
                f"a claim of {self.lease_seconds:g} s does not outlive a data-plane call of {longest:g} s; raise "
                "operation_claim_seconds, or lower call_timeout_seconds and reshape_timeout_seconds"
            )

    @property
    def claimant(self) -> str:
        """The runner as claims name it. A restarted process of the same name is another claimant: it has no memory of
        the calls that were made before.
        """
        return f"{self.runner_id}/{self.incarnation}"

    @property
    def call_timeout_seconds(self) -> float:
        """The longest ordinary call of any data plane here; a takeover waits that long after a claim's expiry."""
        return max((plane.call_timeout_seconds for plane in self.planes.values()), default=0.0)
