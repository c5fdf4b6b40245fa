"""The moves of one cycle: everything it may look at goes in, moves and refusals come out; a pure function.

The shedder proposes what leaves. Where the shedder names no destination, the placement chooses one. Every proposal
passes the same checks. Splits are decided by `splitting.triggers` from the same readings; `cycle` joins the two and
drops the moves of bundles that are to be split. A service carries moves out and tells the state which of them
succeeded (`BalanceState.after`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from controller.bundles.domain.balancing.moves import Move, MoveRefusal, MoveRefusalReason
from controller.bundles.domain.balancing.pending import PendingMove, as_if_made
from controller.bundles.domain.balancing.placement.base import Choice
from controller.bundles.domain.balancing.placement.occupancy import Occupancy
from controller.bundles.domain.balancing.placement.registry import placement
from controller.bundles.domain.balancing.settings import BalanceSettings, validate
from controller.bundles.domain.balancing.shedding.base import Shedding
from controller.bundles.domain.balancing.shedding.registry import shedder
from controller.bundles.domain.balancing.state import BalanceState, BrokerAverages
from controller.bundles.domain.cluster import Bundle, Cluster
from controller.bundles.domain.load.averages import moving_average
from controller.bundles.domain.load.resources import RESOURCES, max_usage, weighted_max_usage

_WITHOUT_REPORT = (MoveRefusalReason.NO_REPORT, MoveRefusalReason.UNKNOWN_USAGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceInputs:
    """Inputs of the moves of one cycle. `now_ms`: milliseconds since the Unix epoch.

    `pending`: moves of earlier cycles that wait or run; they count as made, and their bundles are left alone.
    """

    cluster: Cluster
    settings: BalanceSettings = field(default_factory=BalanceSettings)
    state: BalanceState = field(default_factory=BalanceState)
    now_ms: int
    pending: tuple[PendingMove, ...] = ()


@dataclass(frozen=True, slots=True)
class BalanceVerdict:
    """Moves and refusals. Each move has a destination other than its source, and no bundle is moved twice.

    `state` is for the next cycle if nothing is moved. Give the moves that succeeded to its `after`.
    """

    moves: tuple[Move, ...]
    refusals: tuple[MoveRefusal, ...]
    state: BalanceState


def balance(inputs: BalanceInputs) -> BalanceVerdict:
    """Decides the moves of one cycle. Raises InvalidPolicy for settings that are not valid together."""
    cluster, settings = inputs.cluster, inputs.settings
    validate(settings)
    old = already_counted(cluster, inputs.state)
    state = observed(cluster, settings, inputs.state, inputs.now_ms)
    resting = frozenset(one.bundle_id for one in inputs.pending)
    cluster = as_if_made(replace(cluster, repeated=old, resting=resting), inputs.pending)
    cluster, unknown = _measured(cluster, settings)
    shed = _shed(cluster, settings, state, inputs)
    wanted, refusals = _limited(shed.moves, settings)
    refusals = [*unknown, *shed.refusals, *_silent(cluster, (*unknown, *shed.refusals)), *refusals]
    state, occupancy = shed.state, Occupancy(cluster, settings)
    moves: list[Move] = []
    for move in wanted:
        bundle = cluster.bundle_by_id[move.bundle_id]
        choice = _destination(move, bundle, occupancy, settings, state)
        if isinstance(choice, MoveRefusal):
            refusals.append(choice)
            continue
        state = choice.state
        if choice.broker is None or choice.broker == move.source:
            reason = MoveRefusalReason.SAME_BROKER if choice.broker else MoveRefusalReason.NO_OTHER_HOME
            refusals.append(MoveRefusal(reason, move.source, move.bundle_id))
            continue
        occupancy.move(move.bundle_id, choice.broker)
        moves.append(replace(move, destination=choice.broker))
    return BalanceVerdict(tuple(moves), tuple(refusals), state)


def observed(cluster: Cluster, settings: BalanceSettings, state: BalanceState, now_ms: int) -> BalanceState:
    """The state with these reports in its averages, without brokers that have left and grace periods that are over.

    A report counts once in `broker_averages`, however often it is seen.
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
    """Brokers whose report an earlier cycle has seen."""
    return frozenset(
        name for name, report in cluster.reporting if state.has_counted(name, report.reported_at)
    )


