"""A rule under test: the function that decides, the policy it decides by, and what it needs to see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from controller.domain.decision import Evaluation
from controller.domain.evaluator import decide
from controller.domain.policy import AutoScalePolicy
from controller.domain.situation import Situation

MEMORY_TICKS = 46
"""Ticks of load that a rule with a memory is shown of each segment: that of the moment and 45 before it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`decide` is pure. The split thresholds of `policy` are a segment's capacity, by which the score counts.

    `is_reactive`: the answer rests on loads only through the load records and on time only through `valid_until`, so
    there is no need to ask at every tick. `memory_ticks`: so many of `recent_loads` it is shown; 0 for a rule that reads
    none. `average_minutes`: in place of ticks it is shown moving averages over so many minutes, see
    `observation.Averages`. `actuation_seconds`: how long its own system takes to act; None: as long as everybody's.
    `is_ideal`: it does what no real system can (such as re-cuts that cost nothing), so it is a reference and not a rival.
    """

    name: str
    decide: Callable[[Situation], Evaluation]
    policy: AutoScalePolicy = field(default_factory=AutoScalePolicy)
    is_reactive: bool = False
    memory_ticks: int = MEMORY_TICKS
    average_minutes: tuple[float, ...] = ()
    actuation_seconds: float | None = None
    is_ideal: bool = False


def pip483(name: str = "pip483", policy: AutoScalePolicy | None = None) -> Rule:
    """The project's own evaluator under a policy of the profile `pip483`."""
    return Rule(name, decide, policy or AutoScalePolicy(), is_reactive=True, memory_ticks=0)
