"""Shed from brokers at or above a line of usage: Pulsar's `OverloadShedder` and `ThresholdShedder`.

`overload` sheds from brokers near their limit. A broker whose weighted maximum of usage is at or above `overloaded_usage` gives up a
share of its throughput, heaviest bundles first: its usage minus the threshold, plus five points. The shedder names no destination. So in
a cluster that is evenly and heavily loaded, bundles circulate. Below the threshold nothing happens, however uneven the load is. Different
from Pulsar: the last bundle stays, and equal bundles are ordered by name. (Pulsar 3.0 took the plain maximum.)

`threshold` sheds from brokers well above the mean, and is the default of Pulsar's modular manager. Usage is a moving average. A broker at
or above the mean plus `threshold_margin` gives up a share of its throughput: its usage minus that line, plus five points (not minus the
mean, as Pulsar's page says), unless the amount is less than `threshold_min_byte_rate`. If no broker does and `threshold_lower_boundary` is
set, the busiest broker gives up half a margin once some broker is a margin below the mean.

`threshold` is different from Pulsar: the averages advance once in a cycle (Pulsar's lower boundary advances them again, and
`strict_pulsar` does so too). Averages of brokers that left are dropped. The last bundle stays. Equal bundles are ordered by name.

As in Pulsar, and the reason why `threshold` is not the default here: after a move the average still shows the past, so a broker whose
present usage is at the mean continues to shed (PIP-217). Within the margin nothing happens at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from controller.bundles.domain.balancing.moves import (
    BalanceState,
    BrokerReading,
    Move,
    MoveRefusal,
    MoveRefusalReason,
)
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.balancing.shedding.shedder import Shedding, shed_byte_rate, too_few_brokers
from controller.bundles.domain.cluster import BrokerReport, Cluster
from controller.bundles.domain.load import moving_average, weighted_max_usage

MARGIN: Final = 0.05
"""Share of its byte rate that a broker gives up in addition to its usage minus the threshold."""


def overload(cluster: Cluster, settings: BalanceSettings, state: BalanceState, now_ms: int) -> Shedding:
    """Return moves without a destination off each broker at or above `overloaded_usage`, and a refusal for each reporting broker without
    moves: a broker below, or a broker whose bundles cannot be moved. With fewer than two reporting brokers, return one refusal. The state
    does not change.

    The moves of a broker carry at least its byte rate times (usage - `overloaded_usage` + MARGIN), or all its movable bundles if these
    carry less; one bundle of the broker stays. That the usage falls below the threshold is not checked.
    """
    few = too_few_brokers(cluster)
    if few is not None:
        return Shedding((), (few,), state)
    moves: list[Move] = []
    refusals: list[MoveRefusal] = []
    threshold = settings.overloaded_usage
    for broker, report in cluster.reporting:
        usage = weighted_max_usage(report.resources, settings.weights)
        if usage < threshold:
            refusals.append(
                MoveRefusal(MoveRefusalReason.BELOW_THRESHOLD, broker, None, "usage", usage, threshold)
            )
            continue
        needed = report.stats.byte_rate * (usage - threshold + MARGIN)
        because = BrokerReading(broker, "usage", usage, threshold)
        shed, refusal = shed_byte_rate(cluster, broker, because, needed, settings, state, now_ms)
        moves += shed
        refusals += [refusal] if refusal else []
    return Shedding(tuple(moves), tuple(refusals), state)


_LOWER_SHARE: Final = 0.5  # of the margin, given up at the lower boundary


def threshold(cluster: Cluster, settings: BalanceSettings, state: BalanceState, now_ms: int) -> Shedding:
    """Return moves without a destination off brokers whose average usage is at or above the line mean plus `threshold_margin`, and the
    refusals. Each broker gives up the share (average - line + MARGIN) of its byte rate. If there are no such moves and
    `threshold_lower_boundary` is set, the busiest broker with at least two bundles gives up the share `threshold_margin` / 2 of its byte
    rate if some broker is more than the margin below the mean. An amount below `threshold_min_byte_rate` is a refusal in either case.

    The state holds the advanced averages; with `strict_pulsar`, the lower boundary advances them a second time. With fewer than two
    reporting brokers, return one refusal and the unchanged state; with a mean of 0, one refusal and the advanced averages.
    """
    few = too_few_brokers(cluster)
    if few is not None:
        return Shedding((), (few,), state)
    averages = _advanced(cluster, settings, state.usage_averages)
    state = replace(state, usage_averages=averages)
    mean = sum(averages.values()) / len(averages)
    if mean == 0:
        return Shedding(
            (), (MoveRefusal(MoveRefusalReason.NO_LOAD, metric="usage", value=0, needed=0),), state
        )
    moves: list[Move] = []
    refusals: list[MoveRefusal] = []
    for broker, report in cluster.reporting:
        shed, refusal = _shed(cluster, broker, report, mean, settings, state, now_ms)
        moves += shed
        refusals += [refusal] if refusal else []
    if moves or not settings.threshold_lower_boundary:
        return Shedding(tuple(moves), tuple(refusals), state)
    if settings.strict_pulsar:
        state = replace(state, usage_averages=_advanced(cluster, settings, averages))
    moves, refusal = _shed_for_the_lowest(cluster, settings, state, now_ms)
    return Shedding(tuple(moves), (*refusals, *([refusal] if refusal else [])), state)


def _advanced(cluster: Cluster, settings: BalanceSettings, averages: Mapping[str, float]) -> dict[str, float]:
    """Return the average usage of each reporting broker, from the old `averages`, which do not change. Only a report that no earlier cycle
    has counted advances an average; a broker without an old average begins with its report.
    """
    advanced = {}
    for broker, report in cluster.reporting:
        old = averages.get(broker)
        if old is not None and not cluster.is_new(broker):
            advanced[broker] = old
            continue
        usage = weighted_max_usage(report.resources, settings.weights)
        advanced[broker] = moving_average(old, usage, settings.history_weight)
    return advanced


def _shed(
    cluster: Cluster,
    broker: str,
    report: BrokerReport,
    mean: float,
    settings: BalanceSettings,
    state: BalanceState,
    now_ms: int,
) -> tuple[list[Move], MoveRefusal | None]:
    """Return moves without a destination off the broker, and None; or no moves and the refusal: the average is below the line `mean` +
    `threshold_margin`, the amount below `threshold_min_byte_rate`, no bundle may be moved, or the broker has fewer than two. `mean` is the
    mean of all averages, which are those in `state`.

    The moves carry at least the byte rate of the report times (average - line + MARGIN), or all movable bundles if these carry less; one
    bundle of the broker stays.
    """
    usage, margin = state.usage_averages[broker], settings.threshold_margin
    if usage < mean + margin:
        return [], MoveRefusal(MoveRefusalReason.BELOW_THRESHOLD, broker, None, "usage", usage, mean + margin)
    needed = report.stats.byte_rate * (usage - mean - margin + MARGIN)
    if needed < settings.threshold_min_byte_rate:
        return [], MoveRefusal(
            MoveRefusalReason.BELOW_FLOOR, broker, None, "byte_rate", needed, settings.threshold_min_byte_rate
        )
    because = BrokerReading(broker, "average usage", usage, mean + margin)
    return shed_byte_rate(cluster, broker, because, needed, settings, state, now_ms)


def _shed_for_the_lowest(
    cluster: Cluster, settings: BalanceSettings, state: BalanceState, now_ms: int
) -> tuple[list[Move], MoveRefusal | None]:
    """Return moves without a destination off the busiest broker that has at least two bundles, and None, if some broker is below the line
    mean - `threshold_margin`. The moves carry at least half of the margin, as a part of the busiest broker's byte rate, or all movable
    bundles if these carry less; one bundle of the broker stays. Return no moves and the refusal if no broker is below the line, no broker
    above the line has two bundles, the amount is below `threshold_min_byte_rate`, or no bundle may be moved.
    """
    averages = state.usage_averages
    line = sum(averages.values()) / len(averages) - settings.threshold_margin
    lowest = min(averages.values())
    if not lowest < line:
        return [], MoveRefusal(
            MoveRefusalReason.NO_UNDERLOADED_BROKER, metric="usage", value=lowest, needed=line
        )
    sources = [
        name for name, _ in cluster.reporting if averages[name] > line and len(cluster.bundles_of(name)) > 1
    ]
    if not sources:
        return [], MoveRefusal(
            MoveRefusalReason.NO_BUNDLES, metric="brokers with two bundles above the line", value=0, needed=1
        )
    source = min(sources, key=lambda name: (-averages[name], name))
    byte_rate = cluster.report_of[source].stats.byte_rate
    needed = byte_rate * settings.threshold_margin * _LOWER_SHARE
    if settings.threshold_min_byte_rate > needed:
        return [], MoveRefusal(
            MoveRefusalReason.BELOW_FLOOR, source, None, "byte_rate", needed, settings.threshold_min_byte_rate
        )
    because = BrokerReading(source, "average usage", averages[source], line)
    return shed_byte_rate(cluster, source, because, needed, settings, state, now_ms)
