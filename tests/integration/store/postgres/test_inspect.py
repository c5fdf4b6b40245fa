"""Schema inspect: people see it without any right on the tables, and what they see is what is so."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from benchmarks.fleet import analyze, insert_fleet
from controller.domain.decision import Lane
from controller.domain.errors import Terminal
from controller.domain.operation import OperationState
from controller.domain.policy import PolicyOverride
from controller.domain.reshape import plan_split
from controller.domain.seek_target import EARLIEST
from controller.store import leases
from controller.store.decisions import evaluations
from controller.store.decisions.evaluations import FinishedEvaluation
from controller.store.journal import seeks
from controller.store.topics import held_topics, policies
from controller.store.topics.subscriptions import SubscriptionKind, insert_subscription
from tests.support.inspection import NAME, ask, busy_history
from tests.support.reports import report_load
from tests.support.store_driver import StoreDriver, request


def objects(driver: StoreDriver) -> list[tuple[Any, ...]]:
    """Kind, name and comment of everything in the schema."""
    return driver.sql("""
        SELECT 'view', c.relname::text, obj_description(c.oid, 'pg_class') FROM pg_class c
         WHERE c.relnamespace = 'inspect'::regnamespace
        UNION ALL
        SELECT 'function', p.oid::regprocedure::text, obj_description(p.oid, 'pg_proc') FROM pg_proc p
         WHERE p.pronamespace = 'inspect'::regnamespace
    """)


def test_the_inspector_reads_every_view_and_each_says_what_it_is(driver: StoreDriver) -> None:
    topic_id = busy_history(driver)
    driver.subscribe(topic_id, "billing")

    found = objects(driver)

    assert len(found) >= 20
    assert [name for _, name, comment in found if not comment] == []
    for name in [name for kind, name, _ in found if kind == "view"]:
        ask(driver, f"SELECT * FROM inspect.{name}")
        ask(driver, f"SELECT count(*) FROM inspect.{name}")


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM cleave.topic",
        "SELECT * FROM cleave.segment_load",
        "SELECT * FROM staging.load_row",
        "DELETE FROM inspect.layout_now",
        "UPDATE inspect.topics SET state = 'deleted'",
        "INSERT INTO inspect.leases (name) VALUES ('x')",
        "CREATE TABLE inspect.mine (a int)",
        "SELECT cleave.merge_load('x', now(), 'x', 0, 0, '{}')",
        "SELECT cleave.drop_decision_partitions(now())",
    ],
)
def test_the_inspector_can_do_nothing_but_look(driver: StoreDriver, statement: str) -> None:
    with pytest.raises(Terminal, match=r"permission denied|cannot (delete|update|insert)"):
        ask(driver, statement)


def test_functions_of_the_schema_cannot_be_led_astray(driver: StoreDriver) -> None:
    """They run with the owner's rights, so their search path is fixed."""
    rows = driver.sql("""
        SELECT p.oid::regprocedure::text FROM pg_proc p
         WHERE p.pronamespace IN ('inspect'::regnamespace, 'cleave'::regnamespace) AND p.prosecdef
           AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (p.proconfig), false)
    """)

    assert rows == []


@pytest.mark.parametrize(
    ("change", "because"),
    [
        ("deadline = clock_timestamp()", "past its deadline"),
        ("attempts = 3", "fails repeatedly"),
        (
            "claimed_by = 'x', claim_expires_at = clock_timestamp() - interval '2 minutes'",
            "its runner has died and no other runner has taken over",
        ),
        ("intended_at = clock_timestamp() - interval '2 minutes'", "no runner has claimed it"),
    ],
)
def test_what_hangs_is_listed_with_the_reason(driver: StoreDriver, change: str, because: str) -> None:
    topic_id = driver.create(NAME).topic_id
    operation = driver.intend(topic_id, lambda layout: plan_split(layout, 0))

    assert ask(driver, "SELECT * FROM inspect.stuck_operations") == []

    driver.sql(f"UPDATE cleave.operation SET {change} WHERE operation_id = :id", id=operation.operation_id)

    [stuck] = ask(driver, "SELECT * FROM inspect.stuck_operations")
    assert stuck["operation_id"] == operation.operation_id
    assert stuck["stuck_because"].startswith(because)
    assert (stuck["parents"], stuck["children"]) == ([0], [1, 2])


