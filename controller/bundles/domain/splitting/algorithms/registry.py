"""The split algorithms by the name that a policy or an operator gives, and the common function that runs one.

Names are Pulsar's, in its exact case. A broker gets the cut points of every algorithm as positions.
"""

from __future__ import annotations

from collections.abc import Mapping

from controller.bundles.domain.splitting.algorithms.base import (
    CutRefusal,
    CutRefusalReason,
    SplitAlgorithm,
    SplitPlan,
    SplitRequest,
)
from controller.bundles.domain.splitting.algorithms.by_position import (
    range_equally,
    specified_positions,
    specified_topic_count_equally,
    topic_count_equally,
)
from controller.bundles.domain.splitting.algorithms.flow_or_qps_equally import flow_or_qps_equally
from controller.bundles.domain.splitting.algorithms.isolate_outstanding import isolate_outstanding
from controller.bundles.domain.splitting.algorithms.load_equally import load_equally
from controller.domain.named import entry_named

DEFAULT_SPLIT_ALGORITHM = "range_equally_divide"
"""`defaultNamespaceBundleSplitAlgorithm`."""

SPLIT_ALGORITHMS: Mapping[str, SplitAlgorithm] = {
    "range_equally_divide": range_equally,
    "topic_count_equally_divide": topic_count_equally,
    "specified_positions_divide": specified_positions,
    "flow_or_qps_equally_divide": flow_or_qps_equally,
    "specified_topic_count_equally_divide": specified_topic_count_equally,
    "isolate_outstanding": isolate_outstanding,
    "load_equally_divide": load_equally,
}

NAMED_BY_PEOPLE: Mapping[str, str] = {
    "specified_positions_divide": "positions",
    "specified_topic_count_equally_divide": "a topic",
}
"""Algorithms that no policy can use, and the options that a request must name for them."""


def split_algorithm(name: str) -> SplitAlgorithm:
    """Return the algorithm of that name. Raises InvalidInput for an unknown name; the message lists the names."""
    return entry_named("split algorithm", name, SPLIT_ALGORITHMS)


def plan_split(name: str, request: SplitRequest) -> SplitPlan | CutRefusal:
    """Return the cuts of the algorithm with the load of each part, or its refusal.

    A bundle that is too narrow, a budget of 0, and a plan over the budget are refused, whatever the algorithm. Raises InvalidInput for an
    unknown name or, after the first two of these refusals, for options that the algorithm cannot use.
    """
    algorithm = split_algorithm(name)
    bundle, budget = request.bundle, request.options.bundle_budget
    if not bundle.can_split:
        return CutRefusal(
            str(bundle), CutRefusalReason.NOT_SPLITTABLE, "hashes", bundle.upper - bundle.lower, 2
        )
    if budget == 0:
        return CutRefusal(str(bundle), CutRefusalReason.AT_MAX_BUNDLES, "bundles", 0, 1)
    answer = algorithm(request)
    if isinstance(answer, CutRefusal):
        return answer
    plan = SplitPlan.of(name, request, answer)
    if budget is not None and len(plan.cuts) > budget:
        return CutRefusal(str(bundle), CutRefusalReason.AT_MAX_BUNDLES, "bundles", budget, len(plan.cuts))
    return plan
