"""The hot statements find their rows by index, however large the tables: EXPLAIN names the index."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from controller.actions.fields import fill_in
from controller.devstack.postgres import PostgresServer
from controller.questions.history import LIST_SEGMENTS
from controller.questions.operations import LIST_OPERATIONS
from controller.questions.question import read_answers, read_page
from controller.questions.topics import LIST_TOPICS
from controller.store.decisions import evaluation_inputs
from controller.store.journal import (
    claims,
    commits,
    deletion_entries,
    operations,
    reshape_intents,
    seeks,
    steps,
)
from controller.store.postgres.clock import database_now
from controller.store.postgres.prepared_statements import Prepared
from controller.store.shards import Shards
from controller.store.topics import (
    consumers,
    drains,
    inspector_reads,
    layout_changes,
    layouts,
    subscriptions,
    topics,
)
from controller.store.topics.bucket_owners import SubscriptionKey
from tests.support.store_driver import StoreDriver

pytestmark = pytest.mark.xdist_group("query-plans")  # seeded once, not once a worker

TOPICS = 3000
SEEDED = inspector_reads.InspectedTopic(7, "topic://t/n7/7", "live", "embedded", {})

# Written as the owner with triggers and checks asleep: the rows only have to be there in numbers.
SEED = f"""
    SET LOCAL session_replication_role = replica;
    INSERT INTO cleave.topic (name, namespace, state, next_segment_id, epoch)
    SELECT format('topic://t/n%s/%s', n % 50, n), format('t/n%s', n % 50), 'live', 3, 1 FROM generate_series(1, {TOPICS}) n;
    INSERT INTO cleave.segment (topic_id, segment_id, range_start, range_end, state, created_epoch, sealed_epoch, created_at,
                                sealed_at, backing_topic)
    SELECT topic_id, s, CASE s WHEN 2 THEN 32768 ELSE 0 END, CASE s WHEN 1 THEN 32767 ELSE 65535 END,
           CASE s WHEN 0 THEN 'SEALED' ELSE 'ACTIVE' END, least(s, 1), CASE s WHEN 0 THEN 1 END, now(),
           CASE s WHEN 0 THEN now() END, format('%s-%s', name, s)
      FROM cleave.topic, generate_series(0, 2) s;
    INSERT INTO cleave.segment_parent (topic_id, child_id, parent_id)
    SELECT topic_id, s, 0 FROM cleave.topic, generate_series(1, 2) s;
    INSERT INTO cleave.layout_change (topic_id, epoch, kind, origin, actor, reason, committed_at)
    SELECT topic_id, e, CASE e WHEN 0 THEN 'create' ELSE 'split' END, 'api', 'a', 'r', now() + e * interval '1 s'
      FROM cleave.topic, generate_series(0, 1) e;
    INSERT INTO cleave.operation (topic_id, kind, state, request_key, origin, actor, reason, deadline, finished_at)
    SELECT topic_id, 'split', CASE WHEN topic_id % 100 = 0 THEN 'intended' ELSE 'done' END, format('k%s-%s', topic_id, n),
           'api', 'a', 'r', now(), CASE WHEN topic_id % 100 > 0 THEN now() END
      FROM cleave.topic, generate_series(1, 2) n;
    INSERT INTO cleave.operation_parent (operation_id, topic_id, segment_id, ordinal, live)
    SELECT operation_id, topic_id, 0, 0, false FROM cleave.operation;
    INSERT INTO cleave.operation_child (operation_id, topic_id, segment_id, range_start, range_end, ordinal, backing_topic)
    SELECT operation_id, topic_id, 10 * operation_id + s, 0, 9, s, format('log-%s-%s', operation_id, s)
      FROM cleave.operation, generate_series(1, 2) s;
    INSERT INTO cleave.operation_step (operation_id, sequence, step, runner, claim_term, started_at)
    SELECT operation_id, s, 'commit', 'r', 1, now() FROM cleave.operation, generate_series(1, 5) s;
    INSERT INTO cleave.deletion_entry (data_plane, backing_topic, topic_id, reason, closed_at)
    SELECT 'embedded', format('log-%s', topic_id), topic_id, 'r', CASE WHEN topic_id % 100 > 0 THEN now() END FROM cleave.topic;
    INSERT INTO cleave.subscription (topic_id, name, created_epoch) SELECT topic_id, 's', 0 FROM cleave.topic;
    INSERT INTO cleave.consumer (topic_id, subscription, name)
    SELECT topic_id, 's', 'c' || n FROM cleave.topic, generate_series(1, 3) n;
    INSERT INTO cleave.segment_drain (topic_id, subscription, segment_id) SELECT topic_id, 's', 0 FROM cleave.topic;
