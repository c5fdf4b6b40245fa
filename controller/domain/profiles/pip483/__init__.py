"""The profile `pip483`: Pulsar 5's answers, one action at a time (PIP-483, PIP-486).

The lanes, one module each, are tried in the order consumer, load, merge. The first lane that finds an action takes it:
one split, one merge, or one batch of rebuckets (one action per segment). Each lane's `answer` adds its refusals to the
context. If no lane finds an action, buckets that no consumer needs are given up. `MergeConditions` holds the conditions
that a pair of segments must meet before it may merge. `evaluator` lists the differences from Pulsar.
"""

from __future__ import annotations

from collections.abc import Collection

from controller.domain.decision import Decision, Lane
from controller.domain.profiles import idle_buckets
from controller.domain.profiles.evaluation_context import EvaluationContext
from controller.domain.profiles.pip483 import consumer_lane, load_lane, merge_lane

CODE_VERSION = "pip483-8"


def answer(context: EvaluationContext, lanes: Collection[Lane]) -> tuple[Decision, ...]:
    """Return the actions of one lane: the first evaluated lane, in the order consumer, load, merge, that has an
    action. The result is empty if no lane has an action. `lanes`: the lanes to evaluate. The lanes after the chosen
    lane are evaluated as well, but only for their refusals, which are added to the context.

    If no lane has an action and the consumer lane is evaluated, the result is the rebuckets that give up entry
    buckets which no consumer needs.
    """
    decisions: tuple[Decision, ...] = ()
    if Lane.CONSUMER in lanes:
        decisions = consumer_lane.answer(context)
    if Lane.LOAD in lanes:
        decisions = load_lane.answer(context, decisions) or decisions
    if Lane.MERGE in lanes:
        decisions = merge_lane.answer(context, decisions) or decisions
    if Lane.CONSUMER in lanes and not decisions:
        decisions = idle_buckets.answer(context)
    return decisions
