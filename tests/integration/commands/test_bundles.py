"""`cleave bundles` on two brokers that behave as spec'd over real HTTP, and a database: each verb, and what it refuses."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest
import requests
from prometheus_client import REGISTRY, CollectorRegistry

from controller import tasks
from controller.bundles.bootstrap import Bundles
from controller.bundles.broker_reports import REPORT_SCHEMAS, ReportArea
from controller.bundles.brokers import BundleReader
from controller.bundles.metrics import GAUGES, BundleMetrics
from controller.bundles.services import collector
from controller.bundles.services.aggregation import BundleAggregation
from controller.bundles.store import namespaces as bundle_namespaces
from controller.bundles.store import proposals as bundle_proposals
from controller.bundles.store.namespaces import BalancingMode
from controller.clock import SystemClock
from controller.commands.bundle_picture import Arc, arcs_after
from controller.devstack.ports import free_port
from controller.domain.errors import CleaveError, Conflict
from controller.store.postgres.engine import Store
from tests.support.bundle_operator import (
    CLUSTER,
    HIGH,
    LOW,
    NAMESPACE,
    TOPICS,
    BundleOperator,
    bundle_operator,
)


@pytest.fixture
def operator(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[BundleOperator]:
    with bundle_operator(database, tmp_path, capsys, monkeypatch) as operator:
        yield operator


def test_hash_completes_the_name_and_finds_the_bundle(operator: BundleOperator) -> None:
    assert operator.cleave.json("bundles", "hash", "my-topic") == {
        "topic": "persistent://public/default/my-topic",
        "hash": "0x2bad45f7",
        "bundle": None,
        "namespace": "public/default",
    }
    operator.uneven()
    assert operator.cleave.json("bundles", "hash", TOPICS[0])["bundle"] in (LOW, HIGH)
    assert "is not complete" in operator.cleave.refused("bundles", "hash", "persistent://only/two")


def test_show_lists_every_bundle_and_draws_the_ring(operator: BundleOperator, tmp_path: Path) -> None:
    first, _ = operator.uneven()
    found = operator.cleave.json("bundles", "show", NAMESPACE)
    assert [(row["bundle"], row["broker"], row["mode"]) for row in found] == [
        ("0x00000000_0x80000000", first, "dry-run"),
        ("0x80000000_0xffffffff", first, "dry-run"),
    ]
    assert "acme/none are known" in operator.cleave.refused("bundles", "show", "acme/none")
    operator.cleave.ok("bundles", "draw", NAMESPACE, str(tmp_path / "ring.html"))
    assert "0x00000000_0x80000000" in (tmp_path / "ring.html").read_text()


def test_show_says_when_there_is_more(operator: BundleOperator) -> None:
    assert "nothing found" in operator.cleave.ok("bundles", "show")
    operator.uneven()
    assert "the first 1 only; see --limit" in operator.cleave.ok("bundles", "show", "--limit", "1")
    assert "only" not in operator.cleave.ok("bundles", "show", "--limit", "2")


def test_brokers_are_listed_with_what_they_carry_and_whether_they_are_active(
    operator: BundleOperator,
) -> None:
    first, second = operator.uneven()
    found = operator.cleave.json("bundles", "brokers")
    assert [(row["broker"], float(row["usage"]), row["active"]) for row in found] == [
        (first, 0.9, True),
        (second, 0.05, True),
    ]
    assert re.search(r"\d+ d ago", operator.cleave.ok("bundles", "brokers"))  # the reports are of May

    operator.driver.sql(
        'INSERT INTO cleave.broker_load SELECT (jsonb_populate_record(l, \'{"cluster": "other", "broker": "elsewhere:8080"}\')).*'
        " FROM cleave.broker_load l WHERE broker = :broker",
        broker=first,
    )
    assert len(operator.cleave.json("bundles", "brokers")) == 2  # those of the cluster that the settings name

    operator.driver.sql(
        "UPDATE cleave.broker_load SET cpu_limit = 0, direct_memory_limit = -1, bandwidth_in_limit = 0,"
        " bandwidth_out_limit = -1000 WHERE broker = :broker",
        broker=second,
    )
    assert [row["usage"] for row in operator.cleave.json("bundles", "brokers")][
        1
    ] is None  # unknown is not idle
    operator.bench.cluster.brokers = [first]
    assert [row["active"] for row in operator.cleave.json("bundles", "brokers")] == [True, False]


def test_proposals_are_listed_by_state_cycle_and_namespace(operator: BundleOperator) -> None:
    operator.uneven()
    assert "nothing found" in operator.cleave.ok("bundles", "proposals")
    first = operator.cleave.json("bundles", "propose")["cycle_id"]
    operator.cleave.ok("bundles", "propose")

    assert len(operator.cleave.json("bundles", "proposals")) == 2
    [kept] = operator.cleave.json("bundles", "proposals", NAMESPACE, "--state", "proposed")
    assert kept["cycle_id"] == first + 1
    [old] = operator.cleave.json("bundles", "proposals", "--cycle", str(first))
    assert (old["state"], old["age_seconds"] is None) == ("refused", False)
    said = operator.cleave.ok("bundles", "proposals", "--limit", "1")
    assert "the first 1 only; see --limit" in said
    assert re.search(r"\d+ s ago", said)
    assert operator.cleave.json("bundles", "proposals", "acme/none") == []


def test_a_cycle_is_proposed_approved_applied_and_replayed(operator: BundleOperator) -> None:
    _, second = operator.uneven()
    cycle = operator.cleave.json("bundles", "propose")
    [proposal] = cycle["proposals"]
    assert (proposal["kind"], proposal["destination"], proposal["mode"]) == ("unload", second, "dry-run")
    assert re.fullmatch(
        rf"overloaded: average usage of {re.escape(proposal['broker'])} is 0\.9, above 0\.575; "
        r"the bundle carries byte_rate \d+",
        proposal["reason"],
    )
    number = str(proposal["proposal_id"])
    assert operator.cleave.json("approvals", "list") == []
    assert operator.cleave.json("bundles", "replay", str(cycle["cycle_id"]))["is_same"]

    operator.cleave.ok("bundles", "mode", NAMESPACE, "approval")
    [waiting] = operator.cleave.json("approvals", "list", "--subject", "bundle-proposal")
    answer = ("approvals", "approve", str(waiting["approval_id"]))
    assert "is of cluster, not of a topic" in operator.cleave.refused(*answer)
    [row] = operator.cleave.json(*answer, "--level", "cluster")["approvals"]
    assert (row["state"], row["subject_id"]) == ("approved", proposal["proposal_id"])
    assert number in operator.cleave.rehearsed("bundles", "apply")
    applied = operator.cleave.json("bundles", "apply")
    assert [one["state"] for one in applied][:1] == ["applied"]
    assert second in set(operator.bench.cluster.owners.values())
    assert operator.cleave.json("bundles", "apply") in ([], applied[1:])
    for words in (("apply", "--cycle", "99"), ("apply", "--cycle", "99", "--dry-run"), ("replay", "99")):
        assert "no cycle 99" in operator.cleave.refused("bundles", *words)


def test_the_picture_after_a_cycle_has_its_cuts_and_moves(operator: BundleOperator) -> None:
    _, second = operator.uneven()
    operator.cleave.ok("bundles", "propose")
    with operator.driver.store.transaction() as tx:
        proposals = bundle_proposals.list_proposals(tx, CLUSTER)
        bundles = bundle_namespaces.get_namespace(tx, CLUSTER, NAMESPACE).bundles.bundles
    arcs = [Arc(bundle, "first", 10.0) for bundle in bundles]

    assert second in {arc.broker for arc in arcs_after(arcs, proposals)}


def test_collect_lands_a_tick_and_no_cluster_is_one_line(
    operator: BundleOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in TOPICS:
        operator.bench.cluster.publish(name)
    tick = operator.cleave.json("bundles", "collect", "--once")
    assert (tick["brokers"], tick["topics"], tick["silent"]) == (2, len(TOPICS), [])

    monkeypatch.setenv("CLEAVE_PULSAR_ADMIN_URL", "http://127.0.0.1:9")
    nobody = operator.cleave("bundles", "collect", "--once", "--json-logs")
    assert (nobody.code, nobody.out) == (75, "")
    *lines, said = nobody.err.splitlines()
    assert "no broker of the cluster answered (staged)" in said
    assert [(one["event"], one["cluster"]) for one in map(json.loads, lines) if "cluster" in one] == [
        ("cannot read the list of brokers", "staged")
    ]
    monkeypatch.delenv("CLEAVE_PULSAR_ADMIN_URL")
    assert "CLEAVE_PULSAR_ADMIN_URL" in operator.cleave.refused("bundles", "collect", "--once")


def test_a_collector_that_was_just_started_knows_the_stored_boundaries(
    operator: BundleOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator.uneven()
    monkeypatch.setattr(collector, "LOOKED_AT_AGAIN", 0)
    monkeypatch.setattr(BundleReader, "bundles", _no_storage)

    assert operator.cleave.json("bundles", "collect", "--once")["namespaces"] == 1


def test_the_aggregation_gives_spark_its_settings(
    operator: BundleOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []

    def with_session(master: str, _: object, *conf: Mapping[str, str]) -> NoReturn:
        asked.append((master, *conf))
        raise Conflict("seen")

    monkeypatch.setattr("spark_jobs.session.with_session", with_session)
    monkeypatch.setenv("SPARK_MASTER", "local[1]")
    monkeypatch.setenv("CLEAVE_SPARK_CONF", '{"spark.cores.max": "4"}')
    operator.cleave.ok("bundles", "collect", "--once")
    assert "seen" in operator.cleave.refused("bundles", "aggregate")
    assert asked == [("local[1]", {"spark.cores.max": "4"})]


def test_merges_say_that_nothing_is_known(operator: BundleOperator) -> None:
    assert "collect and aggregate reports first" in operator.cleave.ok("bundles", "merges")


def test_cold_neighbours_are_shown_with_what_it_would_take_and_only_when_cold_for_long(
    operator: BundleOperator,
) -> None:
    operator.uneven()
    [told] = operator.cleave.json("bundles", "merges", NAMESPACE)["items"]
    assert told["merges"] == []
    assert {one["reason"] for one in told["apart"]} <= {"cold-cycles", "at-min-bundles", "no-cold-neighbour"}
    assert told["apart"] != []
    assert f"{NAMESPACE}: stays apart" in operator.cleave.ok("bundles", "merges")
    before = told["apart"][0]["value"]
    operator.cleave.ok("bundles", "propose")
    [later] = operator.cleave.json("bundles", "merges", NAMESPACE)["items"]
    assert later["apart"][0]["value"] == before + 1
    assert "no bundles" in operator.cleave.refused("bundles", "merges", "acme/none")


def test_settings_that_are_no_json_or_out_of_range_are_one_line(
    operator: BundleOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator.uneven()
    for text, words in (
        ('{"shedder": ', "Setting CLEAVE_BUNDLE_BALANCE: the value is not JSON"),
        ('{"overloaded_usage": 85}', "overloaded_usage = 85.0 must be <= 1"),
        ('{"shader": "even"}', "'shader' cannot be set here"),
    ):
        monkeypatch.setenv("CLEAVE_BUNDLE_BALANCE", text)
        assert words in operator.cleave.refused("bundles", "propose")


def test_a_split_policy_is_shown_set_rehearsed_and_taken_back(operator: BundleOperator) -> None:
    operator.uneven()
    show, change = ("bundles", "policy", NAMESPACE), ("bundles", "set-policy", NAMESPACE)
    assert operator.cleave.json(*show)["overrides"] == {}
    assert operator.cleave.json(*show)["effective"]["cooldown_seconds"] == 120

    rehearsed = operator.cleave.json(*change, "max_topics=500", "--dry-run")
    assert rehearsed["effective"]["max_topics"] == 500
    assert operator.cleave.json(*show)["overrides"] == {}
    operator.cleave.ok(*change, "max_topics=500", "cooldown_seconds=600")
    assert operator.cleave.json(*show)["overrides"] == {"max_topics": 500, "cooldown_seconds": 600}
    assert operator.cleave.json(*change, "max_topics=null")["overrides"] == {"cooldown_seconds": 600}
    assert operator.cleave.json(*change, "enabled=false", "--replace")["overrides"] == {"enabled": False}
    assert operator.cleave.json(*change, "--replace")["overrides"] == {}

    assert "needs positions" in operator.cleave.refused(*change, "algorithm=specified_positions_divide")
    assert "cannot be set here" in operator.cleave.refused(*change, "max_topic=3")
    for verb in ("policy", "set-policy"):
        assert "collect its reports first" in operator.cleave.refused("bundles", verb, "acme/none")


def test_a_form_sets_the_split_policy_too(operator: BundleOperator) -> None:
    operator.uneven()
    params = {"namespace": f" {NAMESPACE} ", "parameters": {"max_bundles": 7}, "dry_run": False}
    response = tasks.perform(
        "bundles set-policy",
        dsn=os.environ["CLEAVE_DATABASE_URL"],
        extras={"pulsar_cluster": CLUSTER},
        params=params,
        request_key="a run",
        actor="ann",
    )
    assert response["overrides"] == {"max_bundles": 7}
    assert operator.cleave.json("bundles", "policy", NAMESPACE)["effective"]["max_bundles"] == 7
    assert operator.cleave.column("SELECT actor FROM inspect.bundles_namespaces") == ["ann"]


def test_one_namespace_s_policy_does_not_end_the_cycle_of_all(operator: BundleOperator) -> None:
    """Stored by an older version, which took it."""
    operator.uneven()
    operator.driver.sql(
        "UPDATE cleave.namespace_bundles SET row_version = row_version + 1,"
        ' split_settings = \'{"algorithm": "specified_positions_divide", "max_topics": 1, "rules": "modular"}\''
    )
    cycle = operator.cleave.json("bundles", "propose")
    assert [one["kind"] for one in cycle["proposals"]] == ["unload"]
    assert ("split-policy", NAMESPACE) in {(one["rule"], one["namespace"]) for one in cycle["why_not"]}


def test_a_mode_is_one_of_three(operator: BundleOperator) -> None:
    operator.uneven()
    assert operator.cleave("bundles", "mode", NAMESPACE, "maybe").code == 2
    assert (
        operator.cleave.json("bundles", "mode", NAMESPACE, "automatic")["mode"]
        == BalancingMode.AUTOMATIC.value
    )
    assert "collect its reports first" in operator.cleave.refused("bundles", "mode", "acme/none", "automatic")


def test_old_reports_go_and_young_ones_stay(operator: BundleOperator) -> None:
    operator.uneven()
    operator.cleave.ok("bundles", "collect", "--once")
    operator.cleave.ok("bundles", "propose")
    extras = {"landing_keep_days": 1, "history_keep_days": 1}
    settings = {
        "pulsar_admin_url": f"http://{operator.bench.cluster.brokers[0]}",
        "bundle_reports_url": os.environ["CLEAVE_BUNDLE_REPORTS_URL"],
    }
    url = os.environ["CLEAVE_DATABASE_URL"]

    old_ms = SystemClock().now_ms() - 3 * 86_400_000
    tables = {kind: schema.empty_table() for kind, schema in REPORT_SCHEMAS.items()}
    ReportArea(settings["bundle_reports_url"]).append(old_ms, "old", tables)
    runs = Path(settings["bundle_reports_url"], "_runs")
    for name in ("killed", "running"):
        (runs / name).mkdir(parents=True)
    os.utime(runs / "killed", (1, 1))
    kept = tasks.keep_bundles(dsn=url, extras={**settings, **extras})
    assert (kept["expired_cycles"], kept["swept"]) == (0, ["_runs/killed"])
    assert [path.name for path in runs.iterdir()] == ["running"]
    assert len(kept["expired_reports"]) == len(REPORT_SCHEMAS)
    again = tasks.keep_bundles(dsn=url, extras={**settings, **extras})
    assert again == {"expired_cycles": 0, "forgotten_inputs": 0, "expired_reports": [], "swept": []}


def test_a_dry_run_of_verifying_and_keeping_only_says_what_would_be_done(operator: BundleOperator) -> None:
    operator.uneven()
    operator.cleave.ok("bundles", "mode", NAMESPACE, "automatic")
    cycle = operator.cleave.json("bundles", "propose")
    settings = {
        "pulsar_admin_url": f"http://{operator.bench.cluster.brokers[0]}",
        "pulsar_cluster": CLUSTER,
        "bundle_reports_url": os.environ["CLEAVE_BUNDLE_REPORTS_URL"],
    }
    place: dict[str, Any] = {"dsn": os.environ["CLEAVE_DATABASE_URL"], "extras": settings}
    [applied] = tasks.apply_bundles(**place, cycle_id=cycle["cycle_id"], claimant="run")["applied"]
    before = operator.cleave.rows()

    would = tasks.verify_bundles(**place, claimant="run", dry_run=True)["would_verify"]
    assert [one["proposal_id"] for one in would] == [applied["proposal_id"]]
    assert set(tasks.keep_bundles(**place, dry_run=True)["would_delete_before"]) == {
        "cycles",
        "inputs",
        "reports",
    }
    assert operator.cleave.rows() == before
    [verified] = tasks.verify_bundles(**place, claimant="run")["verified"]
    assert verified["proposal_id"] == applied["proposal_id"]


def test_two_clusters_whose_runs_have_the_same_name_are_both_balanced(
    operator: BundleOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every Airflow names a scheduled run after its time alone."""
    operator.uneven()
    merged: list[str] = []

    def aggregate(_: object, run_id: str) -> BundleAggregation:
        merged.append(run_id)
        return BundleAggregation(run_id, 0, 0, 0, 0, 0, False, ())

    monkeypatch.setattr(Bundles, "aggregate", aggregate)
    run = "airflow bundle_balance scheduled__2026-11-30T11:05:00+00:00"
    cycles = []
    for cluster in ("other", CLUSTER, CLUSTER):
        place: dict[str, Any] = {
            "dsn": os.environ["CLEAVE_DATABASE_URL"],
            "extras": {"pulsar_cluster": cluster},
        }
        tasks.aggregate_bundles(**place, run_id=run)
        cycles.append(tasks.propose_bundles(**place, request_key=run, decided_by=run))

    other, first, again = cycles
    assert (len(other["proposals"]), len(first["proposals"])) == (0, 1)
    assert first["cycle_id"] != other["cycle_id"]
    assert [one["is_repeat"] for one in cycles] == [False, False, True]
    assert again["cycle_id"] == first["cycle_id"]
    assert len({*merged}) == 2
    assert merged[1] == merged[2]


