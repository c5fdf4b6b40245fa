"""Placement rules, which choose the broker of a bundle among its candidates, and the rules by the name that the settings give.

- `least_long_term_rate`: the broker with the lowest long-term message rate. Pulsar's `LeastLongTermMessageRate`, its default.
- `least_usage` and `least_reported_usage`: a broker well below the mean usage. Pulsar's `LeastResourceUsageWithWeight`, in the variants
  of both load managers. The modular manager keeps its own moving averages, and every choice advances them. The extensible manager uses
  the averages of the brokers' reports, and leaves brokers without a report out of the mean.
- `round_robin`: one broker after the other. Pulsar's `RoundRobinBrokerSelector`.
- `planned`: the broker that the shedder `avg` planned for the bundle. The placement of Pulsar's `AvgShedder`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from controller.bundles.domain.balancing.moves import BalanceState
from controller.bundles.domain.balancing.placement.occupancy import Occupancy
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.load import moving_average, weighted_max_usage
from controller.domain.named import entry_named


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

    The threshold is strict here (the overload shedder also takes brokers at the threshold). Bundles that are to come count already.
    Bundles that are to leave no longer count; in Pulsar they count until the next report.
    """
    reports = occupancy.cluster.report_of
    scores = {
        name: occupancy.long_term_msg_rate(name)
        for name in candidates
        if not weighted_max_usage(reports[name].resources, settings.weights) > settings.overloaded_usage
    }
    least = min(scores.values(), default=0.0)
    return any_of([name for name, score in scores.items() if score == least], candidates, state)


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
    PIP-364 names six brokers at 40, 40, 40, 40, 69 and 70, where none is low enough, so that the fullest may be chosen.
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

    The order of the candidates is by name, so the choice is a function of the counter and the candidates. Pulsar keeps an order, and
    renews it only when the number of candidates changes or the chosen broker has left.
    """
    if not candidates:
        return Choice(None, (), state)
    turn = state.round_robin
    chosen = candidates[turn % len(candidates)]
    following = replace(state, round_robin=0 if turn >= LAST_TURN else turn + 1)
    return Choice(chosen, (chosen,), following)


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


PLACEMENTS: Mapping[str, Placement] = {
    "least_long_term_rate": least_long_term_rate,
    "least_usage": least_usage,
    "least_reported_usage": least_reported_usage,
    "round_robin": round_robin,
    "planned": planned,
}


def placement(name: str) -> Placement:
    """Return the placement of that name. Raises InvalidInput for an unknown name; the message lists the names."""
    return entry_named("placement", name, PLACEMENTS)
