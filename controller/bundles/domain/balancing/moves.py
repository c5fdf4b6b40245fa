"""Moves of bundles, and refusals: the reasons for which a bundle or broker stays as it is.

Values only. Shedders make moves with or without a destination, `balance` completes them, a service performs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum


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
