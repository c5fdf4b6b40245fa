"""Moves bundles from the fullest brokers to the emptiest: Pulsar's `TransferShedder`, of its extensible manager.

Load is a moving average of the usage that a broker reports (`broker_averages` in the state). The cycle acts once the population standard
deviation has been above `transfer_target_std`, or a broker underloaded or overloaded, for more than `transfer_hits` cycles in a row. Then
at most `transfer_max_sources` brokers give half the difference to the emptiest one. Of their `transfer_top_bundles` heaviest bundles the
lightest goes first. A bundle that is too heavy goes in exchange for others.

Different from Pulsar:

- The load that is swapped back is subtracted from the load given. Pulsar subtracts it only while debug logging is on; `strict_pulsar`
  does not subtract it.
- Brokers whose report is too old are not chosen.
- A bundle that is swapped back must be one that may move, and is never the destination's last.
- A broker that reports no usage gives nothing. Pulsar divides 0 by 0, and the result limits nothing.

As in Pulsar: within `transfer_delay_seconds` of a broker's shedding the whole cycle waits, the mean is not computed again, and nothing is
taken from a broker with one reported bundle.

`Exchange` is one source and one destination: it selects the bundles to move, and the bundles that return in exchange.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from controller.bundles.domain.balancing.moves import (
    BalanceState,
    BrokerAverages,
    BrokerReading,
    Move,
    MoveReason,
    MoveRefusal,
    MoveRefusalReason,
)
from controller.bundles.domain.balancing.placement import Occupancy
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.balancing.shedding.shedder import (
    Shedding,
    may_move,
    stale_reports,
    too_few_brokers,
)
from controller.bundles.domain.cluster import BrokerReport, Bundle, Cluster
from controller.bundles.domain.load import top_bundles
from controller.domain.pulsar_names import is_system_namespace

_SWAP_DONE_BELOW = 0.75  # a swap must leave the source below this share of what it had


def transferable(
    cluster: Cluster,
    source: str,
    destination: str,
    occupancy: Occupancy,
    settings: BalanceSettings,
    state: BalanceState,
    now_ms: int,
) -> tuple[Bundle, ...]:
    """Return those of the source's `transfer_top_bundles` heaviest bundles that may move and that the destination may take, the
    lightest first.
    """
    return tuple(
        bundle
        for bundle in reported_bundles(cluster, source, settings)
        if may_move(cluster, bundle, settings, state, now_ms) and occupancy.may_take(bundle, destination)
    )


def reported_bundles(cluster: Cluster, broker: str, settings: BalanceSettings) -> tuple[Bundle, ...]:
    """Return the `transfer_top_bundles` heaviest of the broker's bundles, or all if there are fewer, the lightest of them first.

    Bundles of Pulsar's own namespaces, of excluded namespaces and without traffic do not count, nor bundles with placement policies
    unless `shed_bundles_with_policies` is set.
    """

    def counts(bundle: Bundle) -> bool:
        namespace = bundle.namespace
        if is_system_namespace(namespace) or settings.excludes(namespace) or not byte_rate_of(bundle) > 0:
            return False
        return settings.shed_bundles_with_policies or not cluster.policy_of(namespace).binds

    stats = {
        bundle.bundle_id: bundle.stats
        for bundle in cluster.bundles_of(broker)
        if bundle.stats is not None and counts(bundle)
    }
    return tuple(cluster.bundle_by_id[name] for name in top_bundles(stats, settings.transfer_top_bundles))


def byte_rate_of(bundle: Bundle) -> float:
    """Return the bytes per second of the latest reading; 0 without a reading."""
    return bundle.stats.byte_rate if bundle.stats else 0.0


@dataclass(slots=True)
class Exchange:
    """The bundles moved between two brokers while moves are decided. Rates are bytes per second.

    `spare`: number of its own bundles that the destination may return.
    """

    source: str
    destination: str
    reason: MoveReason
    because: BrokerReading
    reports: Mapping[str, BrokerReport]
    settings: BalanceSettings
    spare: int
    moves: list[Move] = field(default_factory=list)
    _given: float = 0.0
    _gained: float = 0.0
    _returned: int = 0

    @property
    def net_share(self) -> float:
        """The load that leaves the source, as a share of the source's load before the exchange; 0 if the source had no load."""
        had = self.reports[self.source].stats.byte_rate
        return (self._given - self._gained) / had if had else 0.0

    def refusal(self, cluster: Cluster, usage: float) -> MoveRefusal | None:
        """Return the reason for which the source can give nothing: fewer than two bundles in `reported_bundles`, or a `usage` (the average
        usage of the source) of 0. None otherwise.
        """
        reported = len(reported_bundles(cluster, self.source, self.settings))
        if reported < 2:
            return MoveRefusal(MoveRefusalReason.SOLE_BUNDLE, self.source, None, "bundles", reported, 2)
        if not usage > 0:
            return MoveRefusal(MoveRefusalReason.NO_LOAD, self.source, None, "usage", usage, 0)
        return None

    def run(
        self, bundles: Sequence[Bundle], back: Iterator[Bundle], share: float, reported: int
    ) -> MoveRefusal | None:
        """Add to `moves` moves of up to `share` of the source's reported byte rate. Return None, or a refusal if no bundle could be moved.

        A bundle with which the source would give more than the share goes only in exchange for bundles from `back`, and may then exceed the
        share; the first bundle without a possible exchange ends the moves. `bundles` are tried in their order. `reported` is the number of
        the source's reported bundles, including those that may not move; one of them stays.
        """
        target = self.reports[self.source].stats.byte_rate * share
        remaining = reported
        for bundle in bundles:
            if remaining <= 1:
                break
            rate = byte_rate_of(bundle)
            swapped: list[Bundle] | None = []
            if self._given - self._gained + rate > target:
                swapped = self._swap(rate, back)
            if swapped is None:
                break
            self._give(bundle, swapped)
            remaining -= 1
        if self.moves:
            return None
        lightest = byte_rate_of(bundles[0]) if bundles else None
        return MoveRefusal(MoveRefusalReason.NOTHING_FITS, self.source, None, "byte_rate", lightest, target)

    def _swap(self, rate: float, back: Iterator[Bundle]) -> list[Bundle] | None:
        """Return the bundles of the destination that must return so that a bundle of `rate` bytes per second can go.
        None if no exchange makes the bundle fit, or if the destination would return more than `spare` bundles in all.

        The bundle fits if the source is then below 75 % of its reported byte rate, and at least at the level of the
        destination. A bundle whose return would bring either broker to the source's reported rate is skipped. `back`
        is one pass over the destination's bundles for all bundles of the source. The pass is consumed even without an
        exchange, and never started again, as in Pulsar.
        """
        had = self.reports[self.source].stats.byte_rate
        net = self._given - self._gained + rate
        source, destination = had - net, self.reports[self.destination].stats.byte_rate + net
        accepted: list[Bundle] = []
        for bundle in back:
            if self._returned + len(accepted) >= self.spare:
                return None
            returned = byte_rate_of(bundle)
            if source + returned < had and destination - returned < had:
                accepted.append(bundle)
                source, destination = source + returned, destination - returned
                if destination <= source < had * _SWAP_DONE_BELOW:
                    return accepted
        return None

    def _give(self, bundle: Bundle, swapped: list[Bundle]) -> None:
        """Add to `moves` the returns of the bundles in `swapped`, then the move of the bundle. Add their rates
        to the totals of the exchange (under `strict_pulsar` only the rate of the bundle), and the number of
        returns to the number that `spare` limits; `reports` does not change. Without `transfer_enabled` the
        move of the bundle has no destination.
        """
        transfer = self.settings.transfer_enabled
        for returning in swapped:
            rate = byte_rate_of(returning)
            self.moves.append(
                Move(
                    returning.bundle_id,
                    self.destination,
                    self.source,
                    rate,
                    "byte_rate",
                    MoveReason.SWAP,
                    self.because,
                )
            )
            self._returned += 1
            self._gained += 0.0 if self.settings.strict_pulsar else rate
        rate = byte_rate_of(bundle)
        destination = self.destination if transfer else None
        self.moves.append(
            Move(bundle.bundle_id, self.source, destination, rate, "byte_rate", self.reason, self.because)
        )
        self._given += rate


