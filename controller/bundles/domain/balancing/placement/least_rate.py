"""Chooses the broker with the lowest long-term message rate: Pulsar's `LeastLongTermMessageRate`, its default.

Brokers whose weighted maximum of usage is strictly above `overloaded_usage` are left out, unless all are above it (the overload shedder
also takes brokers at the threshold). Bundles that are to come count already. Bundles that are to leave no longer count; in Pulsar they
count until the next report.
"""

from __future__ import annotations

from collections.abc import Sequence

from controller.bundles.domain.balancing.placement.base import Choice, any_of
from controller.bundles.domain.balancing.placement.occupancy import Occupancy
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.balancing.state import BalanceState
from controller.bundles.domain.load.broker_usage import weighted_max_usage


def least_long_term_rate(
    bundle_id: str,  # noqa: ARG001 -- every bundle is placed alike
    candidates: Sequence[str],
    occupancy: Occupancy,
    settings: BalanceSettings,
    state: BalanceState,
) -> Choice:
    """Choose at random among the candidates with the lowest long-term message rate (`Occupancy.long_term_msg_rate`). Candidates whose
    weighted usage is above `overloaded_usage` are left out; if all are, choose at random among all. Without candidates the broker is None.
    Each candidate must have a report.
    """
    reports = occupancy.cluster.report_of
    scores = {
        name: occupancy.long_term_msg_rate(name)
        for name in candidates
        if not weighted_max_usage(reports[name].resources, settings.weights) > settings.overloaded_usage
    }
    least = min(scores.values(), default=0.0)
    return any_of([name for name, score in scores.items() if score == least], candidates, state)
