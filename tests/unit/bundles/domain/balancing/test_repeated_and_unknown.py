"""A report that is read again is no second hit, and a usage that nobody knows is not none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.bundles.domain.balancing.balance import BalanceInputs, balance
from controller.bundles.domain.balancing.moves import BalanceState, MoveRefusalReason
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.cluster import Broker, Cluster
from controller.bundles.domain.load import BrokerResources, ResourceUsage
from tests.unit.bundles.domain.balancing import clusters as make
from tests.unit.bundles.domain.balancing.clusters import NOW_MS

UNEVEN = make.cluster({"a": 90, "b": 10}, {"a": [5] * 9, "b": [5]})
SETTINGS = BalanceSettings(avg_low_hits=2, avg_high_hits=2, transfer_hits=1)


def _later(cluster: Cluster) -> Cluster:
    """The same figures in new reports."""
    return replace(
        cluster,
        brokers=tuple(
            replace(b, report=b.report and replace(b.report, reported_at=b.report.reported_at + 1))
            for b in cluster.brokers
        ),
    )


@pytest.mark.parametrize("shedder", ["even", "avg", "transfer"])
def test_a_report_counts_as_one_hit_however_often_it_is_read(shedder: str) -> None:
    settings = replace(SETTINGS, shedder=shedder)

    def ask(cluster: Cluster, state: BalanceState) -> tuple[int, BalanceState]:
        verdict = balance(BalanceInputs(cluster=cluster, settings=settings, state=state, now_ms=NOW_MS))
        return len(verdict.moves), verdict.state

    moves, state = ask(UNEVEN, BalanceState())
    for _ in range(5):
        again, state = ask(UNEVEN, state)
        moves += again
    assert moves == 0
    assert max((*state.hot_hits.values(), *state.high_hits.values(), state.condition_hits)) == 1
    assert ask(_later(UNEVEN), state)[0] > 0


def test_averages_of_threshold_take_each_report_once() -> None:
    settings = BalanceSettings(shedder="threshold")
    first = balance(BalanceInputs(cluster=UNEVEN, settings=settings, now_ms=NOW_MS)).state
    idle = make.cluster({"a": 0, "b": 10}, {"a": [5] * 9, "b": [5]})  # the instant of the report is the same
    again = balance(BalanceInputs(cluster=idle, settings=settings, state=first, now_ms=NOW_MS)).state
    later = balance(BalanceInputs(cluster=_later(idle), settings=settings, state=first, now_ms=NOW_MS)).state

    assert again.usage_averages == first.usage_averages
    assert later.usage_averages["a"] < first.usage_averages["a"]


def _told(cluster: Cluster, name: str, **resources: ResourceUsage) -> Cluster:
    """The cluster where one broker reports these resources."""

    def changed(broker: Broker) -> Broker:
        if broker.name != name or broker.report is None:
            return broker
        return replace(
            broker, report=replace(broker.report, resources=replace(broker.report.resources, **resources))
        )

    return replace(cluster, brokers=tuple(map(changed, cluster.brokers)))


@pytest.mark.parametrize("shedder", ["even", "overload"])
def test_a_broker_whose_processor_nobody_knows_gets_nothing(shedder: str) -> None:
    cluster = make.cluster({"a": 90, "b": 60, "c": 50}, {"a": [5] * 9, "b": [5] * 6, "c": [5] * 5})
    blind = _told(cluster, "c", cpu=ResourceUsage())
    settings = replace(SETTINGS, shedder=shedder, even_hits=1)
    verdict = balance(BalanceInputs(cluster=blind, settings=settings, now_ms=NOW_MS))

    assert verdict.moves
    assert {move.destination for move in verdict.moves} == {"b"}
    unknown = [one for one in verdict.refusals if one.reason is MoveRefusalReason.UNKNOWN_USAGE]
    assert [(one.broker, one.metric) for one in unknown] == [("c", "cpu")]
    assert MoveRefusalReason.NO_REPORT not in {one.reason for one in verdict.refusals}


def test_a_resource_that_nobody_knows_does_not_count() -> None:
    blind = UNEVEN
    for name in "ab":
        blind = _told(blind, name, bandwidth_in=ResourceUsage(5, 0), bandwidth_out=ResourceUsage(5, -1))
    settings = replace(SETTINGS, even_hits=1)
    assert balance(BalanceInputs(cluster=blind, settings=settings, now_ms=NOW_MS)).moves


def test_without_any_usage_only_rates_can_be_gone_by() -> None:
    blind = Cluster(
        tuple(
            replace(b, report=b.report and replace(b.report, resources=BrokerResources()))
            for b in UNEVEN.brokers
        ),
        UNEVEN.bundles,
    )
    for shedder, moved in (("even", False), ("uniform", True)):
        settings = replace(SETTINGS, shedder=shedder, even_hits=1)
        verdict = balance(BalanceInputs(cluster=blind, settings=settings, now_ms=NOW_MS))
        assert bool(verdict.moves) is moved
