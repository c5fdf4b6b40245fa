"""Levels the highest and the lowest broker by traffic: Pulsar's `UniformLoadShedder`.

It acts when the highest message rate is more than `uniform_msg_rate_difference` above the lowest, otherwise when the highest byte rate is
more than `uniform_byte_rate_ratio` times the lowest. The highest broker then gives up `unload_fraction` of the difference. A setting of 0
turns a rule off. There is one source in a cycle, usage does not count, and below the floors nothing is moved.

Different from Pulsar: no value is 32-bit. In Pulsar the amount to move stops at 2^31 - 1, and if every broker carries more than that (2.1
GB/s) the lowest rate is that constant. The last bundle stays. Equal bundles are ordered by name. As in Pulsar, the amount to move is cut
to a whole number. (In Pulsar 3.0 a bundle could exceed the remaining amount by 1000, in either metric.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from controller.bundles.domain.balancing.moves import (
    BalanceState,
    BrokerReading,
    Move,
    MoveReason,
    MoveRefusal,
    MoveRefusalReason,
)
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.balancing.shedding.shedder import (
    Shedding,
    WeighedBundle,
    heaviest_first,
    too_few_brokers,
)
from controller.bundles.domain.cluster import Cluster

_NOTHING: Final = 1e-6


@dataclass(frozen=True, slots=True)
class _Spread:
    """The highest and the lowest rate of the reporting brokers in one metric. `source` is the broker with the highest rate."""

    metric: str
    source: str
    highest: float
    lowest: float  # 1.0 where there is no traffic, so that it can be a divisor

    @classmethod
    def of(cls, cluster: Cluster, metric: str) -> _Spread:
        """Return the spread of `msg_rate` or `byte_rate` over the reports of the brokers, of which there is at least one. Of equally high
        brokers, the first by name is the source. A lowest rate of 0 becomes 1.0.
        """
        rates = [(float(getattr(report.stats, metric)), name) for name, report in cluster.reporting]
        highest, source = min((-rate, name) for rate, name in rates)
        lowest = min(rates)[0]
        return cls(metric, source, -highest, 1.0 if abs(lowest) <= _NOTHING else lowest)


def uniform(cluster: Cluster, settings: BalanceSettings, state: BalanceState, now_ms: int) -> Shedding:
    """Return moves without a destination off one broker, of about `unload_fraction` of the broker's difference to the
    lowest broker. The source is the broker with the highest message rate, if this rate exceeds the lowest rate by
    more than the share `uniform_msg_rate_difference` of the lowest. Otherwise the source is the broker with the
    highest byte rate, if this rate is more than `uniform_byte_rate_ratio` times the lowest. A lowest rate of 0 counts
    as 1. A setting of 0 turns its rule off. The state does not change.

    If neither rule applies, return no moves and two refusals. If a rule applies but nothing can be moved, return one
    refusal; the second rule is not tried after the first. With fewer than two reporting brokers, return one refusal.
    """
    few = too_few_brokers(cluster)
    if few is not None:
        return Shedding((), (few,), state)
    messages, data = _Spread.of(cluster, "msg_rate"), _Spread.of(cluster, "byte_rate")
    # In percent and in Pulsar's order of operations, so that results agree to the last bit.
    difference = (messages.highest - messages.lowest) * 100 / messages.lowest
    most_percent = settings.uniform_msg_rate_difference * 100
    ratio, most_ratio = data.highest / data.lowest, settings.uniform_byte_rate_ratio
    if 0 < most_percent < difference:
        bound = messages.lowest * (1 + settings.uniform_msg_rate_difference)
        return _shed(cluster, messages, bound, settings.min_unload_msg_rate, settings, state, now_ms)
    if 0 < most_ratio < ratio:
        bound = data.lowest * most_ratio
        return _shed(cluster, data, bound, settings.min_unload_byte_rate, settings, state, now_ms)
    refusals = (
        MoveRefusal(
            MoveRefusalReason.WITHIN_TARGET, None, None, "msg_rate difference (%)", difference, most_percent
        ),
        MoveRefusal(MoveRefusalReason.WITHIN_TARGET, None, None, "byte_rate ratio", ratio, most_ratio),
    )
    return Shedding((), refusals, state)


def _shed(
    cluster: Cluster,
    spread: _Spread,
    bound: float,
    floor: float,
    settings: BalanceSettings,
    state: BalanceState,
    now_ms: int,
) -> Shedding:
    """Return moves without a destination off the highest broker of about `unload_fraction` of the difference to the lowest, with the
    unchanged state; or no moves and one refusal if the broker has fewer than two bundles, the amount is below `floor`, or none fits.
    `bound`: the rate that the highest exceeds. At most `max_unload_bundles` bundles are moved (negative: any number), and one bundle stays.
    """
    owned = cluster.bundles_of(spread.source)
    needed = int((spread.highest - spread.lowest) * settings.unload_fraction)
    refusal: MoveRefusal | None = None
    picked: list[WeighedBundle] = []
    if len(owned) < 2:
        refusal = MoveRefusal(MoveRefusalReason.SOLE_BUNDLE, spread.source, None, "bundles", len(owned), 2)
    elif needed < floor:
        refusal = MoveRefusal(
            MoveRefusalReason.BELOW_FLOOR, spread.source, None, spread.metric, needed, floor
        )
    else:
        weighed = heaviest_first(cluster, spread.source, spread.metric, settings, state, now_ms)
        max_bundles = settings.max_unload_bundles
        picked = _fitting(weighed, needed, max_bundles if max_bundles >= 0 else len(owned))[: len(owned) - 1]
        if not picked:
            lightest = weighed[-1].load if weighed else None
            refusal = MoveRefusal(
                MoveRefusalReason.NOTHING_FITS, spread.source, None, spread.metric, lightest, needed
            )
    because = BrokerReading(spread.source, spread.metric, spread.highest, bound)
    moves = tuple(
        Move(
            bundle.bundle_id, spread.source, None, bundle.load, spread.metric, MoveReason.OVERLOADED, because
        )
        for bundle in picked
    )
    return Shedding(moves, (refusal,) if refusal else (), state)


def _fitting(weighed: list[WeighedBundle], needed: int, max_bundles: int) -> list[WeighedBundle]:
    """Return up to `max_bundles` bundles, in their order, each of which carries load and fits into the part of `needed` that the earlier
    bundles leave. An earlier bundle counts with its load cut to a whole number, so the sum may exceed `needed` slightly. Bundles that do
    not fit are skipped.
    """
    picked: list[WeighedBundle] = []
    for bundle in weighed:
        if len(picked) >= max_bundles:
            break
        if 0 < bundle.load <= needed:
            picked.append(bundle)
            needed -= int(bundle.load)
    return picked
