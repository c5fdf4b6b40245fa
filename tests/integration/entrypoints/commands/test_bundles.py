"""`cleave bundles` on two brokers that behave as spec'd over real HTTP, and a database: each verb, and what it refuses."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from controller.clock import SystemClock
from controller.domain.bundles.namespace_bundle import topic_hash
from controller.entrypoints import tasks
from controller.entrypoints.bundle_acts import after
from controller.entrypoints.bundle_picture import Arc
from controller.landing.reports import REPORT_SCHEMAS, ReportArea
from controller.store import bundle_namespaces, bundle_proposals
from controller.store.bundle_namespaces import BalancingMode
from tests.support import bundle_reports as rows
from tests.support.bundle_brokers import Bench, staged_bench
from tests.support.bundle_reports import HALF, LAST
from tests.support.command_line import CommandLine
from tests.support.store_driver import StoreDriver

CLUSTER, NAMESPACE = "staged", "acme/shop"
LOW, HIGH = f"{NAMESPACE}/0x00000000_0x80000000", f"{NAMESPACE}/0x80000000_0xffffffff"
TOPICS = [f"persistent://{NAMESPACE}/orders-{number}" for number in range(12)]


@dataclass
class Desk:
    """The command line beside the brokers and the database."""

    cleave: CommandLine
    bench: Bench
    driver: StoreDriver

    def uneven(self, low: float = 60.0, high: float = 20.0) -> tuple[str, str]:
        """Load as one aggregation run leaves it: the first broker is full, the second idle."""
        first, second = self.bench.cluster.brokers
        self.bench.cluster.owners = dict.fromkeys(self.bench.cluster.owners, first)
        brokers = [
            rows.broker(first, 90.0, byte_rate_in=80.0, byte_rate_out=80.0),
            rows.broker(second, 5.0),
        ]
        self._merge(0, {"boundaries": [rows.boundaries(HALF)], "brokers": brokers}, low, high)
        return first, second

    def later(self, minutes: int, low: float, high: float) -> None:
        """The load of the two bundles as the run of that minute has it; one run a minute."""
        self._merge(minutes, {}, low, high)

    def _merge(self, minutes: int, changes: dict[str, list[dict[str, Any]]], low: float, high: float) -> None:
        first, _ = self.bench.cluster.brokers
        seen = {
            "seen_row_version": minutes,
            "seen_namespace_version": min(minutes, 1),
            "modified_at_ms": rows.NOW_MS + minutes * 60_000,
        }
        changes["bundles"] = [
            rows.bundle(0, HALF, low, broker=first, topic_count=9, **seen),
            rows.bundle(HALF, LAST, high, broker=first, topic_count=3, **seen),
        ]
        for table in changes.values():
            for row in table:
                row["cluster"] = CLUSTER
        self.driver.do(rows.merge, f"run-{minutes}", changes, minutes=minutes)


@pytest.fixture
def desk(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Desk]:
    with staged_bench() as bench:
        bench.cluster.add(NAMESPACE, HALF)
        monkeypatch.setenv("CLEAVE_DATABASE_URL", database)
        monkeypatch.setenv("CLEAVE_PULSAR_ADMIN_URL", f"http://{bench.cluster.brokers[0]}")
        monkeypatch.setenv("CLEAVE_PULSAR_CLUSTER", CLUSTER)
        monkeypatch.setenv("CLEAVE_BUNDLE_REPORTS_URL", str(tmp_path / "reports"))
        knobs = {"shedder": "threshold", "threshold_min_byte_rate": 0, "placement": "least_usage"}
        monkeypatch.setenv("CLEAVE_BUNDLE_BALANCE", json.dumps(knobs))
        monkeypatch.chdir(tmp_path)
        desk = Desk(CommandLine(database, capsys), bench, StoreDriver(database))
        yield desk
        desk.driver.store.dispose()
        desk.cleave.store.dispose()


def test_hash_completes_the_name_and_finds_the_bundle(desk: Desk) -> None:
    assert desk.cleave.json("bundles", "hash", "my-topic") == {
        "topic": "persistent://public/default/my-topic",
        "hash": "0x2bad45f7",
        "bundle": None,
        "namespace": "public/default",
    }
    desk.uneven()
    assert desk.cleave.json("bundles", "hash", TOPICS[0])["bundle"] in (LOW, HIGH)
    assert "is not complete" in desk.cleave.refused("bundles", "hash", "persistent://only/two")


def test_show_lists_every_bundle_and_draws_the_ring(desk: Desk, tmp_path: Path) -> None:
    first, _ = desk.uneven()
    found = desk.cleave.json("bundles", "show", NAMESPACE)
    assert [(row["bundle"], row["broker"], row["mode"]) for row in found] == [
        ("0x00000000_0x80000000", first, "dry-run"),
        ("0x80000000_0xffffffff", first, "dry-run"),
    ]
    desk.cleave.ok("bundles", "show", NAMESPACE, "--html", str(tmp_path / "ring.html"))
    assert "0x00000000_0x80000000" in (tmp_path / "ring.html").read_text()


def test_a_bundle_is_split_at_positions_after_a_look(desk: Desk) -> None:
    for name in TOPICS:
        desk.bench.cluster.publish(name)
    said = desk.cleave.rehearsed("bundles", "split", LOW, "--position", "0x40000000")
    assert "0x00000000_0x40000000" in said
    assert desk.bench.cluster.acts == []

    parts = desk.cleave.json("bundles", "split", LOW, "--position", "0x40000000")["parts"]
    assert [part["part"] for part in parts] == ["0x00000000_0x40000000", "0x40000000_0x80000000"]
    assert sum(part["topics"] for part in parts) == sum(topic_hash(name) < HALF for name in TOPICS)
    assert desk.bench.cluster.lists[NAMESPACE].count == 3


def test_a_topic_gets_a_bundle_of_its_own(desk: Desk) -> None:
    for name in TOPICS:
        desk.bench.cluster.publish(name)
    mine = next(name for name in TOPICS if topic_hash(name) < HALF)
    parts = desk.cleave.json("bundles", "split", LOW, "--topic", mine)["parts"]

    assert [part["topics"] for part in parts if int(part["part"][2:10], 16) == topic_hash(mine)] == [1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((LOW, "--position", "0x90000000"), "inside"),
        ((LOW, "--algorithm", "no_such_divide"), "is not allowed here"),
        ((f"{NAMESPACE}/0x00000000_0x70000000",), "upper boundary"),
        ((LOW, "--topic", TOPICS[0], "--position", "0x40000000"), "not both"),
        (("nonsense",), "bundle"),
    ],
)
def test_a_split_that_cannot_be_is_one_line(desk: Desk, arguments: tuple[str, ...], words: str) -> None:
    assert words in desk.cleave.refused("bundles", "split", *arguments)
    assert desk.bench.cluster.acts == []


def test_a_bundle_is_unloaded_to_a_broker(desk: Desk) -> None:
    _, second = desk.uneven()
    assert second in desk.cleave.rehearsed("bundles", "unload", LOW, "--to", second)
    assert desk.cleave.json("bundles", "unload", LOW, "--to", second)["owner"] == second
    assert (
        desk.cleave.json("bundles", "unload", f"{NAMESPACE}/LARGEST", "--to", second)["outcome"]
        == "done-already"
    )


def test_hot_is_what_was_hot_for_long_and_not_just_now(desk: Desk) -> None:
    def hot() -> str:
        document = desk.cleave.json("bundles", "unload", f"{NAMESPACE}/HOT", "--dry-run")
        return str(document["bundle"])

    desk.uneven(20.0, 60.0)
    assert hot() == HIGH  # no cycle yet: all that is known is the reading
    desk.cleave.ok("bundles", "propose")
    desk.later(1, 70.0, 40.0)
    assert hot() == HIGH
    desk.cleave.ok("bundles", "propose")
    assert hot() == HIGH  # 50 on average against 45
    desk.later(2, 70.0, 40.0)
    desk.cleave.ok("bundles", "propose")
    assert hot() == LOW


def test_a_cycle_is_proposed_approved_applied_and_replayed(desk: Desk) -> None:
    _, second = desk.uneven()
    cycle = desk.cleave.json("bundles", "propose")
    [proposal] = cycle["proposals"]
    assert (proposal["kind"], proposal["destination"], proposal["mode"]) == ("unload", second, "dry-run")
    number = str(proposal["proposal_id"])
    assert "dry run" in desk.cleave.refused("bundles", "approve", number)
    assert desk.cleave.json("bundles", "replay", str(cycle["cycle_id"]))["is_same"]

    desk.cleave.ok("bundles", "mode", NAMESPACE, "approval")
    [row] = desk.cleave.json("bundles", "approve", number)
    assert row["state"] == "approved"
    assert number in desk.cleave.rehearsed("bundles", "apply")
    applied = desk.cleave.json("bundles", "apply")
    assert [one["state"] for one in applied][:1] == ["applied"]
    assert second in set(desk.bench.cluster.owners.values())
    assert desk.cleave.json("bundles", "apply") in ([], applied[1:])


def test_the_picture_after_a_cycle_has_its_cuts_and_moves(desk: Desk) -> None:
    _, second = desk.uneven()
    desk.cleave.ok("bundles", "propose")
    with desk.driver.store.transaction() as tx:
        proposals = bundle_proposals.list_proposals(tx, CLUSTER)
        bundles = bundle_namespaces.get_namespace(tx, CLUSTER, NAMESPACE).bundles.bundles
    arcs = [Arc(bundle, "first", 10.0) for bundle in bundles]

    assert second in {arc.broker for arc in after(arcs, proposals)}


def test_collect_lands_a_tick_and_no_cluster_is_one_line(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TOPICS:
        desk.bench.cluster.publish(name)
    tick = desk.cleave.json("bundles", "collect", "--once")
    assert (tick["brokers"], tick["topics"], tick["silent"]) == (2, len(TOPICS), [])

    monkeypatch.delenv("CLEAVE_PULSAR_ADMIN_URL")
    assert "CLEAVE_PULSAR_ADMIN_URL" in desk.cleave.refused("bundles", "collect", "--once")


def test_cold_neighbours_are_shown_with_what_it_would_take_and_only_when_cold_for_long(desk: Desk) -> None:
    desk.uneven()
    [told] = desk.cleave.json("bundles", "merges", NAMESPACE)
    assert told["merges"] == []
    assert {one["reason"] for one in told["apart"]} <= {"cold-cycles", "at-min-bundles", "no-cold-neighbour"}
    assert told["apart"] != []
    before = told["apart"][0]["value"]
    desk.cleave.ok("bundles", "propose")
    [later] = desk.cleave.json("bundles", "merges", NAMESPACE)
    assert later["apart"][0]["value"] == before + 1
    assert "no bundles" in desk.cleave.refused("bundles", "merges", "acme/none")


def test_a_mode_is_one_of_three(desk: Desk) -> None:
    desk.uneven()
    assert desk.cleave("bundles", "mode", NAMESPACE, "maybe").code == 2
    assert (
        desk.cleave.json("bundles", "mode", NAMESPACE, "automatic")["mode"] == BalancingMode.AUTOMATIC.value
    )
    assert "collect its reports first" in desk.cleave.refused("bundles", "mode", "acme/none", "automatic")


def test_old_reports_go_and_young_ones_stay(desk: Desk) -> None:
    desk.uneven()
    desk.cleave.ok("bundles", "collect", "--once")
    desk.cleave.ok("bundles", "propose")
    extras = {"landing_keep_days": 1, "history_keep_days": 1}
    settings = {
        "pulsar_admin_url": f"http://{desk.bench.cluster.brokers[0]}",
        "bundle_reports_url": os.environ["CLEAVE_BUNDLE_REPORTS_URL"],
    }
    url = os.environ["CLEAVE_DATABASE_URL"]

    old_ms = SystemClock().now_ms() - 3 * 86_400_000
    tables = {kind: schema.empty_table() for kind, schema in REPORT_SCHEMAS.items()}
    ReportArea(settings["bundle_reports_url"]).append(old_ms, "old", tables)
    kept = tasks.keep_bundles(dsn=url, extras={**settings, **extras})
    assert kept["expired_cycles"] == 0
    assert len(kept["expired_reports"]) == len(REPORT_SCHEMAS)
    again = tasks.keep_bundles(dsn=url, extras={**settings, **extras})
    assert again == {"expired_cycles": 0, "expired_reports": []}
