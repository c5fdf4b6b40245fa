"""The profile `pip483`: Pulsar 5's answers, one action at a time (PIP-483, PIP-486).

The lanes are tried in the order consumer, load, merge. The first lane that finds an action takes it: one split, one
merge, or one batch of rebuckets (one action per segment). If no lane finds an action, buckets that no consumer needs
are given up. `evaluator` lists the differences from Pulsar.
"""

from __future__ import annotations

from collections.abc import Collection

from controller.domain.decision import Decision, Lane
from controller.domain.lanes import consumer, idle_buckets, load, merge
from controller.domain.lanes.evaluation_context import EvaluationContext

CODE_VERSION = "pip483-6"


def answer(context: EvaluationContext, lanes: Collection[Lane]) -> tuple[Decision, ...]:
    """Return the actions of the first of `lanes`, in the order of `Lane`, that has any; empty if none has. The later
    lanes are evaluated for their refusals, which are added to the context. Entry buckets that no consumer needs are
    given up only if there is no other action, and only if the consumer lane is evaluated.
    """
    decisions: tuple[Decision, ...] = ()
    if Lane.CONSUMER in lanes:
        decisions = consumer.answer(context)
    if Lane.LOAD in lanes:
        decisions = load.answer(context, decisions) or decisions
    if Lane.MERGE in lanes:
        decisions = merge.answer(context, decisions) or decisions
    if Lane.CONSUMER in lanes and not decisions:
        decisions = idle_buckets.answer(context)
    return decisions
