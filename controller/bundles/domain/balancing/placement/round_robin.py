"""Chooses one broker after the other: Pulsar's `RoundRobinBrokerSelector`.

The order is by name, so the choice is a function of the counter and the candidates. Pulsar keeps an order, and renews it only when the
number of candidates changes or the chosen broker has left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from controller.bundles.domain.balancing.placement.base import Choice
from controller.bundles.domain.balancing.placement.occupancy import Occupancy
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.balancing.state import BalanceState

LAST_TURN: Final = 2**31 - 1
"""After this the counter starts again from 0, as in Pulsar."""


def round_robin(
    bundle_id: str,  # noqa: ARG001 -- every bundle is placed alike
    candidates: Sequence[str],
    occupancy: Occupancy,  # noqa: ARG001 -- load plays no part
    settings: BalanceSettings,  # noqa: ARG001 -- nothing to set
    state: BalanceState,
) -> Choice:
    """Choose the candidate whose turn it is: the index in `candidates` is the state's counter modulo their number. The counter advances by
    1, and starts again from 0 after `LAST_TURN`. Without candidates the broker is None, and the counter stays. Bundle, load and settings
    play no part.
    """
    if not candidates:
        return Choice(None, (), state)
    turn = state.round_robin
    chosen = candidates[turn % len(candidates)]
    following = replace(state, round_robin=0 if turn >= LAST_TURN else turn + 1)
    return Choice(chosen, (chosen,), following)