def _no_storage(*_: object) -> NoReturn:
    raise OSError("no storage")


def test_what_old_cycles_were_decided_on_is_forgotten_and_the_cycles_stay(
    operator: BundleOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator.uneven()
    numbers = [operator.cleave.json("bundles", "propose")["cycle_id"] for _ in range(3)]
    operator.driver.sql("ALTER TABLE cleave.bundle_decision DISABLE TRIGGER USER")
    operator.driver.sql("UPDATE cleave.bundle_decision SET recorded_at = recorded_at - interval '4 days'")
    operator.driver.sql("ALTER TABLE cleave.bundle_decision ENABLE TRIGGER USER")
    settings = {
        "pulsar_admin_url": f"http://{operator.bench.cluster.brokers[0]}",
        "bundle_reports_url": os.environ["CLEAVE_BUNDLE_REPORTS_URL"],
    }
    url = os.environ["CLEAVE_DATABASE_URL"]

    kept = tasks.keep_bundles(dsn=url, extras={**settings, "bundle_inputs_keep_days": 5})
    assert kept["forgotten_inputs"] == 0
    with monkeypatch.context() as patch:
        patch.setattr(ReportArea, "expire", _no_storage)
        with pytest.raises(OSError, match="no storage"):
            tasks.keep_bundles(dsn=url, extras=settings)  # deletes in the database all the same
    kept = tasks.keep_bundles(dsn=url, extras=settings)
    assert (kept["forgotten_inputs"], kept["expired_cycles"]) == (0, 0)  # the newest is kept whole
    assert "have been deleted" in operator.cleave.refused("bundles", "replay", str(numbers[0]))
    assert operator.cleave.json("bundles", "replay", str(numbers[-1]))["is_same"]
    assert len(operator.cleave.json("bundles", "proposals")) == 3
    assert operator.cleave.json("bundles", "proposals", "--cycle", str(numbers[0])) != []


def test_nothing_else_of_a_cycle_is_changed(operator: BundleOperator) -> None:
    operator.uneven()
    operator.cleave.ok("bundles", "propose")
    for change in (
        "decided_by = 'x'",
        "inputs = NULL",
        "inputs = NULL, outcome = NULL, refusals = '[]', cluster = 'x'",
    ):
        with pytest.raises(CleaveError, match="history"):
            operator.driver.sql(f"UPDATE cleave.bundle_decision SET {change}")


def test_metrics_tell_brokers_cycles_and_proposals_wherever_cycles_run(operator: BundleOperator) -> None:
    first, second = operator.uneven()
    operator.cleave.ok("bundles", "propose")
    registry = CollectorRegistry()
    registry.register(BundleMetrics(operator.driver.store, CLUSTER))

    assert registry.get_sample_value("cleave_bundle_broker_usage", {"broker": first}) == 0.9
    assert registry.get_sample_value("cleave_bundle_usage_spread") == pytest.approx(0.4 / 0.5)
    silent = registry.get_sample_value("cleave_bundle_broker_silent_seconds", {"broker": second})
    assert silent is not None
    assert silent > 3600
    age = registry.get_sample_value("cleave_bundle_cycle_age_seconds")
    assert age is not None
    assert 0 <= age < 600
    proposed = {"kind": "unload", "state": "proposed"}
    assert registry.get_sample_value("cleave_bundle_proposals", proposed) == 1
    assert registry.get_sample_value("cleave_bundle_namespaces", {"mode": "dry-run"}) == 1
    assert {family.name for family in registry.collect()} == set(GAUGES)

    nowhere = Store("postgresql://nobody@127.0.0.1:9/none", application_name="test", pool_size=1)
    assert list(BundleMetrics(nowhere, CLUSTER).collect()) == []


def test_the_collector_serves_them(operator: BundleOperator) -> None:
    operator.uneven()
    port = free_port()
    before = REGISTRY.get_sample_value("cleave_bundle_ticks_total", {"outcome": "read"}) or 0.0
    operator.cleave.ok("bundles", "collect", "--once", "--metrics-port", str(port))

    page = requests.get(f"http://127.0.0.1:{port}/metrics", timeout=30).text
    assert f'cleave_bundle_ticks_total{{outcome="read"}} {before + 1}' in page
    assert "cleave_bundle_silent_brokers 0.0" in page
