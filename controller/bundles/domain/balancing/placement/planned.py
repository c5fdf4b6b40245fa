"""Chooses the broker that the shedder `avg` planned for the bundle: the placement of Pulsar's `AvgShedder`.

If the planned broker is no candidate, a random candidate is chosen, and becomes the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from controller.bundles.domain.balancing.placement.base import Choice, any_of
from controller.bundles.domain.balancing.placement.occupancy import Occupancy
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.balancing.state import BalanceState


def planned(
    bundle_id: str,
    candidates: Sequence[str],
    occupancy: Occupancy,  # noqa: ARG001 -- load was looked at when the plan was made
    settings: BalanceSettings,  # noqa: ARG001 -- nothing to set
    state: BalanceState,
) -> Choice:
    """Choose the broker that the state has planned for the bundle; without a plan, or if this broker is no candidate, a random candidate,
    which becomes the plan. Without candidates the broker is None.
    """
    planned_broker = state.planned.get(bundle_id)
    if planned_broker in candidates and planned_broker is not None:
        return Choice(planned_broker, (planned_broker,), state)
    choice = any_of((), sorted(candidates), state)
    if choice.broker is None:
        return choice
    plans = {**choice.state.planned, bundle_id: choice.broker}
    return replace(choice, state=replace(choice.state, planned=plans))