@pytest.mark.parametrize(
    "change",
    ["claimed_by = NULL", "claimed_by = 'x', claim_expires_at = clock_timestamp() - interval '2 minutes'"],
)
def test_what_no_runner_claims_because_its_topic_is_held_says_so(driver: StoreDriver, change: str) -> None:
    topic_id = driver.create(NAME).topic_id
    driver.intend(topic_id, lambda layout: plan_split(layout, 0))
    driver.sql(
        f"UPDATE cleave.operation SET {change}, intended_at = intended_at - interval '2 minutes', deadline = clock_timestamp()"
        " WHERE finished_at IS NULL"
    )
    driver.do(held_topics.hold, topic_id, "two logs share segment id 3")

    [stuck] = ask(driver, "SELECT stuck_because FROM inspect.stuck_operations")
    assert stuck["stuck_because"] == "waits for the recovery of its held topic"


def test_a_reshape_that_waits_for_an_older_one_at_the_broker_says_so(driver: StoreDriver) -> None:
    topic_id = driver.create(NAME, segments=3).topic_id
    for segment_id in range(3):
        driver.intend(topic_id, partial(plan_split, segment_id=segment_id))
    driver.sql(
        "UPDATE cleave.operation SET intended_at = intended_at - interval '2 minutes' WHERE finished_at IS NULL"
    )
    reasons = "SELECT operation_id, stuck_because FROM inspect.stuck_operations ORDER BY 1"
    first, second, third = ask(driver, reasons)
    assert {row["stuck_because"] for row in (first, second, third)} == {first["stuck_because"]}

    driver.sql(
        """UPDATE cleave.operation SET parameters = '{"on_broker": true, "child_ranges": []}' WHERE finished_at IS NULL"""
    )

    waits = f"waits for operation {first['operation_id']} of its topic"
    assert ask(driver, reasons) == [
        first,
        second | {"stuck_because": waits},
        third | {"stuck_because": waits},
    ]
    assert first["stuck_because"].startswith("no runner has claimed it")


def test_a_seek_waits_for_its_consumers_as_long_as_they_take(driver: StoreDriver) -> None:
    topic_id = driver.create(NAME).topic_id
    with driver.store.transaction() as tx:
        insert_subscription(tx, topic_id, "billing", SubscriptionKind.STREAM, 0)
        seeks.intend_seek(tx, topic_id, "billing", EARLIEST, request("seek"), release_seconds=600.0)

    driver.sql("UPDATE cleave.operation SET deadline = clock_timestamp() WHERE kind = 'seek'")

    assert ask(driver, "SELECT * FROM inspect.stuck_operations") == []


@pytest.mark.parametrize("state", [OperationState.FENCING, OperationState.FENCED])
def test_a_range_closed_for_ten_seconds_is_listed_whatever_its_claim_says(
    driver: StoreDriver, state: OperationState
) -> None:
    topic_id = driver.create(NAME).topic_id
    operation = driver.intend(topic_id, lambda layout: plan_split(layout, 0))
    driver.run(operation, until=state)
    claimed = """UPDATE cleave.operation SET claimed_by = 'w', claim_expires_at = clock_timestamp() + interval '1 hour',
                        intended_at = intended_at - interval '11 seconds'"""
    driver.sql(claimed)
    assert ask(driver, "SELECT * FROM inspect.stuck_operations") == []

    driver.sql("UPDATE cleave.operation SET fenced_at = fenced_at - interval '11 seconds'")

    [stuck] = ask(driver, "SELECT stuck_because FROM inspect.stuck_operations")
    assert (
        stuck["stuck_because"]
        == "behind its fence for 11 s: 1 segment(s) take no writes until it is committed"
    )


def test_behind_the_fence_the_sentence_says_what_it_costs(driver: StoreDriver) -> None:
    topic_id = driver.create(NAME).topic_id
    operation = driver.intend(topic_id, lambda layout: plan_split(layout, 0))
    driver.run(operation, until=OperationState.FENCED)
    driver.sql(
        "UPDATE cleave.operation SET deadline = clock_timestamp() WHERE operation_id = :id",
        id=operation.operation_id,
    )

    [stuck] = ask(driver, "SELECT stuck_because FROM inspect.stuck_operations")

    assert "1 segment(s) take no writes" in stuck["stuck_because"]


