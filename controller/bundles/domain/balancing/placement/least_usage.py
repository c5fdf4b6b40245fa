"""A broker well below the mean usage: Pulsar's `LeastResourceUsageWithWeight`, both of them.

A random one of the brokers at least `placement_usage_gap` below the mean of the candidates. If there is none, a
random one of all, the fullest included (PIP-364 names six brokers at 40, 40, 40, 40, 69 and 70, where none is low
enough). The modular manager's keeps moving averages of its own, and every choice advances them. The extensible
manager's reads what brokers report and leaves those that report nothing out of the mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from controller.bundles.domain.balancing.placement.base import Choice, any_of
from controller.bundles.domain.balancing.placement.occupancy import Occupancy
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.balancing.state import BalanceState
from controller.bundles.domain.load.averages import moving_average
from controller.bundles.domain.load.resources import weighted_max_usage


def least_usage(
    bundle_id: str,  # noqa: ARG001 -- every bundle is placed alike
    candidates: Sequence[str],
    occupancy: Occupancy,
    settings: BalanceSettings,
    state: BalanceState,
) -> Choice:
    """The modular manager's. A broker without bundles or messages counts by its present usage, without history."""
    averages = dict(state.placement_averages)
    reports = occupancy.cluster.report_of
    for name in candidates:
        usage = weighted_max_usage(reports[name].resources, settings.weights)
        idle = not occupancy.cluster.bundles_of(name) or reports[name].stats.msg_rate == 0
        averages[name] = moving_average(None if idle else averages.get(name), usage, settings.history_weight)
    best = _well_below({name: averages[name] for name in candidates}, settings)
    return any_of(best, candidates, replace(state, placement_averages=averages))


def least_reported_usage(
    bundle_id: str,  # noqa: ARG001 -- every bundle is placed alike
    candidates: Sequence[str],
    occupancy: Occupancy,  # noqa: ARG001 -- reported averages are in the state
    settings: BalanceSettings,
    state: BalanceState,
) -> Choice:
    """The extensible manager's, on the averages brokers report (`broker_averages`)."""
    known = state.broker_averages
    return any_of(
        _well_below({name: known[name].usage for name in candidates if name in known}, settings),
        candidates,
        state,
    )


def _well_below(usages: Mapping[str, float], settings: BalanceSettings) -> list[str]:
    if not usages:
        return []
    mean = sum(usages.values()) / len(usages)
    return [name for name, usage in usages.items() if usage + settings.placement_usage_gap <= mean]
