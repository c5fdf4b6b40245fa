"""Interface of a placement rule, and the random choice among equal brokers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controller.bundles.domain.balancing.placement.occupancy import Occupancy
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.balancing.state import BalanceState


@dataclass(frozen=True, slots=True)
class Choice:
    """The broker chosen, None without candidates. `among`: the brokers that were equally good. `state`: the state after the choice."""

    broker: str | None
    among: tuple[str, ...]
    state: BalanceState


Placement = Callable[[str, Sequence[str], Occupancy, BalanceSettings, BalanceState], Choice]
"""Chooses for a bundle, which is named first, one of the candidates: names of brokers with a report. Pure; it returns the
state after it.

Where Pulsar draws at random, a counter in the state decides. The same state gives the same choice.
"""


def any_of(best: Sequence[str], candidates: Sequence[str], state: BalanceState) -> Choice:
    """Choose one of `best` at random, or one of the candidates if `best` is empty; the state in the result counts the draw. If both are
    empty, the broker is None and the state is unchanged.
    """
    among = tuple(best) or tuple(candidates)
    if not among:
        return Choice(None, (), state)
    index, state = state.draw(len(among))
    return Choice(among[index], among, state)
