"""Ours against Pulsar's own `TransferShedder` of 4.2.4, on random clusters, what brokers report to it, and the placement.

Half of the cases are asked with Pulsar's debug logging on, when it counts what is swapped back, against ours as it is; the
other half without, against `strict_pulsar`. Each difference is of a documented kind, known by its cause, and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from controller.bundles.domain.balancing.balance import observed
from controller.bundles.domain.balancing.moves import BalanceState, MoveRefusalReason
from controller.bundles.domain.balancing.placement import Occupancy, least_reported_usage
from controller.bundles.domain.balancing.shedding.shedder import Shedding
from controller.bundles.domain.balancing.shedding.transfer import transfer
from controller.bundles.domain.cluster import Cluster
from controller.bundles.domain.load import bundle_order
from controller.devstack.pulsar.jars import PULSAR_4
from controller.domain.pulsar_names import belongs_to_a_broker
from tests.oracle.transfer_clusters import TTL_SECONDS, TransferCase, TransferCycle, transfer_case
from tests.oracle.worker_pipe import ask_all
from tests.support.brokers import demand_jars
from tests.support.drawn import cases

pytestmark = [
    pytest.mark.pulsar,
    pytest.mark.drawn,
    pytest.mark.timeout(1200),
    pytest.mark.xdist_group("oracle_transfer"),  # its answers are asked for once
]

SEQUENCES, CYCLES = cases(500, 3_700), 3
NOBODY_REPORTS, NOBODY_IS_USED = 3_408, 2_348
"""Seeds of two rare clusters, which every run contains: one without a broker that reports, one whose brokers have no usage."""
MANY = cases(1_350, 10_000)
"""Clusters at least: less than all, since a sequence ends with its first difference."""
STALE = "an old report is picked from"
SWAPPED_BACK = "a bundle that may not move is swapped back"
EMPTIED = "the destination's last bundle is swapped back"
NO_USAGE = "the fullest broker's usage is 0, and 0/0 bounds nothing"
SKIPS = {
    "NoBrokers": {MoveRefusalReason.NO_REPORT, MoveRefusalReason.FEW_BROKERS},
    "CoolDown": {
        MoveRefusalReason.SETTLING,
        MoveRefusalReason.NO_REPORT,
    },  # where both are so we say the second
    # A broker without a report (which may leave only one), or one that lists no bundle.
    "NoLoadData": {MoveRefusalReason.NO_REPORT, MoveRefusalReason.FEW_BROKERS, MoveRefusalReason.SOLE_BUNDLE},
    "NoBundles": {MoveRefusalReason.SOLE_BUNDLE, MoveRefusalReason.NOTHING_FITS, MoveRefusalReason.NO_LOAD},
}
Unload = tuple[str, str, str | None]


@dataclass
class Tally:
    """What agreed, of what kind the differences were, and what Pulsar said when it did nothing."""

    clusters: int = 0
    unloaded: int = 0
    swapped: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    unexplained: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def answered() -> list[tuple[TransferCase, list[dict[str, Any]]]]:
    jars = demand_jars(PULSAR_4)
    drawn = [transfer_case(seed, CYCLES) for seed in {*range(SEQUENCES), NOBODY_REPORTS, NOBODY_IS_USED}]
    answers = ask_all("transfer_worker.py", jars, [one.request() for one in drawn])
    return [(one, answer["cycles"]) for one, answer in zip(drawn, answers, strict=True)]


@pytest.fixture(scope="module")
def tally(answered: list[tuple[TransferCase, list[dict[str, Any]]]]) -> Tally:
    counted = Tally()
    for one, answers in answered:
        _compare(one, answers, counted)
    return counted


def test_it_agrees_on_random_clusters_but_for_documented_kinds(tally: Tally) -> None:
    assert tally.unexplained == []
    assert tally.clusters >= MANY
    # Enough of it is about bundles that do move, and about some that come back.
    assert tally.unloaded >= 0.15 * MANY
    assert tally.swapped >= 0.01 * MANY


def test_differences_are_rare_and_each_kind_is_met(tally: Tally) -> None:
    assert set(tally.kinds) == {STALE, SWAPPED_BACK, EMPTIED, NO_USAGE}
    assert sum(tally.kinds.values()) <= 0.1 * tally.clusters, tally.kinds


def test_each_reason_to_do_nothing_is_met(tally: Tally) -> None:
    assert {*SKIPS, "HitCount"} <= set(tally.skipped), tally.skipped


def test_brokers_report_the_same_averages_and_the_same_bundles_but_for_equals(
    answered: list[tuple[TransferCase, list[dict[str, Any]]]],
) -> None:
    lists = 0
    for one, answers in answered:
        state = one.state
        for cycle, told in zip(one.cycles, answers, strict=True):
            state = observed(cycle.cluster, one.settings, state, cycle.now_ms)
            averages = {name: state.broker_averages[name] for name in told["usage"]}
            assert {n: a.usage for n, a in averages.items()} == pytest.approx(told["usage"], rel=1e-6), (
                one.seed
            )
            assert {n: a.byte_rate for n, a in averages.items()} == pytest.approx(told["byte_rate"]), one.seed
            for broker, theirs in told["tops"].items():
                if any(belongs_to_a_broker(b.namespace) for b in cycle.cluster.bundles_of(broker)):
                    continue  # 4.2.4 knows those of brokers by their names of old only, and lists them
                mine = cycle.document["tops"][broker]
                assert _orders(cycle.cluster, mine) == _orders(cycle.cluster, theirs), (one.seed, broker)
                lists += len(theirs) > 1
    assert lists >= MANY


def test_the_placement_by_reported_usage_chooses_among_the_same_brokers(
    answered: list[tuple[TransferCase, list[dict[str, Any]]]],
) -> None:
    clusters = well_below = 0
    for one, answers in answered:
        state = one.state
        for cycle, told in zip(one.cycles, answers, strict=True):
            state = observed(cycle.cluster, one.settings, state, cycle.now_ms)
            candidates = cycle.document["candidates"]
            occupancy = Occupancy(cycle.cluster, one.settings)
            among = least_reported_usage("t/x", candidates, occupancy, one.settings, state).among
            assert set(told["chosen"]) <= set(among or [""]), (one.seed, told["chosen"], among)
            clusters += bool(candidates)
            well_below += 0 < len(among) < len(candidates)
    assert clusters >= MANY
    assert well_below >= 0.3 * MANY


def _orders(cluster: Cluster, bundles: Sequence[str]) -> list[tuple[int, ...]]:
    found = (cluster.bundle_by_id[name].stats for name in bundles)
    return [bundle_order(stats) for stats in found if stats is not None]


def _compare(one: TransferCase, answers: list[dict[str, Any]], tally: Tally) -> None:
    """Cycle after cycle until a difference: from there on the counts of cycles are not the same ones."""
    state, is_stale = one.state, False
    for cycle, told in zip(one.cycles, answers, strict=True):
        state = observed(cycle.cluster, one.settings, state, cycle.now_ms)
        is_stale = is_stale or any(
            cycle.now_ms - r.reported_at > TTL_SECONDS * 1_000 for _, r in cycle.cluster.reporting
        )
        shed = transfer(cycle.cluster, one.settings, state, cycle.now_ms)
        ours = {(move.source, move.bundle_id, move.destination) for move in shed.moves}
        theirs: set[Unload] = {(source, bundle, to) for source, bundle, to in told["unloads"]}
        tally.clusters += 1
        tally.unloaded += bool(theirs)
        tally.swapped += any(move.reason == "swap" for move in shed.moves)
        if ours == theirs and _says_the_same(shed, told["skipped"]):
            tally.skipped.update(told["skipped"])
            state = shed.state
            continue
        kind = STALE if is_stale else _kind(cycle, state, shed, ours, theirs)
        if kind is None:
            tally.unexplained.append(f"seed {one.seed}: {sorted(ours, key=str)} != {told}")
        else:
            tally.kinds[kind] += 1
        return


def _says_the_same(shed: Shedding, skipped: list[str]) -> bool:
    """Where nothing is done, the reason is ours too; what is within the target counts as few hits to Pulsar."""
    if shed.moves:
        return skipped == []
    said = {refusal.reason for refusal in shed.refusals}
    [reason] = skipped or [""]
    if reason == "HitCount":
        return bool(said & {MoveRefusalReason.HIT_COUNT, MoveRefusalReason.WITHIN_TARGET})
    return bool(said & SKIPS.get(reason, set()))


def _kind(
    cycle: TransferCycle, state: BalanceState, shed: Shedding, ours: set[Unload], theirs: set[Unload]
) -> str | None:
    """The kind of the difference; None where it is of no documented kind."""
    if any(refusal.reason is MoveRefusalReason.NO_LOAD for refusal in shed.refusals):
        return NO_USAGE
    both = ours | theirs
    gave = {source for source, _, _ in both}
    swapping = {source for source, _, to in both if to in gave and any(one[2] == source for one in both)}
    if any(bundle in state.unloaded_bundles for name in swapping for bundle in cycle.document["tops"][name]):
        return SWAPPED_BACK
    left: Counter[str] = Counter(source for source, _, _ in theirs)
    if any(count == len(cycle.cluster.bundles_of(source)) for source, count in left.items()):
        return EMPTIED
    return None
