"""Least rights, tried with a login user in each role: what it must be able to do, and what it must not."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from controller.devstack.postgres import PostgresServer
from controller.domain.errors import Terminal
from controller.store.journal import subscription_intents, topic_intents
from controller.store.load import load_deletion, records, sketches
from controller.store.load.records import LoadRun, RunSketches
from controller.store.load.sketches import Sketch
from controller.store.topics import consumers, drains
from tests.support import bundle_reports
from tests.support.store_driver import StoreDriver, request


@dataclass(frozen=True)
class RoleDrivers:
    """A driver as each of the three roles, on one database with one topic."""

    controller: StoreDriver
    spark_loader: StoreDriver
    inspector: StoreDriver


@pytest.fixture
def users(postgres_server: PostgresServer, database: str) -> Iterator[RoleDrivers]:
    admin = StoreDriver(database)
    name = database.rpartition("/")[2]
    drivers = {}
    for role in ("controller", "spark_loader", "inspector"):
        user = f"{role}_{secrets.token_hex(4)}"
        admin.sql(f"CREATE ROLE {user} LOGIN PASSWORD 'pw' IN ROLE cleave_{role}")
        drivers[user] = StoreDriver(postgres_server.url(name, user=user, password="pw"))
    yield RoleDrivers(*drivers.values())
    for user, driver in drivers.items():
        driver.store.dispose()
        admin.sql(f"DROP ROLE {user}")
    admin.store.dispose()


def test_the_controller_can_do_its_whole_work(users: RoleDrivers) -> None:
    driver = users.controller
    topic = driver.create(segments=2)
    driver.subscribe(topic.topic_id, "s")
    driver.split(topic.topic_id, 0)
    driver.do(sketches.write, [Sketch(topic.topic_id, 1, [1.0, 2.0])] * 2, fresh_seconds=600)
    driver.do(consumers.register, topic.topic_id, "s", "c")
    driver.do(drains.mark_drained, topic.topic_id, "s", [0])
    driver.run(driver.do(topic_intents.intend_prune, topic.topic_id, [0], request()).operation)
    driver.run(
        driver.do(subscription_intents.intend_subscription_delete, topic.topic_id, "s", request()).operation
    )
    driver.do(load_deletion.forget_sealed)
    driver.do(load_deletion.forget_runs_before, datetime.now(UTC))
    driver.delete(topic.topic_id)
    driver.create()

    assert driver.sql("SELECT state FROM inspect.topics ORDER BY topic_id") == [("deleted",), ("live",)]


FORBIDDEN_TO_THE_CONTROLLER = [
    "UPDATE cleave.layout_change SET reason = 'better'",
    "DELETE FROM cleave.layout_change",
    "DELETE FROM cleave.segment",
    "UPDATE cleave.segment_parent SET ordinal = 1",
    "DELETE FROM cleave.topic",
    "DELETE FROM cleave.operation",
    "UPDATE cleave.operation_step SET detail = '{}'",
    "UPDATE cleave.operation_child SET ordinal = 1",
    "DELETE FROM cleave.lease",
    "DELETE FROM cleave.namespace_policy",
    "INSERT INTO cleave.segment_load SELECT * FROM cleave.segment_load",
    "UPDATE cleave.segment_load SET msg_rate_in = 0",
    "INSERT INTO cleave.load_source VALUES ('s', now())",
    "UPDATE cleave.load_source SET observed_at = now()",
    "INSERT INTO cleave.load_run SELECT * FROM cleave.load_run",
    "UPDATE cleave.load_run SET window_end = now()",
    "INSERT INTO cleave.load_history SELECT * FROM cleave.load_history",
    "UPDATE cleave.decision SET situation = 'better'",
    "INSERT INTO cleave.decision_default SELECT * FROM cleave.decision_default",
    "UPDATE cleave.policy_default SET value = '0'",
    "UPDATE cleave.migration SET checksum = ''",
    "TRUNCATE cleave.consumer",
    "ALTER TABLE cleave.topic DISABLE TRIGGER ALL",
    "ALTER TABLE cleave.segment DROP CONSTRAINT segment_active_ranges_disjoint",
    "DROP VIEW inspect.topics",
    "CREATE TABLE cleave.mine ()",
    "SET ROLE cleave_owner",
]


@pytest.mark.parametrize("statement", FORBIDDEN_TO_THE_CONTROLLER)
def test_the_controller_rewrites_no_history_and_no_schema(users: RoleDrivers, statement: str) -> None:
    with pytest.raises(Terminal, match="may not do this"):
        users.controller.sql(statement)


def test_the_loader_reads_load_appends_to_staging_and_merges(users: RoleDrivers) -> None:
    topic_id = users.controller.create().topic_id
    loader = users.spark_loader
    loader.sql(
        "SELECT * FROM cleave.segment_load, cleave.load_source, cleave.load_run, cleave.threshold_in_force"
    )
    loader.sql(
        """INSERT INTO staging.load_row (run_id, topic_id, segment_id, msg_rate_in, byte_rate_in, msg_rate_out,
                                         byte_rate_out, source, modified_at, seen_row_version)
           VALUES ('r', :id, 0, 1, 2, 3, 4, 'broker', now(), 0)""",
        id=topic_id,
    )

    merged = loader.sql(
        "SELECT written, outrun, applied FROM cleave.merge_load('r', now(), 'test', 1, 1, '{}')"
    )

    assert merged == [(1, 0, True)]
    assert loader.sql("SELECT msg_rate_in FROM cleave.segment_load") == [(1.0,)]
    assert users.controller.sql("SELECT input_version > 1 FROM cleave.evaluation") == [(True,)]


@pytest.mark.parametrize("role", ["spark_loader", "controller"])
def test_a_login_that_aggregates_stages_and_merges_all_that_a_run_finds(
    users: RoleDrivers, role: str
) -> None:
    """Without a loader of its own, the aggregation uses the login of the controller."""
    segment = {"topic_id": users.controller.create().topic_id, "segment_id": 0}
    tick = dict.fromkeys(records.TICK_SCHEMA.names, 1.0) | segment
    counts = segment | {"producers": 2, "bins": [1] * 1024}
    driver: StoreDriver = getattr(users, role)

    driver.do(records.baseline)
    driver.do(
        records.stage_and_merge,
        LoadRun("run-1", datetime.now(UTC), "test", 1, 1),
        records.CHANGE_SCHEMA.empty_table(),
        pa.Table.from_pylist([{"source": "broker-1", "observed_at_ms": 1}], records.SOURCE_SCHEMA),
        pa.Table.from_pylist([tick], records.TICK_SCHEMA),
        RunSketches(pa.Table.from_pylist([counts], records.STAGED_SKETCH_SCHEMA), fresh_seconds=60),
    )
    bundles = {"boundaries": [bundle_reports.boundaries()], "clusters": [bundle_reports.cluster_figures()]}
    driver.do(bundle_reports.merge, "run-1", bundles)

    for table in ("load_memory", "segment_sketch", "segment_producers", "load_source", "cluster_load"):
        assert users.controller.sql(f"SELECT count(*) FROM cleave.{table}") == [(1,)]


FORBIDDEN_TO_THE_LOADER = [
    "UPDATE cleave.segment_load SET msg_rate_in = 0",
    "INSERT INTO cleave.load_source VALUES ('s', now())",
    "DELETE FROM staging.load_row",
    "SELECT * FROM cleave.topic",
    "SELECT * FROM cleave.operation",
    "SELECT * FROM inspect.topics",
    "UPDATE cleave.topic SET epoch = 9",
    "SELECT cleave.raise_input('{1}')",
    "SET ROLE cleave_owner",
]


@pytest.mark.parametrize("statement", FORBIDDEN_TO_THE_LOADER)
def test_the_loader_does_nothing_else(users: RoleDrivers, statement: str) -> None:
    users.controller.create()

    with pytest.raises(Terminal, match="may not do this"):
        users.spark_loader.sql(statement)


def test_the_inspector_reads_every_view(users: RoleDrivers) -> None:
    users.controller.create("topic://t/n/a")
    views = users.inspector.sql("SELECT viewname FROM pg_views WHERE schemaname = 'inspect'")

    assert views
    for (view,) in views:
        users.inspector.sql(f"SELECT * FROM inspect.{view}")
    assert users.inspector.sql("SELECT topic FROM inspect.topics") == [("topic://t/n/a",)]
    users.inspector.sql("SELECT * FROM inspect.lineage('topic://t/n/a', 0)")
    users.inspector.sql("SELECT * FROM inspect.layout_at('topic://t/n/a', now())")


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM cleave.topic",
        "SELECT * FROM staging.load_row",
        "UPDATE cleave.topic SET epoch = 9",
        "SELECT cleave.merge_load('r', now(), 'test', 1, 1, '{}')",
        "CREATE VIEW inspect.mine AS SELECT 1",
        "SET ROLE cleave_owner",
    ],
)
def test_the_inspector_reads_nothing_else(users: RoleDrivers, statement: str) -> None:
    with pytest.raises(Terminal, match="may not do this"):
        users.inspector.sql(statement)
