"""Sheds from brokers near their limit: Pulsar's `OverloadShedder`.

A broker whose weighted maximum of usage is at or above `overloaded_usage` gives up a share of its throughput, heaviest bundles first: its
usage minus the threshold, plus five points. The shedder names no destination. So in a cluster that is evenly and heavily loaded, bundles
circulate. Below the threshold nothing happens, however uneven the load is. Different from Pulsar: the last bundle stays, and equal
bundles are ordered by name. (Pulsar 3.0 took the plain maximum.)
"""

from __future__ import annotations

from typing import Final

from controller.bundles.domain.balancing.moves import BrokerReading, Move, MoveRefusal, MoveRefusalReason
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.balancing.shedding.shedder import Shedding, shed_byte_rate, too_few_brokers
from controller.bundles.domain.balancing.state import BalanceState
from controller.bundles.domain.cluster import Cluster
from controller.bundles.domain.load.broker_usage import weighted_max_usage

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
