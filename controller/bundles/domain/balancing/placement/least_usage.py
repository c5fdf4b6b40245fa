"""Chooses a broker well below the mean usage: Pulsar's `LeastResourceUsageWithWeight`, in the variants of both load managers.

The choice is random among the candidates that are at least `placement_usage_gap` below the mean of the candidates. If there is none, the
choice is random among all candidates, the fullest included (PIP-364 names six brokers at 40, 40, 40, 40, 69 and 70, where none is low
enough). The modular manager keeps its own moving averages, and every choice advances them. The extensible manager uses the averages of
the brokers' reports, and leaves brokers without a report out of the mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from controller.bundles.domain.balancing.placement.base import Choice, any_of
from controller.bundles.domain.balancing.placement.occupancy import Occupancy
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.balancing.state import BalanceState
from controller.bundles.domain.load.averages import moving_average
from controller.bundles.domain.load.broker_usage import weighted_max_usage


def least_usage(
    bundle_id: str,  # noqa: ARG001 -- every bundle is placed alike
    candidates: Sequence[str],
    occupancy: Occupancy,
    settings: BalanceSettings,
    state: BalanceState,
) -> Choice:
    """Choose at random among the candidates whose average usage is at least `placement_usage_gap` below the mean of all candidates; if
    there is none, among all candidates. Advance the candidates' averages in the state (`placement_averages`), as the modular manager
    does.

    The average of a broker without bundles or messages starts again from its present usage. Without candidates the broker is None.
    """
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
    """Choose as `least_usage` does, but by the averages of the brokers' reports (`broker_averages`), as the extensible manager does. A
    candidate without an average does not count in the mean, and can be chosen only if no other is low enough.
    """
    averages = state.broker_averages
    return any_of(
        _well_below({name: averages[name].usage for name in candidates if name in averages}, settings),
        candidates,
        state,
    )


def _well_below(usages: Mapping[str, float], settings: BalanceSettings) -> list[str]:
    """Return the brokers whose usage is at least `placement_usage_gap` below the mean of all; empty without brokers."""
    if not usages:
        return []
    mean = sum(usages.values()) / len(usages)
    return [name for name, usage in usages.items() if usage + settings.placement_usage_gap <= mean]
