"""`cleave migrate`, and what `worker` and `collect` do besides their work."""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path

import pytest

from controller.devstack.ports import free_port, release_port
from controller.devstack.process import ChildProcess
from controller.settings import PROJECT_ROOT, load_settings
from controller.store import leases
from controller.store.postgres.engine import Store
from tests.support.cleave_process import cleave_process
from tests.support.command_line import CommandLine
from tests.support.store_driver import StoreDriver
from tests.support.waiting import wait_until


@pytest.fixture
def on_empty(cleave: CommandLine, empty_database: str, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """The command line on a database with nothing in it."""
    monkeypatch.setenv("CLEAVE_DATABASE_URL", empty_database)
    return cleave


def test_migrate_brings_an_empty_database_to_the_schema_once(on_empty: CommandLine) -> None:
    planned = on_empty.json("migrate", "--dry-run")["would_apply"]
    applied = on_empty.json("migrate")["applied"]
    again = on_empty.json("migrate")["applied"]

    assert planned[0] == "0.1.0"
    assert planned[-1] == "views"
    assert applied == planned
    assert again == []
    assert on_empty.ok("migrate") == "up to date\n"
    assert on_empty.json("topics", "list") == []


def test_migrate_takes_the_owners_url_from_the_environment(
    cleave: CommandLine, empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEAVE_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/nowhere")
    monkeypatch.setenv("CLEAVE_OWNER_URL", empty_database)

    assert "views" in cleave.ok("migrate")


def test_a_dry_run_of_migrate_changes_nothing(on_empty: CommandLine) -> None:
    first = on_empty.json("migrate", "--dry-run")

    assert on_empty.json("migrate", "--dry-run") == first
    assert (
        "cleave_inspector, cleave_controller: views and functions of schema inspect" in first["would_grant"]
    )
    assert "max_segments" in first["would_set_default"]


def test_a_dry_run_of_migrate_lists_first_the_views_of_others_that_stop_the_run(
    on_empty: CommandLine, empty_database: str
) -> None:
    on_empty.ok("migrate")
    driver = StoreDriver(empty_database)
    driver.sql("CREATE VIEW public.of_others AS SELECT topic FROM inspect.topics")
    driver.sql("GRANT SELECT ON inspect.topics TO cleave_client")
    driver.sql("UPDATE cleave.migration SET checksum = 'of other views' WHERE name = 'views'")

    planned = on_empty.json("migrate", "--dry-run")
    assert next(iter(planned.items())) == ("would_stop_at", ["view of_others"])
    assert "GRANT SELECT ON inspect.topics TO cleave_client" in planned["would_grant"]
    assert "run `cleave migrate --drop-dependent-views`" in on_empty.refused("migrate")
    asked_to_drop = on_empty.json("migrate", "--dry-run", "--drop-dependent-views")
    assert asked_to_drop["would_drop"] == ["view of_others"]

    assert on_empty.json("migrate", "--drop-dependent-views") == {"applied": ["views"]}

    assert driver.sql("SELECT has_table_privilege('cleave_client', 'inspect.topics', 'SELECT')") == [(True,)]
    driver.store.dispose()


def test_a_worker_serves_metrics_and_gives_its_leases_back_when_told_to_leave(
    cleave: CommandLine, database: str, tmp_path: Path
) -> None:
    port = free_port()
    worker = ChildProcess(
        [
            sys.executable,
            "-m",
            "controller.commands.cli",
            "worker",
            "--no-collect",
            "--metrics-port",
            str(port),
            "--json-logs",
        ],
        log=tmp_path / "worker.log",
        cwd=PROJECT_ROOT,
        env={"CLEAVE_DATABASE_URL": database, "PATH": ""},
    )
    worker.start()
    try:
        wait_until(lambda: "cleave_worker_wakeups_total" in metrics(port), message="metrics are served")
        wait_until(lambda: "1 up" in cleave("doctor").out, message="doctor sees the worker")
    finally:
        worker.stop()
        release_port(port)

    assert "no worker is up" in cleave("doctor").out
    lines = [json.loads(line) for line in (tmp_path / "worker.log").read_text().splitlines()]
    got = [line for line in lines if line["event"] == "shard acquired"]
    assert {line["shard"] for line in got} == set(range(load_settings().worker_shards))
    assert {line["shard"] for line in lines if line["event"] == "shard resigned"} == {
        line["shard"] for line in got
    }
    [name] = {line["worker"] for line in lines}
    assert name


def test_a_worker_by_itself_also_collects_load_and_serves_the_metrics_of_the_fleet(
    cleave: CommandLine, database: str, tmp_path: Path
) -> None:
    cleave.ok("topics", "create", "acme/shop/orders", "--data-plane", "embedded", "--segments", "2")
    port, landing = free_port(), tmp_path / "landing"
    worker = cleave_process(
        "worker",
        "--metrics-port",
        str(port),
        log=tmp_path / "worker.log",
        database_url=database,
        embedded_url=database,
        landing_url=landing,
        collect_interval_seconds=0.5,
    )
    worker.start()
    try:
        wait_until(lambda: len(list(landing.rglob("*.parquet"))) >= 2, message="two ticks are landed")
        page = metrics(port)
        assert "cleave_fleet_active_segments 2.0" in page
        assert 'cleave_collector_ticks_total{outcome="whole"}' in page
    finally:
        worker.stop()
        release_port(port)

    with Store(database).transaction() as tx:
        assert leases.live_leases(tx, "collector/") == [], "the worker resigns the lease of the collection"


def metrics(port: int) -> str:
    """What is served, or nothing yet."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""
