"""A rule under test: the function that decides, the policy it decides by, and what it needs to see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from controller.domain.approvals import waived
from controller.domain.decision import Evaluation
from controller.domain.evaluator import decide
from controller.domain.policy import AutoScalePolicy
from controller.domain.situation import TICKS_OF_MEMORY, Situation


@dataclass(frozen=True, slots=True)
class Rule:
    """`decide` is pure. The split thresholds of `policy` are a segment's capacity, by which the score counts.

    `is_reactive`: the answer rests on loads only through the load records and on time only through `valid_until`, so
    there is no need to ask at every tick. `memory_ticks`: so many of `recent_loads` it is shown; 0 for a rule that reads
    none. `average_minutes`: in place of ticks and records it is shown moving averages over so many minutes (see
    `averages`); what it does rests on whether each is above or below its `average_levels`, in capacities. `actuation_seconds`: how long its own system takes to act; None: as long as everybody's.
    `is_ideal`: it does what no real system can (such as re-cuts that cost nothing), so it is a reference and not a rival.
    """

    name: str
    decide: Callable[[Situation], Evaluation]
    policy: AutoScalePolicy = field(default_factory=AutoScalePolicy)
    is_reactive: bool = False
    memory_ticks: int = TICKS_OF_MEMORY
    average_minutes: tuple[float, ...] = ()
    average_levels: tuple[tuple[float, ...], ...] = ()
    actuation_seconds: float | None = None
    is_ideal: bool = False


def of_policy(policy: AutoScalePolicy, name: str = "") -> Rule:
    """The project's own evaluator under a policy; named like its profile where no other name is given. What waits for a
    person counts as approved at once, since the past has nobody to ask.
    """
    looks_back = policy.profile != "pip483"
    return Rule(
        name or policy.profile,
        decide,
        waived(policy),
        is_reactive=not looks_back,
        memory_ticks=TICKS_OF_MEMORY if looks_back else 0,
    )


def pip483(name: str = "pip483", policy: AutoScalePolicy | None = None) -> Rule:
    """The evaluator under a policy of that profile."""
    return of_policy(policy or AutoScalePolicy(profile="pip483"), name)
