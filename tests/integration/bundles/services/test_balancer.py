"""The balancer on a real database and staged brokers: propose, apply within limits, verify, replay."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal
from unittest.mock import Mock

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from controller.bundles.broker_reports import REPORT_SCHEMAS, ReportArea
from controller.bundles.brokers import BundleActions, BundleReader
from controller.bundles.brokers.checked_changes import UnloadResult
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.ring import NamespaceBundle, topic_hash
from controller.bundles.services import balancer as bundle_balancer
from controller.bundles.services.balancer import ActReport, ApplySettings, ProposedCycle
from controller.bundles.services.balancer.replay import difference_of
from controller.bundles.store import cycles as bundle_cycles
from controller.bundles.store import namespaces as bundle_namespaces
from controller.bundles.store import proposals as bundle_proposals
from controller.bundles.store.namespaces import BalancingMode
from controller.bundles.store.proposals import ProposalState
from controller.clock import SystemClock
from controller.domain.approval_states import Subject
from controller.domain.errors import Conflict, DataPlaneUnavailable, InvalidPolicy, LostRace, StoreUnavailable
from tests.support import bundle_reports as rows
from tests.support.approvals import answer_subject
from tests.support.bundle_brokers import ActionFailure, Bench, staged_bench
from tests.support.bundle_reports import HALF, LAST, NOW_MS
from tests.support.store_driver import StoreDriver

CLUSTER, NAMESPACE = "staged", "acme/shop"
TOPICS = [f"persistent://{NAMESPACE}/orders-{number}" for number in range(12)]
LOWER_TOPICS = [name for name in TOPICS if topic_hash(name) < HALF]
CROWDED = "acme/crowded"
EVEN = BalanceSettings(even_hits=1)
TRANSFER = BalanceSettings(shedder="transfer", transfer_hits=0)
SETTINGS = BalanceSettings(shedder="threshold", threshold_min_byte_rate=0.0, placement="least_usage")


class Balancer:
    """One cluster: brokers, database, files."""

    def __init__(self, url: str, bench: Bench, directory: Path) -> None:
        self.driver, self.bench, self.area = StoreDriver(url), bench, ReportArea(str(directory))
        self.directory, self._minutes = directory, 0
        bench.cluster.add(NAMESPACE, HALF)

    def load(self, **changes: list[dict[str, Any]]) -> None:
        """The next aggregation run's result; every row of the staged cluster."""
        for table in changes.values():
            for row in table:
                row["cluster"] = CLUSTER
        self.driver.do(rows.merge, f"run-{self._minutes}", changes, minutes=self._minutes)
        self._minutes += 1

    def hot(self, mode: BalancingMode | None = None) -> None:
        """The lower bundle has more topics than allowed; the run left them for the balancer."""
        first, second = self.bench.cluster.brokers
        self.load(
            boundaries=[rows.boundaries(HALF)],
            bundles=[
                rows.bundle(0, HALF, 10.0, broker=first, topic_count=len(LOWER_TOPICS)),
                rows.bundle(HALF, LAST, 10.0, broker=second, topic_count=1),
            ],
            brokers=[rows.broker(first), rows.broker(second)],
        )
        told = [
            {
                "cluster": CLUSTER,
                "namespace": NAMESPACE,
                "lower_bound": 0,
                "topic": name,
                "hash": topic_hash(name),
                "broker": first,
                "instant_ms": NOW_MS,
                "producer_count": 1,
                "consumer_count": 1,
                **dict.fromkeys(("msg_rate_in", "byte_rate_in", "msg_rate_out", "byte_rate_out"), 5.0),
            }
            for name in LOWER_TOPICS
        ]
        self.area.publish_hot_topics(NOW_MS, pa.Table.from_pylist(told))
        self.settings({"max_topics": 1, "rules": "modular", "algorithm": "topic_count_equally_divide"})
        if mode is not None:
            self.mode(mode)

    def uneven(self, mode: BalancingMode | None = None) -> None:
        """The first broker is full and has two bundles; the second has none."""
        first, second = self.bench.cluster.brokers
        self.bench.cluster.owners = dict.fromkeys(self.bench.cluster.owners, first)
        self.load(
            boundaries=[rows.boundaries(HALF)],
            bundles=[rows.bundle(0, HALF, 60.0, broker=first), rows.bundle(HALF, LAST, 20.0, broker=first)],
            brokers=[
                rows.broker(first, 90.0, byte_rate_in=80.0, byte_rate_out=80.0),
                rows.broker(second, 5.0),
            ],
        )
        if mode is not None:
            self.mode(mode)

    def exchange(self) -> tuple[NamespaceBundle, NamespaceBundle]:
        """The first broker is full with two heavy bundles, the second has two light ones; the namespace is automatic.

        Return the light bundle that `TRANSFER` moves to the first broker, and the heavy bundle that it moves to the second in exchange.
        """
        first, second = self.bench.cluster.brokers
        ends = [number << 30 for number in range(4)] + [LAST]
        self.bench.cluster.add(CROWDED, *ends[1:-1])
        bundles = self.bench.cluster.lists[CROWDED].bundles
        owners = dict(zip(bundles, (first, first, second, second), strict=True))
        self.bench.cluster.owners.update(owners)
        self.load(
            boundaries=[rows.boundaries(*ends[1:-1], namespace=CROWDED)],
            bundles=[
                rows.bundle(bundle.lower, bundle.upper, rate, broker=owners[bundle], namespace=CROWDED)
                for bundle, rate in zip(bundles, (45.0, 45.0, 5.0, 5.0), strict=True)
            ],
            brokers=[
                rows.broker(
                    name, rate, byte_rate_in=rate, byte_rate_out=rate, observed_at_ms=SystemClock().now_ms()
                )
                for name, rate in ((first, 90.0), (second, 10.0))
            ],
        )
        self.mode(BalancingMode.AUTOMATIC, CROWDED)
        return bundles[2], bundles[0]

    def crowded(self, mode: BalancingMode | None = None) -> None:
        """The first broker is full and has sixteen bundles; the second has none. Called again: the next reading, in the same mode.

        Which bundle is the heaviest differs from reading to reading; what all carry together does not.
        """
        seen = self._minutes
        edges = [number << 28 for number in range(1, 16)]
        version = 0
        if seen:
            version = self.driver.do(bundle_namespaces.get_namespace, CLUSTER, CROWDED).row_version
        else:
            self.bench.cluster.add(CROWDED, *edges)
        first, second = self.bench.cluster.brokers
        self.bench.cluster.owners = dict.fromkeys(self.bench.cluster.owners, first)
        ends, now = [0, *edges, LAST], {"observed_at_ms": SystemClock().now_ms()}
        self.load(
            boundaries=[] if seen else [rows.boundaries(*edges, namespace=CROWDED)],
            bundles=[
                rows.bundle(
                    low,
                    high,
                    10.0 + (7 * place + 5 * seen) % 16 / 50,
                    broker=first,
                    namespace=CROWDED,
                    seen_row_version=seen,
                    seen_namespace_version=version,
                )
                for place, (low, high) in enumerate(pairwise(ends))
            ],
            brokers=[
                rows.broker(name, cpu, byte_rate_in=rate, byte_rate_out=rate, seen_row_version=seen, **now)
                for name, cpu, rate in ((first, 80.0, 162.4), (second, 0.0, 0.0))
            ],
        )
        if mode is not None:
            self.mode(mode, CROWDED)

    def settings(self, held: dict[str, Any]) -> None:
        row = self.driver.do(bundle_namespaces.get_namespace, CLUSTER, NAMESPACE)
        self.driver.do(
            bundle_namespaces.set_split_settings,
            CLUSTER,
            NAMESPACE,
            held,
            actor="ann",
            seen_row_version=row.row_version,
        )

    def mode(self, mode: BalancingMode, namespace: str = NAMESPACE) -> None:
        row = self.driver.do(bundle_namespaces.get_namespace, CLUSTER, namespace)
        self.driver.do(
            bundle_namespaces.set_mode,
            CLUSTER,
            namespace,
            mode,
            actor="ann",
            seen_row_version=row.row_version,
        )

    def tick(self, minutes_ago: int, *brokers: str) -> None:
        """One tick of the collector in which these brokers answered."""
        told = [{"cluster": CLUSTER, "broker": name} for name in brokers]
        tables = {kind: schema.empty_table() for kind, schema in REPORT_SCHEMAS.items()}
        tables["brokers"] = pa.Table.from_pylist(told, REPORT_SCHEMAS["brokers"])
        self.area.append(SystemClock().now_ms() - minutes_ago * 60_000, "one", tables)

    def restarted(self) -> Balancer:
        """The next run is a process of its own, which asks for the list of brokers again."""
        self.bench = Bench(self.bench.cluster, 10.0)
        return self

    def propose(self, key: str = "run-1", settings: BalanceSettings = SETTINGS) -> ProposedCycle:
        return bundle_balancer.propose(
            self.driver.store,
            self.bench.reader,
            self.area,
            settings=settings,
            request_key=key,
            decided_by="tester",
        )

    def apply(
        self, cycle: ProposedCycle | None, *, acts: BundleActions | None = None, **limits: Any
    ) -> list[ActReport]:
        return bundle_balancer.apply(
            self.driver.store,
            acts or self.bench.acts,
            cluster=CLUSTER,
            cycle_id=None if cycle is None else cycle.cycle_id,
            settings=ApplySettings(**limits),
            claimant="tester",
        )

    def verify(self) -> list[ActReport]:
        return bundle_balancer.verify(self.driver.store, self.bench.reader, claimant="tester")

    def states(self) -> list[str]:
        found = self.driver.do(bundle_proposals.list_proposals, CLUSTER)
        return [row.state.value for row in sorted(found, key=lambda row: row.proposal_id)]