def test_load_is_shown_beside_what_it_is_held_against(driver: StoreDriver) -> None:
    topic_id = driver.create(NAME, segments=4).topic_id
    with driver.store.transaction() as tx:
        policies.set_topic(
            tx, topic_id, PolicyOverride(split_byte_rate_in=50_000.0, merge_byte_rate_in=1000.0)
        )
        report_load(tx, topic_id, {0: 1_000.0, 1: 1.0})
        report_load(tx, topic_id, {2: 1.0}, silent_for=timedelta(hours=1), source="broker-2")

    rows = {
        row["segment_id"]: row
        for row in ask(driver, "SELECT * FROM inspect.load_now WHERE topic = :t", t=NAME)
    }

    seen = {
        i: (row["hottest_metric"], row["is_hot"], row["is_cold"], row["is_stale"]) for i, row in rows.items()
    }
    assert seen == {
        0: ("byte_rate_in", True, False, False),
        1: ("byte_rate_in", False, True, False),
        2: ("byte_rate_in", False, True, True),
        3: (None, None, None, True),
    }
    assert rows[0]["hottest_ratio"] == 2


def test_load_that_decisions_use_however_old_it_is_counts_as_fresh(driver: StoreDriver) -> None:
    """Pulsar has no rule about the age of load."""
    topic_id = driver.create(NAME, segments=2).topic_id
    with driver.store.transaction() as tx:
        report_load(tx, topic_id, {0: 1e6}, silent_for=timedelta(hours=1))
    shown = "SELECT stale_segments, hot_segments, hottest_ratio > 1 AS is_hot FROM inspect.fleet"
    assert ask(driver, shown) == [{"stale_segments": 2, "hot_segments": 0, "is_hot": None}]

    driver.do(policies.set_topic, topic_id, PolicyOverride(profile="pip483", strict_pulsar=True))

    assert ask(driver, shown) == [{"stale_segments": 1, "hot_segments": 1, "is_hot": True}]


def test_the_backlog_lists_what_no_pass_has_looked_at(driver: StoreDriver) -> None:
    topic_id = driver.create(NAME).topic_id
    backlog = "SELECT lane, changes_behind, paused FROM inspect.evaluation_backlog ORDER BY lane"

    assert [row["lane"] for row in ask(driver, backlog)] == ["consumer", "load", "merge"]

    [pending] = driver.do(evaluations.read, [topic_id])
    driver.do(
        evaluations.finish,
        {Lane.LOAD, Lane.MERGE},
        [FinishedEvaluation(topic_id, pending.input_version, 1, None)],
    )
    driver.do(evaluations.defer, [topic_id], 60.0)

    assert ask(driver, backlog) == [
        {"lane": "consumer", "changes_behind": pending.input_version, "paused": True},
        {"lane": "load", "changes_behind": 0, "paused": True},
        {"lane": "merge", "changes_behind": 0, "paused": True},
    ]


def test_policies_and_leases_are_listed(driver: StoreDriver) -> None:
    driver.create(NAME)
    driver.do(policies.set_namespace, "t/n", PolicyOverride(max_segments=8), actor="ann")
    driver.do(leases.acquire, "worker/w", "w", 60.0)
    driver.do(leases.acquire, "shard/0", "w", 0.0)

    stored = ask(driver, "SELECT level, name, policy, actor FROM inspect.policies ORDER BY level")
    held = ask(driver, "SELECT name, live FROM inspect.leases ORDER BY name")

    assert [(row["level"], row["name"], row["policy"]) for row in stored] == [
        ("cluster", None, {}),
        ("namespace", "t/n", {"max_segments": 8}),
    ]
    assert [(row["name"], row["live"]) for row in held] == [("shard/0", False), ("worker/w", True)]


def test_asking_for_one_topic_does_not_read_the_fleet(driver: StoreDriver) -> None:
    with driver.store.transaction() as tx:
        insert_fleet(tx, 20_000, 1)
    with driver.store.transaction() as tx:
        analyze(tx)
    views = ("layout_now", "load_now", "uncovered_ranges", "policy_effective", "why_not", "assignments")
    asked = "EXPLAIN SELECT * FROM inspect.{} WHERE topic = 'topic://bench/n7/t7000'"
    plans = {
        view: "\n".join(str(row["QUERY PLAN"]) for row in ask(driver, asked.format(view))) for view in views
    }

    big = ("topic t", "segment s", "segment_load l", "evaluation e")
    read = {(view, table) for view in views for table in big if f"Seq Scan on {table}" in plans[view]}
    assert read == set(), plans