def transfer(cluster: Cluster, settings: BalanceSettings, state: BalanceState, now_ms: int) -> Shedding:
    """Return the exchanges of the cycle as moves, and the refusals. The moves have destinations if `transfer_enabled` is set. The state
    counts the cycles in a row, with a new report, for which the condition (`_condition`) held; moves and a load within the target reset
    the count.

    Returns no moves while a report or an average is missing, a fresh report is settling, fewer than two reports are fresh, the load is
    within the target, or the condition has not held for more than `transfer_hits` cycles with a new report. In the first three cases the
    count stays.
    """
    refusals, loads = _loads(cluster, settings, state, now_ms)
    if loads is None:
        return Shedding((), refusals, state)
    levels = Levels.of(loads)
    if _condition(levels, settings) is None:
        needed = settings.transfer_target_std
        within = MoveRefusal(
            MoveRefusalReason.WITHIN_TARGET, metric="std of usage", value=levels.std, needed=needed
        )
        return Shedding((), (*refusals, within), replace(state, condition_hits=0))
    hits = state.condition_hits + any(cluster.is_new(name) for name, _ in cluster.reporting)
    state = replace(state, condition_hits=hits)
    if hits <= settings.transfer_hits:
        early = MoveRefusal(
            MoveRefusalReason.HIT_COUNT, metric="cycles", value=hits, needed=settings.transfer_hits + 1
        )
        return Shedding((), (*refusals, early), state)
    moves, further_refusals = _exchange_all(levels, cluster, settings, state, now_ms)
    if moves:
        state = replace(state, condition_hits=0)
    return Shedding(tuple(moves), (*refusals, *further_refusals), state)