@pytest.fixture
def balancer(database: str, tmp_path: Path) -> Iterator[Balancer]:
    with staged_bench() as bench:
        balancer = Balancer(database, bench, tmp_path)
        yield balancer
        balancer.driver.store.dispose()


def test_a_hot_bundle_is_split_and_seen(balancer: Balancer) -> None:
    balancer.hot(BalancingMode.AUTOMATIC)

    cycle = balancer.propose()
    [act] = balancer.apply(cycle)
    [seen] = balancer.verify()

    assert (cycle.splits, act.state, seen.state) == (1, ProposalState.APPLIED, ProposalState.VERIFIED)
    bundles = balancer.bench.cluster.lists[NAMESPACE]
    assert bundles.count == 3
    sides = [sum(topic_hash(t) < bundles.boundaries[1] for t in LOWER_TOPICS), len(LOWER_TOPICS)]
    assert sides[0] in (sides[1] // 2, (sides[1] + 1) // 2)
    row = balancer.driver.do(bundle_namespaces.get_namespace, CLUSTER, NAMESPACE)
    assert row.boundaries == bundles.boundaries


def test_a_split_whose_boundaries_cannot_be_stored_has_happened(balancer: Balancer) -> None:
    balancer.hot(BalancingMode.AUTOMATIC)
    cycle = balancer.propose()
    balancer.driver.sql(
        "ALTER TABLE cleave.namespace_bundles ADD CONSTRAINT as_before CHECK (cardinality(boundaries) < 4)"
    )

    [act] = balancer.apply(cycle)
    [seen] = balancer.verify()

    assert (act.state, seen.state) == (ProposalState.APPLIED, ProposalState.VERIFIED)
    assert balancer.bench.cluster.lists[NAMESPACE].count == 3
    row = balancer.driver.do(bundle_namespaces.get_namespace, CLUSTER, NAMESPACE)
    assert row.boundaries == (0, HALF, LAST)


def test_a_bundle_moves_off_the_full_broker_and_rests_then(balancer: Balancer) -> None:
    balancer.uneven(BalancingMode.AUTOMATIC)
    second = balancer.bench.cluster.brokers[1]

    cycle = balancer.propose()
    [act] = balancer.apply(cycle)
    [seen] = balancer.verify()

    assert (cycle.moves, act.state, seen.state) == (1, ProposalState.APPLIED, ProposalState.VERIFIED)
    [moved] = [bundle for bundle, owner in balancer.bench.cluster.owners.items() if owner == second]
    assert str(moved) == act.bundle
    again = balancer.propose("run-2")
    proposed = balancer.driver.do(bundle_proposals.list_proposals, CLUSTER, cycle_id=again.cycle_id)
    assert str(moved) not in {str(row.bundle) for row in proposed}  # within its grace


def test_a_broker_that_is_not_on_the_list_gets_nothing(balancer: Balancer) -> None:
    """It died a minute ago: its report is on file, and it looks idle."""
    balancer.uneven()
    first, dead = balancer.bench.cluster.brokers
    balancer.bench.cluster.brokers = [first]

    assert balancer.propose().moves == 0
    balancer.bench.cluster.brokers = [first, dead]
    assert balancer.restarted().propose("run-2").moves == 1


def test_a_broker_that_was_silent_for_two_ticks_gets_nothing(balancer: Balancer) -> None:
    """It is on the list, and does not answer the collector."""
    balancer.uneven()
    first, silent = balancer.bench.cluster.brokers
    balancer.tick(4, first, silent)
    balancer.tick(3, first)
    assert balancer.propose("one-tick").moves == 1

    balancer.tick(2, first)
    assert balancer.propose("two-ticks").moves == 0
    assert (silent, "no-report") in balancer.driver.sql("SELECT broker, reason FROM inspect.bundles_why_not")

    balancer.tick(1, first, silent)
    assert balancer.propose("back").moves == 1


def _policy(namespaces: str, primary: str, secondary: str) -> dict[str, Any]:
    """As the admin API answers it."""
    limits = {"min_limit": "1", "usage_threshold": "100"}
    return {
        "namespaces": [namespaces],
        "primary": [primary],
        "secondary": [secondary],
        "auto_failover_policy": {"policy_type": "min_available", "parameters": limits},
    }


def test_an_isolation_policy_keeps_bundles_off_a_broker(balancer: Balancer) -> None:
    """Both brokers are on one host, so a policy that names no host there forbids both."""
    balancer.uneven()
    balancer.bench.cluster.isolation = {"p": _policy("acme/.*", "elsewhere", "elsewhere")}
    assert balancer.propose("bound").moves == 0

    balancer.bench.cluster.isolation = {"p": _policy("acme/.*", "elsewhere", r"127\.0\.0\.1")}
    assert balancer.propose("failed-over").moves == 1
    balancer.bench.cluster.isolation = {"p": _policy("other/.*", r"127\.0\.0\.1", "")}
    assert balancer.propose("for-others").moves == 0


def test_a_policy_set_after_the_proposal_holds(balancer: Balancer) -> None:
    balancer.uneven(BalancingMode.AUTOMATIC)
    cycle = balancer.propose()
    balancer.bench.cluster.isolation = {"p": _policy("acme/.*", "elsewhere", "elsewhere")}

    [act] = balancer.apply(cycle)

    assert act.state is ProposalState.FAILED
    assert "isolation policies exclude broker" in act.outcome
    assert balancer.bench.cluster.acts == []


def test_namespaces_of_an_anti_affinity_group_stay_apart(balancer: Balancer) -> None:
    balancer.uneven()
    first, second = balancer.bench.cluster.brokers
    balancer.load(
        boundaries=[rows.boundaries(HALF, namespace="acme/twin")],
        bundles=[rows.bundle(0, HALF, 1.0, broker=second, namespace="acme/twin")],
    )
    assert balancer.propose("alone").moves == 1

    balancer.bench.cluster.groups = {NAMESPACE: "pair", "acme/twin": "pair"}
    assert balancer.propose("pair").moves == 0
    balancer.bench.cluster.failure_domains = {"rack-1": [first], "rack-2": [second]}
    assert balancer.propose("racks").moves == 0
    [(text,)] = balancer.driver.sql(
        "SELECT inputs FROM cleave.bundle_decision ORDER BY cycle_id DESC LIMIT 1"
    )
    domains = {one["name"]: one["failure_domain"] for one in json.loads(text)["balance"]["brokers"]}
    assert domains == {first: "rack-1", second: "rack-2"}


def test_in_dry_run_everything_is_shown_and_nothing_is_done(balancer: Balancer) -> None:
    balancer.hot()

    first, second = balancer.propose("run-1"), balancer.propose("run-2")

    assert balancer.apply(second) == []
    assert balancer.bench.cluster.acts == []
    assert (first.splits, second.splits) == (1, 1)  # shown again, not once
    assert balancer.states() == ["refused", "proposed"]
    assert balancer.driver.sql("SELECT reason FROM inspect.bundles_why_not WHERE rule = 'split'") == [
        ("the namespace is in dry run; enable the namespace",)
    ]


def test_what_waits_for_a_person_stands_and_is_done_once_approved(balancer: Balancer) -> None:
    balancer.hot(BalancingMode.APPROVAL)
    first = balancer.propose("run-1")
    second = balancer.propose("run-2")

    assert (first.splits, second.splits) == (1, 0)
    assert balancer.apply(second) == []
    [row] = balancer.driver.do(bundle_proposals.list_proposals, CLUSTER)
    answer_subject(balancer.driver.store, Subject.BUNDLE_PROPOSAL, row.proposal_id)
    [act] = balancer.apply(None)

    assert act.state is ProposalState.APPLIED


def test_moves_that_wait_for_a_person_count_as_made(balancer: Balancer) -> None:
    """Twelve cycles in the hour that proposals wait: what was needed once is proposed once."""
    balancer.crowded(BalancingMode.APPROVAL)
    needed = balancer.propose("run-0", EVEN).moves

    later = []
    for number in range(1, 13):
        balancer.crowded()
        later.append(balancer.propose(f"run-{number}", EVEN).moves)

    assert needed > 3
    assert later == [0] * 12
    assert balancer.states() == ["proposed"] * needed


def test_moves_that_run_count_as_made(balancer: Balancer) -> None:
    balancer.crowded(BalancingMode.AUTOMATIC)
    cycle = balancer.propose("run-0", EVEN)
    acts = balancer.apply(cycle)

    assert {act.state for act in acts} == {ProposalState.APPLIED}
    balancer.crowded()  # a reading from before
    assert balancer.propose("run-1", replace(EVEN, even_settle_seconds=0)).moves == 0


def test_a_proposal_nobody_answered_for_an_hour_is_no_more(balancer: Balancer) -> None:
    balancer.crowded(BalancingMode.APPROVAL)
    needed = balancer.propose("run-0", EVEN).moves
    old = balancer.driver.do(bundle_proposals.list_proposals, CLUSTER)
    balancer.driver.sql("UPDATE cleave.bundle_proposal SET proposed_at = proposed_at - interval '61 minutes'")

    with pytest.raises(Conflict, match="waited longer than 60 minutes"):
        answer_subject(balancer.driver.store, Subject.BUNDLE_PROPOSAL, old[0].proposal_id)
    assert balancer.propose("run-1", EVEN).moves == needed
    assert sorted(balancer.states()) == ["proposed"] * needed + ["refused"] * needed


def test_what_was_approved_and_not_begun_for_an_hour_is_not_done(balancer: Balancer) -> None:
    """Nobody ran `apply`: the load it was decided on is long gone."""
    balancer.uneven(BalancingMode.APPROVAL)
    balancer.propose()
    [row] = balancer.driver.do(bundle_proposals.list_proposals, CLUSTER)
    answer_subject(balancer.driver.store, Subject.BUNDLE_PROPOSAL, row.proposal_id)
    balancer.driver.sql("UPDATE cleave.bundle_proposal SET approved_at = approved_at - interval '61 minutes'")

    assert bundle_balancer.waiting(balancer.driver.store, cluster=CLUSTER, cycle_id=None) == []
    assert balancer.apply(None) == []
    assert balancer.states() == ["refused"]
    assert balancer.bench.cluster.acts == []


def test_what_was_tried_and_not_done_for_an_hour_is_not_done_either(balancer: Balancer) -> None:
    balancer.hot(BalancingMode.AUTOMATIC)
    cycle = balancer.propose()
    balancer.bench.cluster.trouble = ActionFailure.ERROR_BEFORE
    [tried] = balancer.apply(cycle)
    assert tried.state is ProposalState.APPROVED
    balancer.driver.sql(
        "UPDATE cleave.bundle_proposal SET approved_at = approved_at - interval '61 minutes',"
        " claimed_until = now() - interval '1 second'"
    )

    assert bundle_balancer.waiting(balancer.driver.store, cluster=CLUSTER, cycle_id=None) == []
    assert balancer.apply(None) == []
    [row] = balancer.driver.do(bundle_proposals.list_proposals, CLUSTER)
    assert row.state is ProposalState.REFUSED
    assert row.outcome is not None
    assert row.outcome.endswith(f"attempts: 1; the last: {tried.outcome}")


def test_files_are_read_while_no_transaction_is_open(balancer: Balancer) -> None:
    balancer.hot()
    looks: list[list[tuple[Any, ...]]] = []

    class Watched(ReportArea):
        def heard(self, *args: Any, **more: Any) -> frozenset[str] | None:
            looks.append(open_transactions())
            return super().heard(*args, **more)

        def hot_topics(self, window_end_ms: int) -> pa.Table | None:
            looks.append(open_transactions())
            return super().hot_topics(window_end_ms)

    def open_transactions() -> list[tuple[Any, ...]]:
        return balancer.driver.sql(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            " AND state LIKE 'idle in transaction%'"
        )

    balancer.area = Watched(str(balancer.directory))
    assert balancer.propose().splits == 1
    assert looks == [[], []]


def test_a_request_is_one_cycle(balancer: Balancer) -> None:
    balancer.hot()

    first, again = balancer.propose("run-1"), balancer.propose("run-1")

    assert again == ProposedCycle(first.cycle_id, 0, 0, 0, is_repeat=True)


def test_a_request_of_another_cluster_is_a_conflict_instead_of_its_cycle(balancer: Balancer) -> None:
    """The caller got a cycle without a proposal for its own cluster, and took it for its own."""
    first = balancer.propose("run-1")
    other = Mock(wraps=balancer.bench.reader, cluster="other")

    with pytest.raises(Conflict, match="gets the cycle of the first request"):
        bundle_balancer.propose(
            balancer.driver.store,
            other,
            balancer.area,
            settings=SETTINGS,
            request_key="run-1",
            decided_by="tester",
        )

    assert balancer.propose("run-1") == ProposedCycle(first.cycle_id, 0, 0, 0, is_repeat=True)


def test_limits_of_a_call_hold(balancer: Balancer) -> None:
    balancer.hot(BalancingMode.AUTOMATIC)

    assert balancer.apply(balancer.propose(), max_splits=0) == []
    assert balancer.states() == ["proposed"]


def _interrupt_records(monkeypatch: pytest.MonkeyPatch, when: Literal["before", "after"]) -> None:
    """The store fails before or after each outcome is recorded."""
    module = sys.modules["controller.bundles.services.balancer.apply"]
    record = module._record

    def interrupted(*args: Any) -> None:
        if when == "after":
            record(*args)
        raise StoreUnavailable("the connection was lost", 0.0)

    monkeypatch.setattr(module, "_record", interrupted)


def test_attempts_for_one_cycle_share_the_limit(balancer: Balancer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow repeats a task whose outcome was recorded before its connection was lost."""
    balancer.crowded(BalancingMode.AUTOMATIC)
    cycle = balancer.propose("run-0", EVEN)
    assert cycle.moves > 3

    with monkeypatch.context() as patch:
        _interrupt_records(patch, "after")
        with pytest.raises(StoreUnavailable):
            balancer.apply(cycle, max_unloads=2)
        with pytest.raises(StoreUnavailable):
            balancer.apply(cycle, max_unloads=2)
    assert balancer.apply(cycle, max_unloads=2) == []

    assert balancer.states() == ["applied"] * 2 + ["proposed"] * (cycle.moves - 2)


def test_a_move_whose_outcome_is_not_recorded_counts_in_the_limit(
    balancer: Balancer, monkeypatch: pytest.MonkeyPatch
) -> None:
    balancer.crowded(BalancingMode.AUTOMATIC)
    cycle = balancer.propose("run-0", EVEN)
    with monkeypatch.context() as patch:
        _interrupt_records(patch, "before")
        with pytest.raises(StoreUnavailable):
            balancer.apply(cycle, max_unloads=1)
    balancer.driver.sql(
        "UPDATE cleave.bundle_proposal SET state = 'approved'"
        " WHERE proposal_id = (SELECT max(proposal_id) FROM cleave.bundle_proposal)"
    )

    assert balancer.apply(cycle, max_unloads=1) == [], "the first move is claimed and may have been made"
    balancer.driver.sql("UPDATE cleave.bundle_proposal SET claimed_until = now() - interval '1 second'")
    [repeated] = balancer.apply(cycle, max_unloads=1)

    assert repeated.state is ProposalState.APPLIED
    assert balancer.states() == ["applied"] + ["proposed"] * (cycle.moves - 2) + ["approved"]


def test_an_act_nobody_can_tell_of_is_found_done_the_next_time(balancer: Balancer) -> None:
    balancer.hot(BalancingMode.AUTOMATIC)
    cycle = balancer.propose()
    balancer.bench.cluster.trouble = ActionFailure.SILENT_BEFORE

    [first] = balancer.apply(cycle)
    assert first.state is ProposalState.APPROVED
    assert balancer.apply(None) == []  # its delay has not passed
    balancer.driver.sql("UPDATE cleave.bundle_proposal SET claimed_until = now() - interval '1 second'")
    [second] = balancer.apply(None)

    assert second.state is ProposalState.APPLIED


class Interrupted(BundleActions):
    """The balancer's actions; `before` is called before each unload, with the number of unloads before it."""

    def __init__(self, bench: Bench, before: Callable[[int], object]) -> None:
        super().__init__(bench.session, bench.reader)
        self._before, self._begun = before, 0

    def unload(self, *args: Any, **more: Any) -> UnloadResult:
        self._begun += 1
        self._before(self._begun - 1)
        return super().unload(*args, **more)


def test_a_balancer_that_is_slow_does_not_repeat_what_another_has_done(balancer: Balancer) -> None:
    """The other applies what the slow one has not begun, and a person moves these bundles back."""
    balancer.crowded(BalancingMode.AUTOMATIC)
    cycle = balancer.propose("run-0", EVEN)
    first, owners = balancer.bench.cluster.brokers[0], balancer.bench.cluster.owners
    others: list[ActReport] = []

    def another(begun: int) -> None:
        if begun:
            return
        balancer.driver.sql(
            "UPDATE cleave.bundle_proposal SET claimed_until = now() - interval '1 second'"
            " WHERE proposal_id > (SELECT min(proposal_id) FROM cleave.bundle_proposal)"
        )
        others.extend(balancer.apply(None))
        owners.update({NamespaceBundle.parse(act.bundle): first for act in others})

    own = balancer.apply(cycle, acts=Interrupted(balancer.bench, another))

    assert (len(own), len(others)) == (1, cycle.moves - 1)
    assert {act.state for act in (*own, *others)} == {ProposalState.APPLIED}
    assert {owners[NamespaceBundle.parse(act.bundle)] for act in others} == {first}


def test_a_proposal_is_attempted_once_in_a_call(balancer: Balancer) -> None:
    """Its claim may be over before the call is, however short the delay of its error."""
    balancer.crowded(BalancingMode.AUTOMATIC)
    cycle = balancer.propose("run-0", EVEN)

    def busy(_begun: int) -> None:
        raise DataPlaneUnavailable("the broker is busy", 0.0)

    acts = balancer.apply(cycle, acts=Interrupted(balancer.bench, busy))

    assert [act.state for act in acts] == [ProposalState.APPROVED] * cycle.moves
    assert len({act.proposal_id for act in acts}) == cycle.moves


def test_a_bundle_that_has_moved_since_ends_its_proposal(balancer: Balancer) -> None:
    balancer.uneven(BalancingMode.AUTOMATIC)
    cycle = balancer.propose()

    def moved(_begun: int) -> None:
        raise LostRace("the bundle is owned by another broker; decide again")

    [act] = balancer.apply(cycle, acts=Interrupted(balancer.bench, moved))

    assert (act.state, act.outcome) == (
        ProposalState.FAILED,
        "the bundle is owned by another broker; decide again",
    )


@pytest.mark.parametrize(
    ("has_destination", "judged"), [(False, ProposalState.VERIFIED), (True, ProposalState.FAILED)]
)
def test_an_unload_that_was_not_recorded_is_found_done(
    balancer: Balancer, monkeypatch: pytest.MonkeyPatch, has_destination: bool, judged: ProposalState
) -> None:
    """When the unload is repeated, another broker than the source has the bundle; verification knows the destination."""
    balancer.uneven(BalancingMode.AUTOMATIC)
    cycle = balancer.propose()
    with monkeypatch.context() as patch:
        _interrupt_records(patch, "before")
        with pytest.raises(StoreUnavailable):
            balancer.apply(cycle)
    first, second = balancer.bench.cluster.brokers
    [row] = balancer.driver.do(bundle_proposals.list_proposals, CLUSTER)
    assert balancer.bench.cluster.owners[row.bundle] == second
    source, destination = ("gone:8080", first) if has_destination else (first, None)
    balancer.driver.sql("ALTER TABLE cleave.bundle_proposal DISABLE TRIGGER USER")
    balancer.driver.sql(
        "UPDATE cleave.bundle_proposal SET broker = :source, destination = :destination,"
        " claimed_until = now() - interval '1 second'",
        source=source,
        destination=destination,
    )
    balancer.driver.sql("ALTER TABLE cleave.bundle_proposal ENABLE TRIGGER USER")

    [repeated] = balancer.apply(None)
    [seen] = balancer.verify()

    assert (repeated.state, repeated.outcome) == (
        ProposalState.APPLIED,
        f"an earlier attempt may have unloaded it: {source} no longer owns it",
    )
    assert seen.state is judged


def test_the_rest_of_an_exchange_that_a_crash_interrupted_is_made_by_the_next_run(balancer: Balancer) -> None:
    light, heavy = balancer.exchange()
    first, second = balancer.bench.cluster.brokers
    cycle = balancer.propose(settings=TRANSFER)

    class Crash(BaseException):
        pass

    def crash(begun: int) -> None:
        if begun:
            raise Crash

    with pytest.raises(Crash):
        balancer.apply(cycle, acts=Interrupted(balancer.bench, crash))
    owners = balancer.bench.cluster.owners
    assert (owners[light], owners[heavy]) == (first, first), "both are on the fuller broker"
    counted = balancer.driver.do(bundle_proposals.under_way, CLUSTER)  # which cycles count as made
    assert [(row.bundle, row.state) for row in counted] == [
        (light, ProposalState.APPLIED),
        (heavy, ProposalState.APPROVED),
    ]
    balancer.driver.sql("UPDATE cleave.bundle_proposal SET claimed_until = now() - interval '1 second'")

    acts = balancer.restarted().apply(None)

    assert [(act.bundle, act.state) for act in acts] == [(str(heavy), ProposalState.APPLIED)]
    assert (owners[light], owners[heavy]) == (first, second)


def test_a_bundle_that_somebody_else_split_fails_with_that_sentence(balancer: Balancer) -> None:
    balancer.hot(BalancingMode.AUTOMATIC)
    cycle = balancer.propose()
    balancer.bench.cluster.split(balancer.bench.cluster.lists[NAMESPACE].bundles[0], [7])

    [act] = balancer.apply(cycle)

    assert act.state is ProposalState.FAILED
    assert "another client split it" in act.outcome


def test_an_act_that_keeps_failing_is_given_up(balancer: Balancer) -> None:
    balancer.hot(BalancingMode.AUTOMATIC)
    cycle = balancer.propose()
    balancer.bench.cluster.trouble = ActionFailure.ERROR_BEFORE

    [act] = balancer.apply(cycle, max_attempts=1)

    assert act.state is ProposalState.FAILED
    assert act.outcome.startswith("given up after 1 attempts")


def test_a_move_that_was_taken_back_is_not_called_verified(balancer: Balancer) -> None:
    balancer.uneven(BalancingMode.AUTOMATIC)
    balancer.apply(balancer.propose())
    first = balancer.bench.cluster.brokers[0]
    balancer.bench.cluster.owners = dict.fromkeys(balancer.bench.cluster.owners, first)

    [seen] = balancer.verify()

    assert (seen.state, seen.outcome) == (ProposalState.FAILED, f"{first} has it again")


def test_an_unload_waits_for_its_owner_by_the_clock_of_the_database(
    balancer: Balancer, monkeypatch: pytest.MonkeyPatch
) -> None:
    balancer.uneven(BalancingMode.AUTOMATIC)
    [act] = balancer.apply(balancer.propose())
    balancer.bench.cluster.owners.pop(NamespaceBundle.parse(act.bundle))
    hour_ahead = Mock(now=lambda zone: datetime.now(zone) + timedelta(hours=1))
    monkeypatch.setattr(
        sys.modules["controller.bundles.services.balancer.apply"],
        "datetime",
        hour_ahead,
        raising=False,
    )

    [waiting] = balancer.verify()
    balancer.driver.sql(
        "UPDATE cleave.bundle_proposal SET claimed_until = NULL, applied_at = applied_at - interval '301 s'"
    )
    [seen] = balancer.verify()

    assert (waiting.state, waiting.outcome) == (
        ProposalState.APPLIED,
        "no client has looked it up since",
    )
    assert (seen.state, seen.outcome) == (
        ProposalState.VERIFIED,
        "released; no client has looked it up since",
    )


def test_what_cannot_be_judged_yet_is_read_again_after_a_pause(balancer: Balancer) -> None:
    balancer.uneven(BalancingMode.AUTOMATIC)
    [act] = balancer.apply(balancer.propose())
    balancer.bench.cluster.owners.pop(NamespaceBundle.parse(act.bundle))

    assert [seen.state for seen in balancer.verify()] == [ProposalState.APPLIED]
    assert balancer.verify() == [], "it is not read again at once"

    [(pause_seconds,)] = balancer.driver.sql(
        "SELECT extract(epoch FROM claimed_until - clock_timestamp())::float FROM cleave.bundle_proposal"
    )
    assert 10.0 < pause_seconds <= 20.0


def test_no_check_is_told_that_was_not_recorded(balancer: Balancer, monkeypatch: pytest.MonkeyPatch) -> None:
    balancer.uneven(BalancingMode.AUTOMATIC)
    balancer.apply(balancer.propose())
    owner = BundleReader.owner

    def owner_after_another(reader: BundleReader, *args: Any, **more: Any) -> str | None:
        monkeypatch.undo()
        balancer.driver.sql("UPDATE cleave.bundle_proposal SET claimed_until = NULL")
        [other] = balancer.verify()
        assert other.state is ProposalState.VERIFIED
        return owner(reader, *args, **more)

    monkeypatch.setattr(BundleReader, "owner", owner_after_another)

    with capture_logs() as logged, pytest.raises(LostRace):
        balancer.verify()

    told = [entry["state"] for entry in logged if entry["event"] == "bundle proposal checked"]
    assert told == ["verified"], "the other one's"


def test_a_stored_cycle_is_decided_again_to_the_byte(balancer: Balancer) -> None:
    balancer.hot()
    cycles = [balancer.propose(), balancer.propose("run-2", BalanceSettings())]
    balancer.uneven()
    cycles.append(balancer.propose("run-3"))

    found = [
        bundle_balancer.replay(balancer.driver.do(bundle_cycles.get_cycle, cycle.cycle_id))
        for cycle in cycles
    ]

    assert [(one.is_same, one.difference) for one in found] == [(True, None)] * 3


def test_a_cycle_that_would_be_decided_otherwise_says_where(balancer: Balancer) -> None:
    balancer.hot()
    cycle = balancer.propose()
    [(text,)] = balancer.driver.sql("SELECT outcome FROM cleave.bundle_decision")
    other = json.loads(text)
    other["splits"][0]["cuts"] = ["0x00000001"]
    balancer.driver.sql("ALTER TABLE cleave.bundle_decision DISABLE TRIGGER USER")
    changed = json.dumps(other, sort_keys=True, separators=(",", ":"))
    balancer.driver.sql("UPDATE cleave.bundle_decision SET outcome = :changed", changed=changed)

    found = bundle_balancer.replay(balancer.driver.do(bundle_cycles.get_cycle, cycle.cycle_id))

    assert not found.is_same
    assert found.difference is not None
    assert found.difference.startswith('outcome.splits[0].cuts[0]: "0x00000001" stored, "0x')


def test_settings_that_are_not_valid_together_decide_nothing(balancer: Balancer) -> None:
    with pytest.raises(InvalidPolicy):
        balancer.propose(settings=BalanceSettings(shedder="nonsense"))


@pytest.mark.parametrize(
    ("stored", "replayed", "said"),
    [
        ('{"a":1}', '{"a":1}', None),
        ('{"a":1}', '{"a":1.0}', "x.a: 1 stored, 1.0 replayed"),
        ('{"a":[1,2]}', '{"a":[1]}', "x.a: 2 stored, 1 replayed"),
        ('{"a":1}', '{"b":1}', "x.a: only stored"),
        ('{"a":1}', '{ "a":1}', "x: the same values are written differently from character 1"),
    ],
)
def test_a_difference_is_told_by_its_place(stored: str, replayed: str, said: str | None) -> None:
    found = difference_of("x", stored, replayed)

    assert (found if said is None or found is None else found[: len(said)]) == said