def place(bundle: Bundle, occupancy: Occupancy, settings: BalanceSettings, state: BalanceState) -> Choice:
    """A broker for a bundle, whether or not it has one now; broker None where its policy leaves none.

    A choice above `overloaded_usage` is made again, once, among all brokers that the policy allows, as in Pulsar. A
    bundle of an anti-affinity group keeps to its candidates.
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
    """Select the bundles that are moved.

    A shedder that goes by averages over time cannot see moves that count as made. For it a broker from which some are
    to leave gives no more until they have.
    """
    chosen = shedder(settings.shedder)
    shed = chosen.shed(cluster, settings, state, inputs.now_ms)
    if not chosen.by_averages:
        return shed
    leaving = Counter(one.source for one in inputs.pending)
    held = sorted({move.source for move in shed.moves if move.source in leaving})
    waiting = [MoveRefusal(MoveRefusalReason.WAITING, name, None, "moves", leaving[name], 0) for name in held]
    kept = tuple(move for move in shed.moves if move.source not in leaving)
    return replace(shed, moves=kept, refusals=(*shed.refusals, *waiting))


def _measured(cluster: Cluster, settings: BalanceSettings) -> tuple[Cluster, list[MoveRefusal]]:
    """The cluster without the reports of brokers whose usage is unknown, and a refusal for each of these.

    A resource that counts and is known of some brokers must be known of all: unknown usage would look like none. A
    shedder that does not go by usage needs none.
    """
    if not shedder(settings.shedder).by_usage:
        return cluster, []
    counting = {name for name in RESOURCES if getattr(settings.weights, name) > 0}
    known = {
        broker: {name for name in counting if getattr(report.resources, name).limit > 0}
        for broker, report in cluster.reporting
    }
    wanted = frozenset().union(*known.values())
    unknown = {broker: wanted - names for broker, names in known.items() if not names or wanted - names}
    refusals = [
        MoveRefusal(MoveRefusalReason.UNKNOWN_USAGE, broker, None, "/".join(sorted(missing)) or "usage")
        for broker, missing in sorted(unknown.items())
    ]
    brokers = tuple(replace(one, report=None) if one.name in unknown else one for one in cluster.brokers)
    return replace(cluster, brokers=brokers), refusals


def _silent(cluster: Cluster, told: Iterable[MoveRefusal]) -> list[MoveRefusal]:
    """Brokers without a report, which neither give nor take, unless they have been named."""
    named = {one.broker for one in told if one.reason in _WITHOUT_REPORT}
    return [
        MoveRefusal(MoveRefusalReason.NO_REPORT, broker.name)
        for broker in cluster.brokers
        if broker.report is None and broker.name not in named
    ]


def _limited(moves: Iterable[Move], settings: BalanceSettings) -> tuple[list[Move], list[MoveRefusal]]:
    wanted = list(moves)
    most = settings.max_moves_per_cycle or len(wanted)
    if len(wanted) <= most:
        return wanted, []
    return wanted[:most], [
        MoveRefusal(MoveRefusalReason.MOVE_LIMIT, metric="moves", value=len(wanted), needed=most)
    ]


def _destination(
    move: Move, bundle: Bundle, occupancy: Occupancy, settings: BalanceSettings, state: BalanceState
) -> Choice | MoveRefusal:
    """Return the destination of the bundle, after the checks that apply to the proposals of every shedder."""
    if not settings.shed_bundles_with_policies and occupancy.cluster.policy_of(bundle.namespace).binds:
        return MoveRefusal(MoveRefusalReason.EXCLUDED, move.source, move.bundle_id)
    others = [name for name in occupancy.allowed(bundle) if name != move.source]
    if not others:
        return MoveRefusal(MoveRefusalReason.NO_OTHER_HOME, move.source, move.bundle_id, "brokers", 0, 1)
    if move.destination is not None and occupancy.may_take(bundle, move.destination):
        return Choice(move.destination, (move.destination,), state)
    return place(bundle, occupancy, settings, state)
