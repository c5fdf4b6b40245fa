"""Moves of bundles, refusals (the reasons for which a bundle or broker stays as it is), and the state that balancing passes from one cycle to
the next: averages, counts, recent moves, plans.

Values only. Shedders make moves with or without a destination, `balance` completes them, a service performs them. Every rule takes the
state and returns another one, so a stored cycle can be decided again. `cycle_text` writes and reads the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Self, TypeVar
from zlib import crc32


class MoveReason(StrEnum):
    """Reason for which a bundle is moved off its broker."""

    OVERLOADED = "overloaded"  # the source has too much
    UNDERLOADED = "underloaded"  # some broker has too little
    SWAP = "swap"  # goes back in exchange for a larger one


class MoveRefusalReason(StrEnum):
    """Reason for which a bundle, a broker or the cluster has no move. The comment says what `value` and `needed` hold. NO_LOAD, HIT_COUNT
    and SETTLING may also be about one broker, NO_BUNDLES and NO_UNDERLOADED_BROKER about the whole cluster.
    """

    # The whole cluster.
    FEW_BROKERS = "few-brokers"  # brokers with a report; the fewest there must be
    NO_LOAD = "no-load"  # mean load; what it must be above
    HIT_COUNT = "hit-count"  # cycles in a row that required a move; the number needed
    SETTLING = "settling"  # when the report was made (ms); from when on a report counts again
    WITHIN_TARGET = "within-target"  # the figure; what it must be above to act
    MOVE_LIMIT = "move-limit"  # moves wanted (`even` counts up to one beyond the limit); moves allowed
    # One broker.
    NO_REPORT = "no-report"  # None; None
    UNKNOWN_USAGE = "unknown-usage"  # None; None: a resource that counts has no usage or limit in its report
    STALE_REPORT = "stale-report"  # age of the report (ms); the most it may be
    BELOW_THRESHOLD = "below-threshold"  # usage; usage at which the broker sheds
    BELOW_FLOOR = "below-floor"  # what would be moved; the least worth moving
    NO_BUNDLES = "no-bundles"  # bundles that may be moved; the fewest there must be
    WAITING = "waiting"  # moves off the broker that wait or run; 0
    SOLE_BUNDLE = "sole-bundle"  # bundles of the broker; the fewest there must be
    NOTHING_FITS = "nothing-fits"  # load of the lightest movable bundle (None: there is none); room for it
    NO_UNDERLOADED_BROKER = "no-underloaded-broker"  # the lowest usage; what it must be below
    # One bundle.
    EXCLUDED = "excluded"  # the namespace is never shed: None; None
    NO_OTHER_HOME = "no-other-home"  # brokers that may take it; the fewest needed; both None: none chosen
    SAME_BROKER = "same-broker"  # the placement chose the owner: None; None


@dataclass(frozen=True, slots=True)
class BrokerReading:
    """The measured value that causes a move, and the bound that the value is above or below. `broker` None: the value is of all
    brokers.
    """

    broker: str | None
    metric: str
    value: float
    bound: float

    @property
    def sentence(self) -> str:
        """The metric, the broker, the value and the bound as one clause, such as "usage of b1 is 0.9, above 0.8". A
        value equal to the bound is called "above". Without a broker the clause says "all brokers".
        """
        side = "above" if self.value >= self.bound else "below"
        whose = self.broker or "all brokers"
        return f"{self.metric} of {whose} is {self.value:.4g}, {side} {self.bound:.4g}"


@dataclass(frozen=True, slots=True)
class Move:
    """A move of a bundle off `source`. `destination` None: the placement decides. `because`: the reading that causes the move.

    `load` is the figure by which the bundle was chosen, and `metric` its name: `byte_rate` or `msg_rate` (per second) or `usage` (share
    of the source's dominating resource).
    """

    bundle_id: str
    source: str
    destination: str | None
    load: float
    metric: str
    reason: MoveReason
    because: BrokerReading | None = None


def exchanges(moves: Iterable[Move]) -> Iterator[tuple[Move, ...]]:
    """Yield the moves of a shedder, in their order, as exchanges. An exchange is one move, preceded by the SWAP moves
    that directly precede the move: they return bundles to the source of the move. A move without a SWAP before it is
    an exchange by itself. SWAP moves at the end, without a move after them, are not yielded.

    A cycle proposes an exchange whole or not at all, because SWAP moves alone would fill the fuller broker. A person
    may still refuse one move of an exchange, and each move is applied by itself.
    """
    exchange: list[Move] = []
    for move in moves:
        exchange.append(move)
        if move.reason is not MoveReason.SWAP:
            yield tuple(exchange)
            exchange = []


@dataclass(frozen=True, slots=True)
class MoveRefusal:
    """A move that is not made, and the figure that decided it; see `MoveRefusalReason`.

    `broker` and `bundle_id` None: the refusal is about the whole cluster.
    """

    reason: MoveRefusalReason
    broker: str | None = None
    bundle_id: str | None = None
    metric: str | None = None
    value: float | None = None
    needed: float | None = None


Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class BrokerAverages:
    """Moving averages of a broker as of the report made at `reported_at` (ms): its weighted maximum usage as a fraction, and its bytes per
    second.
    """

    usage: float
    byte_rate: float
    reported_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceState:
    """State of balancing between cycles; instants in ms since the Unix epoch.

    - `usage_averages`: the averages of `threshold`, by broker. `placement_averages`: those of `least_usage`.
    - `broker_averages`: averages of the brokers' reports, for `transfer` and `least_reported_usage`.
    - `low_hits`, `high_hits`: cycles in a row in which a broker was beyond the thresholds of `avg`.
    - `hot_hits`, `cold_hits`: cycles in a row in which a broker was outside the bands of `even`.
    - `condition_hits`: cycles in a row in which the condition of `transfer` held.
    - `unloaded_bundles`, `unloaded_brokers` (sources), `filled_brokers` (destinations): instants of the last move of each.
    - `planned`: the broker that `avg` chose for a bundle.
    - `round_robin` counts placements, `draws` counts random choices.
    """

    usage_averages: Mapping[str, float] = field(default_factory=dict)
    placement_averages: Mapping[str, float] = field(default_factory=dict)
    broker_averages: Mapping[str, BrokerAverages] = field(default_factory=dict)
    low_hits: Mapping[str, int] = field(default_factory=dict)
    high_hits: Mapping[str, int] = field(default_factory=dict)
    hot_hits: Mapping[str, int] = field(default_factory=dict)
    cold_hits: Mapping[str, int] = field(default_factory=dict)
    condition_hits: int = 0
    unloaded_bundles: Mapping[str, int] = field(default_factory=dict)
    unloaded_brokers: Mapping[str, int] = field(default_factory=dict)
    filled_brokers: Mapping[str, int] = field(default_factory=dict)
    planned: Mapping[str, str] = field(default_factory=dict)
    round_robin: int = 0
    draws: int = 0

    def has_counted(self, broker: str, reported_at: int) -> bool:
        """Return True if an earlier cycle has counted the report that the broker made at `reported_at`, or a later one.

        A cycle may run again before new reports are read.
        """
        averages = self.broker_averages.get(broker)
        return averages is not None and reported_at <= averages.reported_at

    def draw(self, count: int) -> tuple[int, Self]:
        """Return a number from 0 to `count` - 1 (`count` > 0) that looks random, and the state after the draw.

        The same state gives the same number: the crc32 of the counter. Pulsar takes the crc32 of a random integer.
        """
        return crc32(str(self.draws).encode()) % count, replace(self, draws=self.draws + 1)

    def after(self, moves: Iterable[Move], now_ms: int) -> Self:
        """Return the state after these moves succeeded at `now_ms` (milliseconds since the Unix epoch). The state
        records `now_ms` for each moved bundle, source and destination, and drops the plans of the moved bundles. The
        caller must not pass a move that failed, so that the bundle may be tried again.
        """
        done = tuple(moves)
        moved = {move.bundle_id for move in done}
        return replace(
            self,
            unloaded_bundles={**self.unloaded_bundles, **dict.fromkeys(sorted(moved), now_ms)},
            unloaded_brokers={**self.unloaded_brokers, **{move.source: now_ms for move in done}},
            filled_brokers={
                **self.filled_brokers,
                **{move.destination: now_ms for move in done if move.destination is not None},
            },
            planned={bundle: broker for bundle, broker in self.planned.items() if bundle not in moved},
        )

    def forgetting(self, brokers: Iterable[str], unloaded_before_ms: int) -> Self:
        """Return the state without the entries of brokers that are not among `brokers`, including the plans that chose
        them, and without the instants in `unloaded_bundles` before `unloaded_before_ms`. Plans for these bundles stay.
        """
        present = frozenset(brokers)
        return replace(
            self,
            usage_averages=_kept(self.usage_averages, present),
            placement_averages=_kept(self.placement_averages, present),
            broker_averages=_kept(self.broker_averages, present),
            low_hits=_kept(self.low_hits, present),
            high_hits=_kept(self.high_hits, present),
            hot_hits=_kept(self.hot_hits, present),
            cold_hits=_kept(self.cold_hits, present),
            unloaded_brokers=_kept(self.unloaded_brokers, present),
            filled_brokers=_kept(self.filled_brokers, present),
            planned={bundle: broker for bundle, broker in self.planned.items() if broker in present},
            unloaded_bundles={
                bundle: at for bundle, at in self.unloaded_bundles.items() if at >= unloaded_before_ms
            },
        )


def _kept(by_broker: Mapping[str, Value], brokers: frozenset[str]) -> dict[str, Value]:
    return {name: value for name, value in by_broker.items() if name in brokers}
