"""State that balancing passes from one cycle to the next: averages, counts, recent moves, plans.

A value. Every rule takes it and returns a new one, so a stored cycle can be decided again. `document` writes and
reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self, TypeVar
from zlib import crc32

from controller.bundles.domain.balancing.moves import Move

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