def _loads(
    cluster: Cluster, settings: BalanceSettings, state: BalanceState, now_ms: int
) -> tuple[tuple[MoveRefusal, ...], dict[str, BrokerAverages] | None]:
    """Return refusals, and the averages by broker of the brokers with a fresh report. The averages are None if fewer than two brokers
    report, if a broker has no report or no average, if a fresh report was made less than `transfer_delay_seconds` after its broker's last
    unload, or if fewer than two fresh reports remain. The refusals name the cause, checked in this order, and, except in the first two
    cases, the brokers with stale reports.
    """
    few = too_few_brokers(cluster)
    if few is not None:
        return (few,), None
    silent = [b.name for b in cluster.brokers if b.report is None or b.name not in state.broker_averages]
    if silent:
        return tuple(MoveRefusal(MoveRefusalReason.NO_REPORT, name) for name in silent), None
    old = stale_reports(cluster, settings, now_ms)
    stale = tuple(old.values())
    for name, report in cluster.reporting:
        moved_at = state.unloaded_brokers.get(name)
        counts_from = None if moved_at is None else moved_at + settings.transfer_delay_seconds * 1_000
        if name not in old and counts_from is not None and report.reported_at < counts_from:
            waits = MoveRefusal(
                MoveRefusalReason.SETTLING, name, None, "reported_at", report.reported_at, counts_from
            )
            return (*stale, waits), None
    fresh = {name: state.broker_averages[name] for name, _ in cluster.reporting if name not in old}
    return stale, fresh if len(fresh) > 1 else None


@dataclass(slots=True)
class Levels:
    """Brokers by load, a pointer to either end, and the deviation while moves are decided. `sources`: number of brokers that have given."""

    ordered: list[tuple[str, BrokerAverages]]
    mean: float
    square_sum: float
    low: int = 0
    high: int = 0
    sources: int = 0

    @classmethod
    def of(cls, loads: dict[str, BrokerAverages]) -> Levels:
        """Return the levels of these brokers before any exchange, ordered by usage, then by name. `loads` must have
        at least one broker.
        """
        ordered = sorted(loads.items(), key=lambda item: (item[1].usage, item[0]))
        usages = [averages.usage for _, averages in ordered]
        return cls(ordered, sum(usages) / len(usages), sum(u * u for u in usages), high=len(ordered) - 1)

    @property
    def std(self) -> float:
        """Population standard deviation around the mean at the start."""
        # Rounding can leave a difference just below 0.
        return float(abs(self.square_sum / len(self.ordered) - self.mean**2) ** 0.5)

    @property
    def lowest(self) -> tuple[str, BrokerAverages]:
        """The emptiest broker that has received no bundle."""
        return self.ordered[self.low]

    @property
    def highest(self) -> tuple[str, BrokerAverages]:
        """The fullest broker that was not yet tried as a source."""
        return self.ordered[self.high]

    def offload(self, highest: float, lowest: float, amount: float) -> None:
        """Count in the deviation that `amount` of usage moves from a broker with the usage `highest` to a broker with the usage `lowest`.
        Count the source, and advance to the next lowest broker; the caller advances `high`.
        """
        self.square_sum -= highest**2 + lowest**2
        self.square_sum += max(0.0, highest - amount) ** 2 + (lowest + amount) ** 2
        self.sources += 1
        self.low += 1


