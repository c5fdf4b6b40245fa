"""A rule under test: the function that decides, its policy, and the inputs that it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from controller.domain.approval_rule import without_approvals
from controller.domain.decision import Evaluation
from controller.domain.evaluation_input import TICKS_OF_MEMORY, EvaluationInput
from controller.domain.evaluator import decide
from controller.domain.policy import AutoScalePolicy


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule under test, with its policy and the inputs that it needs. `decide` is pure. The split thresholds of
    `policy` are a segment's capacity, on which the score is based.

    `is_reactive`: True if the answer depends on loads only through the load records and on time only through
    `valid_until`, so that the rule need not be evaluated at every tick. `memory_ticks`: number of ticks in
    `recent_loads`; 0 for a rule that reads none. `average_minutes`: lengths of the moving averages that the rule gets
    instead of ticks and records (see `averages`); its answer depends on whether each average is above or below its
    `average_levels`, in capacities. `actuation_seconds`: time that the rule's own system takes to act; None: the time
    of the conditions. `is_ideal`: True if the rule does what no real system can (such as recuts without cost), so
    that it is a reference and not a rival.
    """

    name: str
    decide: Callable[[EvaluationInput], Evaluation]
    policy: AutoScalePolicy = field(default_factory=AutoScalePolicy)
    is_reactive: bool = False
    memory_ticks: int = TICKS_OF_MEMORY
    average_minutes: tuple[float, ...] = ()
    average_levels: tuple[tuple[float, ...], ...] = ()
    actuation_seconds: float | None = None
    is_ideal: bool = False


def of_policy(policy: AutoScalePolicy, name: str = "") -> Rule:
    """Return the project's own evaluator as a rule under a policy, named like its profile if no name is given.
    Actions that need an approval count as approved immediately, because no person can answer in the past.
    """
    uses_memory = policy.profile != "pip483"
    return Rule(
        name or policy.profile,
        decide,
        without_approvals(policy),
        is_reactive=not uses_memory,
        memory_ticks=TICKS_OF_MEMORY if uses_memory else 0,
    )
