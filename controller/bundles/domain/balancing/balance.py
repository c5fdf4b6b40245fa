"""Decides the moves of one cycle, a pure function: all data of the decision are in `BalanceInputs`, moves and refusals in
`BalanceVerdict`.

The shedder proposes bundles to move. If the shedder names no destination, the placement chooses one. Every proposal passes the same
checks. `splitting.triggers` decides splits from the same readings; `cycle` combines both and drops the moves of bundles that are to be
split. A service performs the moves and passes those that succeeded to `BalanceState.after`.

Pending moves are decided but not yet visible: awaiting approval, or running. A cycle treats them as done. Otherwise each cycle would
decide on the same uneven figures again, and propose the whole difference once more with other bundles. The load that a bundle takes along
is its share of its broker's traffic, of each resource, as `even` estimates it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import Final

from controller.bundles.domain.balancing.moves import (
    BalanceState,
    BrokerAverages,
    Move,
    MoveRefusal,
    MoveRefusalReason,
    exchanges,
)
from controller.bundles.domain.balancing.placement import Choice, Occupancy, placement
from controller.bundles.domain.balancing.settings import BalanceSettings, validate
from controller.bundles.domain.balancing.shedding.avg import avg
from controller.bundles.domain.balancing.shedding.even import even
from controller.bundles.domain.balancing.shedding.overload_and_threshold import overload, threshold
from controller.bundles.domain.balancing.shedding.shedder import Shedder, Shedding
from controller.bundles.domain.balancing.shedding.transfer import transfer
from controller.bundles.domain.balancing.shedding.uniform import uniform
from controller.bundles.domain.cluster import BrokerReport, Bundle, Cluster
from controller.bundles.domain.load import (
    RESOURCES,
    BrokerResources,
    BundleStats,
    ResourceUsage,
    figures_of,
    max_usage,
    moving_average,
    share_of,
    totals,
    unknown_usage,
    weighted_max_usage,
)
from controller.domain.named import entry_named

SHEDDERS: Mapping[str, Shedder] = {
    "even": even,
    "overload": overload,
    "threshold": threshold,
    "uniform": uniform,
    "avg": avg,
    "transfer": transfer,
}

BY_AVERAGES: Final = frozenset({"threshold", "transfer"})
"""Shedders that use usage averaged over time, which a move changes slowly."""

WITHOUT_USAGE: Final = frozenset({"uniform"})
"""Shedders that do not use the resources that brokers report. With any other, a broker whose usage is unknown cannot take part."""


def shedder(name: str) -> Shedder:
    """Return the shedder of that name. Raises InvalidInput for an unknown name; the message lists the names."""
    return entry_named("shedder", name, SHEDDERS)


@dataclass(frozen=True, slots=True, order=True)
class PendingMove:
    """A bundle that `source` owns by the last reading, and that `destination` is to own."""

    bundle_id: str
    source: str
    destination: str


def as_if_made(cluster: Cluster, pending: Iterable[PendingMove]) -> Cluster:
    """Return the cluster with these moves made: the owners of the bundles, and the resources and totals in the
    reports of source and destination. `pending` has at most one move of a bundle.

    A move is ignored if its bundle is unknown or its source does not own the bundle. If the source has no report, no
    report changes. If only the destination has no report, only the report of the source changes.
    """
    bundles = cluster.bundle_by_id
    made = [
        move for move in pending if move.bundle_id in bundles and bundles[move.bundle_id].owner == move.source
    ]
    if not made:
        return cluster
    reports = dict(cluster.report_of)
    for move in made:
        source, destination = cluster.report_of.get(move.source), reports.get(move.destination)
        if source is None:
            continue
        bundle = bundles[move.bundle_id]
        taken = _taken_along(bundle, source, cluster.bundles_of(move.source))
        reports[move.source] = _changed(reports[move.source], taken, bundle, -1)
        if destination is not None:
            reports[move.destination] = _changed(destination, taken, bundle, 1)
    brokers = tuple(replace(broker, report=reports.get(broker.name)) for broker in cluster.brokers)
    moved = cluster.with_owners({move.bundle_id: move.destination for move in made})
    return replace(moved, brokers=brokers)


def _taken_along(bundle: Bundle, source: BrokerReport, owned: Iterable[Bundle]) -> dict[str, float]:
    """Return the usage that the bundle takes along from its broker (`source`), by resource, in the unit of the report: the broker's usage
    times the bundle's share (`share_of`) of the traffic of `owned`, all bundles of the broker, the bundle included. 0 for a bundle without
    figures.
    """
    stats = [owned_bundle.stats for owned_bundle in owned if owned_bundle.stats is not None]
    own = bundle.stats or BundleStats()
    return {
        name: getattr(source.resources, name).usage
        * share_of(own, totals(stats, figures_of(name)), figures_of(name))
        for name in RESOURCES
    }


def _changed(report: BrokerReport, taken: Mapping[str, float], bundle: Bundle, sign: int) -> BrokerReport:
    """Return the broker's report after the bundle has arrived (`sign` 1) or left (-1). `taken` is the bundle's usage of each resource, in
    the unit of the report. Limits and `reported_at` stay, and no figure falls below 0.
    """
    usages = {}
    for name in RESOURCES:
        was: ResourceUsage = getattr(report.resources, name)
        usages[name] = ResourceUsage(max(was.usage + sign * taken[name], 0.0), was.limit)
    own = bundle.stats or BundleStats()
    stats = {f.name: max(getattr(report.stats, f.name) + sign * getattr(own, f.name), 0) for f in fields(own)}
    return replace(report, resources=BrokerResources(**usages), stats=BundleStats(**stats))


_WITHOUT_REPORT = (MoveRefusalReason.NO_REPORT, MoveRefusalReason.UNKNOWN_USAGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceInputs:
    """Inputs of the moves of one cycle. `now_ms`: milliseconds since the Unix epoch.

    `pending`: moves of earlier cycles that wait or run. They count as made, and their bundles are not moved.
    """

    cluster: Cluster
    settings: BalanceSettings = field(default_factory=BalanceSettings)
    state: BalanceState = field(default_factory=BalanceState)
    now_ms: int
    pending: tuple[PendingMove, ...] = ()


@dataclass(frozen=True, slots=True)
class BalanceVerdict:
    """Moves and refusals. Each move has a destination other than its source, and no bundle is moved twice.

    `state` is for the next cycle if nothing is moved. If moves succeeded, the next state is `state.after` of these moves.
    """

    moves: tuple[Move, ...]
    refusals: tuple[MoveRefusal, ...]
    state: BalanceState


def balance(inputs: BalanceInputs) -> BalanceVerdict:
    """Return the moves of one cycle in the shedder's order, the refusals, and the state for the next cycle. Pure.

    The shedder proposes moves, of which at most `max_moves_per_cycle` (0: all) are placed. A proposal becomes a
    refusal if no other broker is allowed, if the placement chooses no broker or the source itself, or if
    `shed_bundles_with_policies` excludes the bundle. If a proposal of an exchange (`exchanges`) is dropped or
    refused, the whole exchange is dropped. A broker without a report, or whose report lacks a usage that counts, also
    has a refusal. Raises InvalidPolicy for settings that are not valid together.
    """
    cluster, settings = inputs.cluster, inputs.settings
    validate(settings)
    old = already_counted(cluster, inputs.state)
    state = observed(cluster, settings, inputs.state, inputs.now_ms)
    resting = frozenset(move.bundle_id for move in inputs.pending)
    cluster = as_if_made(replace(cluster, repeated=old, resting=resting), inputs.pending)
    cluster, unknown = _measured(cluster, settings)
    shed = _shed(cluster, settings, state, inputs)
    wanted, refusals = _limited(shed.moves, settings)
    refusals = [*unknown, *shed.refusals, *_silent(cluster, (*unknown, *shed.refusals)), *refusals]
    state, occupancy = shed.state, Occupancy(cluster, settings)
    moves: list[Move] = []
    for exchange in exchanges(wanted):
        placed, refusal, state = _placed(exchange, occupancy, settings, state)
        moves += placed
        refusals += [refusal] if refusal else []
    return BalanceVerdict(tuple(moves), tuple(refusals), state)


def observed(cluster: Cluster, settings: BalanceSettings, state: BalanceState, now_ms: int) -> BalanceState:
    """Return `state` with the reports of `cluster` counted in `broker_averages`. Entries and plans of brokers that
    have left are removed, and so are entries of `unloaded_bundles` whose grace period has ended. `now_ms`:
    milliseconds since the Unix epoch.

    A report counts once, however many cycles read the report. A broker without a report keeps its averages.
    """
    grace_over = now_ms - settings.grace_seconds * 1_000
    state = state.forgetting((broker.name for broker in cluster.brokers), grace_over)
    averages = dict(state.broker_averages)
    for name, report in cluster.reporting:
        if state.has_counted(name, report.reported_at):
            continue
        old = averages.get(name)
        usage, rate = weighted_max_usage(report.resources, settings.weights), report.stats.byte_rate
        averages[name] = BrokerAverages(
            moving_average(old.usage if old else None, usage, settings.history_weight),
            moving_average(old.byte_rate if old else None, rate, settings.history_weight),
            report.reported_at,
        )
    return replace(state, broker_averages=averages)


def already_counted(cluster: Cluster, state: BalanceState) -> frozenset[str]:
    """Return the brokers whose report an earlier cycle has counted."""
    return frozenset(
        name for name, report in cluster.reporting if state.has_counted(name, report.reported_at)
    )


def place(bundle: Bundle, occupancy: Occupancy, settings: BalanceSettings, state: BalanceState) -> Choice:
    """Choose a broker for a bundle by the placement of the settings, whether or not a broker owns the bundle now. The
    present owner may be chosen. The broker in the result is None if there is no candidate. `occupancy` does not
    change.

    If the usage of the chosen broker (without weights) is above `overloaded_usage`, the placement chooses once more,
    among all brokers that the isolation policy allows, as in Pulsar; for a bundle of an anti-affinity group, among
    the same candidates. The second choice may be above the threshold too. The state in the result counts both
    choices.
    """
    choose, candidates = placement(settings.placement), occupancy.candidates(bundle)
    choice = choose(bundle.bundle_id, candidates, occupancy, settings, state)
    if choice.broker is None:
        return choice
    usage = max_usage(occupancy.cluster.report_of[choice.broker].resources)
    if usage > settings.overloaded_usage:
        grouped = occupancy.cluster.policy_of(bundle.namespace).anti_affinity_group is not None
        wider = candidates if grouped else occupancy.allowed(bundle)
        return choose(bundle.bundle_id, wider, occupancy, settings, choice.state)
    return choice


def _shed(
    cluster: Cluster, settings: BalanceSettings, state: BalanceState, inputs: BalanceInputs
) -> Shedding:
    """Return the proposals of the configured shedder.

    A shedder that uses averages over time does not see pending moves. Its moves from a broker with pending moves are replaced by one
    refusal for the broker. The other moves of their exchanges (`exchanges`) are dropped with them; all others stay.
    """
    shed = shedder(settings.shedder)(cluster, settings, state, inputs.now_ms)
    if settings.shedder not in BY_AVERAGES:
        return shed
    leaving = Counter(move.source for move in inputs.pending)
    waiting_sources = sorted({move.source for move in shed.moves if move.source in leaving})
    waiting = [
        MoveRefusal(MoveRefusalReason.WAITING, name, None, "moves", leaving[name], 0)
        for name in waiting_sources
    ]
    kept = (
        exchange for exchange in exchanges(shed.moves) if not any(move.source in leaving for move in exchange)
    )
    return replace(shed, moves=tuple(chain.from_iterable(kept)), refusals=(*shed.refusals, *waiting))


def _measured(cluster: Cluster, settings: BalanceSettings) -> tuple[Cluster, list[MoveRefusal]]:
    """Return the cluster without the reports of brokers whose usage is unknown (`unknown_usage`), and a refusal for each of these
    brokers, by name. If the shedder does not use resources, return the cluster unchanged and no refusal.
    """
    if settings.shedder in WITHOUT_USAGE:
        return cluster, []
    unknown = unknown_usage(
        {broker: report.resources for broker, report in cluster.reporting}, settings.weights
    )
    refusals = [
        MoveRefusal(MoveRefusalReason.UNKNOWN_USAGE, broker, None, "/".join(sorted(missing)) or "usage")
        for broker, missing in sorted(unknown.items())
    ]
    brokers = tuple(
        replace(broker, report=None) if broker.name in unknown else broker for broker in cluster.brokers
    )
    return replace(cluster, brokers=brokers), refusals


def _silent(cluster: Cluster, refusals: Iterable[MoveRefusal]) -> list[MoveRefusal]:
    """Return a refusal for each broker without a report, which neither gives nor takes bundles, unless `refusals` already name it."""
    named = {refusal.broker for refusal in refusals if refusal.reason in _WITHOUT_REPORT}
    return [
        MoveRefusal(MoveRefusalReason.NO_REPORT, broker.name)
        for broker in cluster.brokers
        if broker.report is None and broker.name not in named
    ]


def _limited(moves: Iterable[Move], settings: BalanceSettings) -> tuple[list[Move], list[MoveRefusal]]:
    """Return at most `max_moves_per_cycle` moves (0: all), in their order, and a refusal if there were more. An exchange that does not fit
    is left out whole, and a later one may take its place.
    """
    wanted = list(moves)
    limit = settings.max_moves_per_cycle or len(wanted)
    if len(wanted) <= limit:
        return wanted, []
    kept: list[Move] = []
    for exchange in exchanges(wanted):
        if len(kept) + len(exchange) <= limit:
            kept += exchange
    return kept, [MoveRefusal(MoveRefusalReason.MOVE_LIMIT, metric="moves", value=len(wanted), needed=limit)]


def _placed(
    exchange: Iterable[Move], occupancy: Occupancy, settings: BalanceSettings, state: BalanceState
) -> tuple[list[Move], MoveRefusal | None, BalanceState]:
    """Return the moves of the exchange with their destinations, None, and the state after the choices. If a move is refused, return no
    moves, its refusal, and the state after the choices made until then. `occupancy` counts the returned moves as made.
    """
    placed: list[Move] = []
    for move in exchange:
        bundle = occupancy.cluster.bundle_by_id[move.bundle_id]
        choice = _destination(move, bundle, occupancy, settings, state)
        if isinstance(choice, Choice):
            state = choice.state
            if choice.broker is not None and choice.broker != move.source:
                occupancy.move(move.bundle_id, choice.broker)
                placed.append(replace(move, destination=choice.broker))
                continue
            reason = MoveRefusalReason.SAME_BROKER if choice.broker else MoveRefusalReason.NO_OTHER_HOME
            choice = MoveRefusal(reason, move.source, move.bundle_id)
        for made in placed:
            occupancy.move(made.bundle_id, made.source)
        return [], choice, state
    return placed, None, state


def _destination(
    move: Move, bundle: Bundle, occupancy: Occupancy, settings: BalanceSettings, state: BalanceState
) -> Choice | MoveRefusal:
    """Return the choice for the bundle, or the refusal if the namespace has placement policies and `shed_bundles_with_policies` is not set,
    or if the isolation policy allows no other broker with a report.

    The destination of the move is kept if it may take the bundle; otherwise the placement chooses. The broker of that choice may be None,
    or the source of the move; the caller refuses both.
    """
    if not settings.shed_bundles_with_policies and occupancy.cluster.policy_of(bundle.namespace).binds:
        return MoveRefusal(MoveRefusalReason.EXCLUDED, move.source, move.bundle_id)
    alternatives = [name for name in occupancy.allowed(bundle) if name != move.source]
    if not alternatives:
        return MoveRefusal(MoveRefusalReason.NO_OTHER_HOME, move.source, move.bundle_id, "brokers", 0, 1)
    if move.destination is not None and occupancy.may_take(bundle, move.destination):
        return Choice(move.destination, (move.destination,), state)
    return place(bundle, occupancy, settings, state)