def _condition(levels: Levels, settings: BalanceSettings) -> tuple[MoveReason, BrokerReading] | None:
    """Return the reason for moves, with the figure that is beyond its bound; None if no figure is. The first that applies: a high
    deviation, low usage or low byte rate of the present `lowest` broker, high usage of the present `highest`. The bounds are, in this order
    and with t = `transfer_target_std`: t; the share min(0.5, t / 2) of the mean usage; the same share of the byte rate of `highest`; and
    the larger of `overloaded_usage` and the mean usage + t.
    """
    target = settings.transfer_target_std
    if levels.std > target:
        return MoveReason.OVERLOADED, BrokerReading(None, "std of usage", levels.std, target)
    (low, lowest), (high, highest) = levels.lowest, levels.highest
    share = min(0.5, max(0.0, target / 2))
    if lowest.usage < levels.mean * share:
        reading = BrokerReading(low, "average usage", lowest.usage, levels.mean * share)
        return MoveReason.UNDERLOADED, reading
    if lowest.byte_rate < highest.byte_rate * share:
        reading = BrokerReading(low, "average byte_rate", lowest.byte_rate, highest.byte_rate * share)
        return MoveReason.UNDERLOADED, reading
    bound = max(settings.overloaded_usage, levels.mean + target)
    if highest.usage > bound:
        return MoveReason.OVERLOADED, BrokerReading(high, "average usage", highest.usage, bound)
    return None


def _exchange_all(
    levels: Levels, cluster: Cluster, settings: BalanceSettings, state: BalanceState, now_ms: int
) -> tuple[list[Move], list[MoveRefusal]]:
    """Return the moves from the fullest brokers to the emptiest, each after the moves of the bundles that return for it, and a refusal for
    each source that gives nothing. A source is to give half of the difference between its usage and that of its destination. Ends when
    `transfer_max_sources` brokers have given, no figure is beyond its bound, or no two untried brokers are left. Changes `levels`.
    """
    moves: list[Move] = []
    refusals: list[MoveRefusal] = []
    occupancy = Occupancy(cluster, settings)
    while levels.sources < settings.transfer_max_sources and levels.low < levels.high:
        condition = _condition(levels, settings)
        if condition is None:
            break
        (source, highest), (destination, lowest) = levels.highest, levels.lowest
        spare = max(0, len(cluster.bundles_of(destination)) - 1)
        exchange = Exchange(source, destination, *condition, cluster.report_of, settings, spare)
        levels.high -= 1
        refusal = exchange.refusal(cluster, highest.usage)
        if refusal is None:
            refusal = exchange.run(
                transferable(cluster, source, destination, occupancy, settings, state, now_ms),
                _swappable(cluster, source, destination, occupancy, settings, state, now_ms),
                (highest.usage - lowest.usage) / 2 / highest.usage,
                len(reported_bundles(cluster, source, settings)),
            )
        refusals += [refusal] if refusal else []
        if exchange.moves:
            moves += exchange.moves
            for move in exchange.moves:
                if move.destination is not None:
                    occupancy.move(move.bundle_id, move.destination)
            levels.offload(highest.usage, lowest.usage, exchange.net_share * highest.usage)
    return moves, refusals


def _swappable(
    cluster: Cluster,
    source: str,
    destination: str,
    occupancy: Occupancy,
    settings: BalanceSettings,
    state: BalanceState,
    now_ms: int,
) -> Iterator[Bundle]:
    """Return an iterator over the bundles that the destination may give back to the source; empty unless `transfer_enabled` is set."""
    if not settings.transfer_enabled:
        return iter(())
    return iter(transferable(cluster, destination, source, occupancy, settings, state, now_ms))
