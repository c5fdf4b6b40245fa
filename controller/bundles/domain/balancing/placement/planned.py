"""The broker that the shedder `avg` chose: the placing half of Pulsar's `AvgShedder`.

The broker planned for the bundle if it is a candidate; otherwise a random one, which is the plan from now on.
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
    """Decide by the rule that this module describes."""
    meant = state.planned.get(bundle_id)
    if meant in candidates and meant is not None:
        return Choice(meant, (meant,), state)
    choice = any_of((), sorted(candidates), state)
    if choice.broker is None:
        return choice
    plans = {**choice.state.planned, bundle_id: choice.broker}
    return replace(choice, state=replace(choice.state, planned=plans))