"""


@pytest.fixture(scope="module")
def seeded(postgres_server: PostgresServer, migrated_template: str) -> Iterator[StoreDriver]:
    """One database full of rows, with statistics; its statements are only explained."""
    name = f"cleave_plans_{secrets.token_hex(4)}"
    driver = StoreDriver(postgres_server.create_database(name, template=migrated_template))
    with driver.store.transaction() as tx:
        tx.exec_driver_sql(SEED, execution_options={"no_parameters": True})
    driver.sql("ANALYZE")
    yield driver
    driver.store.dispose()
    postgres_server.drop_database(name)


def _plans(tx: Connection, act: Callable[[Connection], object]) -> list[dict[str, Any]]:
    """The plan of every statement the act sends."""
    sent: list[tuple[str, Any]] = []

    def note(_connection: object, _cursor: object, statement: str, parameters: Any, *_more: object) -> None:
        if not statement.startswith("PREPARE"):  # planned below, when it is executed
            sent.append((statement, parameters))

    event.listen(tx, "before_cursor_execute", note)
    act(tx)
    event.remove(tx, "before_cursor_execute", note)
    plans = []
    for statement, parameters in sent:
        cursor = tx.connection.cursor()
        cursor.execute(f"EXPLAIN (FORMAT JSON) {statement}", parameters)
        [(plan,)] = cursor.fetchall()
        plans.append(json.loads(plan) if isinstance(plan, str) else plan)
    return plans


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if "Node Type" in value:
            yield value
        for part in value.values():
            yield from _nodes(part)
    elif isinstance(value, list):
        for part in value:
            yield from _nodes(part)


STATEMENTS: list[tuple[str, Callable[[Connection], object], set[str]]] = [
    ("find a topic", lambda tx: topics.find_topic(tx, "topic://t/n7/7"), {"topic_name_in_use"}),
    ("lock a topic", lambda tx: topics.get_topic(tx, 7, lock=True), {"topic_pkey"}),
    (
        "list of all topics",
        lambda tx: read_page(tx, LIST_TOPICS, fill_in(LIST_TOPICS.request, {}), limit=100),
        {"topic_name_in_use"},
    ),
    (
        "list of a namespace",
        lambda tx: read_page(tx, LIST_TOPICS, fill_in(LIST_TOPICS.request, {"namespace": "t/n7"}), limit=10),
        {"topic_by_namespace"},
    ),
    (
        "operations of a topic that is looked for by its full name",
        lambda tx: read_page(
            tx, LIST_OPERATIONS, fill_in(LIST_OPERATIONS.request, {"find": "topic://t/n7/7"}), limit=10
        ),
        {"topic_by_name", "operation_of_topic"},
    ),
    (
        "live operations of a segment",
        lambda tx: read_answers(tx, LIST_OPERATIONS, 10, live=True, segment_id=0, **SEEDED.key),
        {"topic_by_name", "operation_live_of_topic"},
    ),
    (
        "segments of a topic",
        lambda tx: read_answers(tx, LIST_SEGMENTS, segment_id=[0, 1], **SEEDED.key),
        {"topic_pkey", "segment_pkey"},
    ),
    (
        "layout",
        lambda tx: layouts.load_layout(tx, 7),
        {"topic_pkey", "segment_present", "segment_parent_pkey"},
    ),
    ("layouts", lambda tx: layouts.load_layouts(tx, [7, 8, 9]), {"topic_pkey", "segment_present"}),
    (
        "layout at an epoch",
        lambda tx: inspector_reads.layout_at(tx, SEEDED, 0),
        {"layout_change_pkey", "segment_pkey"},
    ),
    (
        "layout at an instant",
        lambda tx: inspector_reads.layout_at(tx, SEEDED, database_now(tx)),
        {
            "segment_pkey"
        },  # history is read by its key or by time, whichever the planner likes: never as a whole
    ),
    (
        "layout changes since an instant",
        lambda tx: layout_changes.since(tx, (database_now(tx), 0, 0), 500),
        {"layout_change_since"},
    ),
    (
        "claim",
        lambda tx: claims.claim(tx, runner="r", lease_seconds=1, call_timeout_seconds=1),
        {"operation_live", "operation_pkey"},
    ),
    (
        "claim in shards",
        lambda tx: claims.claim(
            tx, runner="r", lease_seconds=1, call_timeout_seconds=1, shards=Shards.of(16, [0, 4])
        ),
        {"operation_live"},
    ),
    ("next due", lambda tx: claims.next_due(tx, call_timeout_seconds=1), {"operation_live"}),
    ("operation by key", lambda tx: operations.find_by_request_key(tx, "k7-1"), {"operation_request_once"}),
    (
        "operation by id",
        lambda tx: operations.get_operation(tx, 7),
        {"operation_pkey", "operation_child_pkey"},
    ),
    (
        "observe",
        lambda tx: steps.observe(tx, [operations.get_operation(tx, 7)]),
        {"topic_pkey", "operation_live_of_topic"},
    ),
    (
        "seek in progress",
        lambda tx: seeks.under_way(tx, SubscriptionKey(7, "s")),
        {"operation_live_of_topic"},
    ),
    (
        "deletion_entries due",
        lambda tx: deletion_entries.claim_due(tx, limit=5, hold_seconds=1),
        {"deletion_entry_due"},
    ),
    (
        "deletion_entries of a topic",
        lambda tx: deletion_entries.list_open(tx, 100),
        {"deletion_entry_of_topic"},
    ),
    ("subscriptions", lambda tx: subscriptions.list_subscriptions(tx, 7), {"subscription_pkey"}),
    ("consumers", lambda tx: consumers.list_consumers(tx, 7), {"consumer_pkey"}),
    (
        "drained",
        lambda tx: drains.drained(tx, 7, "s"),
        {"subscription_pkey", "segment_present", "segment_drain_pkey"},
    ),
    (
        "undrained",
        lambda tx: drains.undrained_subscriptions(tx, 7, [0]),
        {"segment_pkey", "subscription_pkey"},
    ),
]


@pytest.mark.parametrize(("act", "indexes"), [pytest.param(*case[1:], id=case[0]) for case in STATEMENTS])
def test_a_hot_statement_reads_by_index(
    seeded: StoreDriver, act: Callable[[Connection], object], indexes: set[str]
) -> None:
    with seeded.store.transaction() as tx:
        nodes = list(_nodes(_plans(tx, act)))
        tx.execute(text("ROLLBACK"))

    assert indexes <= {node["Index Name"] for node in nodes if "Index Name" in node}
    assert [node["Relation Name"] for node in nodes if node["Node Type"] == "Seq Scan"] == []


READ_WHOLE_WHILE_EMPTY = {("segment", "segment_active_ranges_disjoint"), ("operation", "operation_live")}
"""Partial indexes that a PostgreSQL older than 18 thinks cheapest until the first statistics, though they are not by topic."""


PREPARED = [
    one
    for module in (claims, commits, reshape_intents, evaluation_inputs, steps)
    for one in vars(module).values()
    if isinstance(one, Prepared)
]


@pytest.mark.parametrize("statement", PREPARED, ids=lambda statement: statement.name)
def test_a_prepared_statement_is_planned_for_large_tables_though_they_are_empty(
    driver: StoreDriver, statement: Prepared
) -> None:
    """Statistics come a minute later at the earliest: what a worker starts with in between it keeps to."""
    nothing = ", ".join("NULL" for _ in statement.parameters)
    with driver.store.transaction() as tx:
        statement.execute(tx, dict.fromkeys(statement.parameters))
        [(plan,)] = tx.exec_driver_sql(f"EXPLAIN (FORMAT JSON) EXECUTE {statement.name} ({nothing})")
        [older] = tx.exec_driver_sql("SELECT current_setting('server_version_num')::int < 180000").one()
    nodes = list(_nodes(plan))
    accepted = READ_WHOLE_WHILE_EMPTY if older else set()

    assert {
        (node["Relation Name"], node.get("Index Name"))
        for node in nodes
        if node.get("Relation Name") not in (None, "cluster_policy", "cluster_reconnections")  # of one row
        and "Bitmap" not in node["Node Type"]
        and node["Node Type"] != "ModifyTable"
        and "Index Cond" not in node
    } <= accepted
    assert [
        node["Index Name"]
        for node in nodes
        if node["Node Type"] == "Bitmap Index Scan" and "Index Cond" not in node
    ] == []
    assert any("Index Name" in node for node in nodes)
