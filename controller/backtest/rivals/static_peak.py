"""A fixed number of segments, as an operator sets it who knows the peak."""

from __future__ import annotations

import math
from functools import partial

from controller.backtest.load_series import LoadSeries
from controller.backtest.rivals import common
from controller.backtest.rule import Rule
from controller.domain.decision import Evaluation
from controller.domain.evaluation_input import EvaluationInput
from controller.domain.policy import AutoScalePolicy


def rule(series: LoadSeries, policy: AutoScalePolicy | None = None) -> Rule:
    """Return a rule that splits a topic of one segment at the first tick into as many as the peak of the series has
    capacities (split thresholds of the policy), rounded up, at least 1 and at most the policy's `max_segments`, and then
    changes nothing. `policy` None stands for the default policy.
    """
    policy = policy or AutoScalePolicy()
    peak = float(series.load(policy.thresholds.split.rates).max())
    segments = max(1, min(math.ceil(peak), policy.max_segments))
    return Rule("static peak", partial(decide, segments=segments), policy, memory_ticks=0)


def decide(situation: EvaluationInput, segments: int) -> Evaluation:
    """Return a split of the first segment into `segments` parts (fewer if the segment has fewer hashes), as the only action
    of a topic with one segment; nothing if the topic has several segments or a running reshape, or if one segment suffices.
    """
    (first, *other_segments) = situation.layout.active
    if other_segments or segments == 1 or situation.in_flight:
        return Evaluation()
    return Evaluation((common.equal_split(first, segments, "peak"),))
