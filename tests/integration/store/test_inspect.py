"""Schema inspect: what people see is what is so, they see it without any right on the tables, and nothing breaks it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from benchmarks.fleet import analyze, insert_fleet
from controller.domain.assignment import candidates
from controller.domain.decision import Lane
from controller.domain.errors import Terminal
from controller.domain.layout import SegmentLayout
from controller.domain.operation import OperationState
from controller.domain.policy import PolicyOverride
from controller.domain.reshape import plan_merge, plan_split
from controller.store import evaluations, layouts, leases, policies
from controller.store.evaluations import Finished
from controller.store.subscriptions import SubscriptionKind
from tests.support.reports import report_load
from tests.support.store_driver import StoreDriver, request

NAME = "topic://t/n/a"


def ask(driver: StoreDriver, statement: str, **parameters: object) -> list[dict[str, Any]]:
    """Rows, read with the inspector's rights."""
    with driver.store.transaction() as tx:
        tx.execute(text("SET LOCAL ROLE cleave_inspector"))
        return [dict(row) for row in tx.execute(text(statement), parameters).mappings()]


def busy_history(driver: StoreDriver) -> int:
    """A topic that was split, split again, merged across, and lost its first segment to the collector."""
    topic_id = driver.create(NAME, segments=2).topic_id
    driver.split(topic_id, 0)
    driver.split(topic_id, 3)
    driver.reshape(topic_id, lambda layout: plan_merge(layout, 5, 1))
    driver.reshape(topic_id, lambda layout: plan_merge(layout, 4, 6))
    prune(driver, topic_id, 0)
    return topic_id


def prune(driver: StoreDriver, topic_id: int, segment_id: int) -> None:
    """Forgets a sealed segment."""
    from controller.store.intents import intend_prune

    driver.run(driver.do(intend_prune, topic_id, [segment_id], request()).operation)


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


def test_a_gap_in_the_ring_shows_and_a_whole_ring_does_not(driver: StoreDriver) -> None:
    topic_id = busy_history(driver)
    driver.create("topic://t/n/b", segments=3)

    assert ask(driver, "SELECT * FROM inspect.uncovered_ranges") == []

    driver.sql(
        """
        UPDATE cleave.segment SET state = 'SEALED', sealed_epoch = 9, sealed_at = now()
         WHERE topic_id = :id AND state = 'ACTIVE' AND range_start > 0
    """,
        id=topic_id,
    )

    [gap] = ask(driver, "SELECT topic, hash_range, range_start, range_end FROM inspect.uncovered_ranges")
    assert gap == {"topic": NAME, "hash_range": "4000-ffff", "range_start": 16384, "range_end": 65535}


def test_a_topic_being_made_or_gone_covers_nothing_and_that_is_no_gap(driver: StoreDriver) -> None:
    driver.intend_create("topic://t/n/creating")
    driver.delete(driver.create(NAME).topic_id)

    assert ask(driver, "SELECT * FROM inspect.uncovered_ranges") == []
    assert ask(driver, "SELECT * FROM inspect.layout_now") == []


def test_every_past_layout_is_the_one_the_store_tells(driver: StoreDriver) -> None:
    topic_id = busy_history(driver)
    changes = ask(driver, "SELECT epoch, committed_at FROM inspect.layout_changes ORDER BY epoch")

    assert [change["epoch"] for change in changes] == list(range(6))
    for change in changes:
        expected = shape(driver.do(layouts.layout_at, topic_id, change["epoch"]))
        by_epoch = ask(
            driver, "SELECT * FROM inspect.layout_at(:topic, :epoch)", topic=NAME, epoch=change["epoch"]
        )
        by_instant = ask(
            driver,
            "SELECT * FROM inspect.layout_at(:topic, CAST(:instant AS timestamptz))",
            topic=NAME,
            instant=change["committed_at"],
        )
        assert {row["segment_id"]: (row["state"], row["hash_range"]) for row in by_epoch} == expected
        assert by_instant == by_epoch
        assert {row["epoch"] for row in by_epoch} == {change["epoch"]}


def shape(layout: SegmentLayout) -> dict[int, tuple[str, str]]:
    """State and range by id."""
    return {i: (segment.state.value, str(segment.hash_range)) for i, segment in layout.segments.items()}


def test_before_the_first_layout_and_after_the_last_epoch_there_is_nothing(driver: StoreDriver) -> None:
    busy_history(driver)
    [first] = ask(driver, "SELECT committed_at FROM inspect.layout_changes WHERE epoch = 0")
    instant: datetime = first["committed_at"] - timedelta(microseconds=1)

    before = "SELECT * FROM inspect.layout_at(:topic, CAST(:instant AS timestamptz))"
    assert ask(driver, before, topic=NAME, instant=instant) == []
    assert ask(driver, "SELECT * FROM inspect.layout_at(:topic, 99)", topic=NAME) == []
    assert ask(driver, "SELECT * FROM inspect.layout_at('topic://no/such/topic', 0)") == []


def test_lineage_has_every_relative_at_its_shortest_distance_pruned_ones_included(
    driver: StoreDriver,
) -> None:
    busy_history(driver)

    def lineage(segment_id: int) -> dict[int, int]:
        rows = ask(
            driver, "SELECT segment_id, depth FROM inspect.lineage(:topic, :id)", topic=NAME, id=segment_id
        )
        return {row["segment_id"]: row["depth"] for row in rows}

    assert lineage(7) == {7: 0, 4: -1, 6: -1, 3: -2, 5: -2, 1: -2, 0: -3}
    assert lineage(0) == {0: 0, 2: 1, 3: 1, 4: 2, 5: 2, 6: 3, 7: 3}
    assert lineage(2) == {0: -1, 2: 0}
    assert lineage(99) == {}
    pruned = ask(
        driver, "SELECT segment_id FROM inspect.lineage(:topic, 7) WHERE pruned_at IS NOT NULL", topic=NAME
    )
    assert [row["segment_id"] for row in pruned] == [0]


def test_a_name_used_again_answers_for_both_lives(driver: StoreDriver) -> None:
    driver.delete(driver.create(NAME, segments=2).topic_id)
    driver.create(NAME, segments=1)
    [first, *_] = ask(driver, "SELECT committed_at FROM inspect.layout_changes ORDER BY committed_at")

    at_instant = (
        "SELECT segment_id FROM inspect.layout_at(:topic, CAST(:instant AS timestamptz)) ORDER BY segment_id"
    )
    then = ask(driver, at_instant, topic=NAME, instant=first["committed_at"])
    now = ask(driver, "SELECT segment_id FROM inspect.layout_now WHERE topic = :topic", topic=NAME)
    at_zero = ask(driver, "SELECT segment_id FROM inspect.layout_at(:topic, 0)", topic=NAME)

    assert [row["segment_id"] for row in then] == [0, 1]
    assert now == at_zero == [{"segment_id": 2}]
    assert [
        row["depth"] for row in ask(driver, "SELECT depth FROM inspect.lineage(:topic, 1)", topic=NAME)
    ] == [0]


def test_the_drain_barrier_is_the_domains(driver: StoreDriver) -> None:
    topic_id = driver.create(NAME, segments=2).topic_id
    driver.subscribe(topic_id, "early")
    driver.split(topic_id, 0)
    driver.subscribe(topic_id, "late")
    driver.reshape(topic_id, lambda layout: plan_merge(layout, 3, 1))
    driver.split(topic_id, 4)
    driver.sql(
        "INSERT INTO cleave.segment_drain (topic_id, subscription, segment_id) VALUES (:id, 'early', 0)",
        id=topic_id,
    )
    layout = driver.layout(topic_id)

    for subscription, drained in (("early", {0}), ("late", {0})):
        rows = ask(
            driver,
            "SELECT segment_id, barrier FROM inspect.assignments WHERE subscription = :name",
            name=subscription,
        )
        readable = {row["segment_id"] for row in rows if row["barrier"] == "readable"}
        assert readable == {segment.segment_id for segment in candidates(layout, drained)}
        assert {row["segment_id"] for row in rows if row["barrier"] == "drained"} == drained


def test_a_queue_subscription_waits_for_nothing(driver: StoreDriver) -> None:
    topic_id = driver.create(NAME).topic_id
    driver.subscribe(topic_id, "work", SubscriptionKind.QUEUE)
    driver.split(topic_id, 0)

    rows = ask(driver, "SELECT segment_id, barrier FROM inspect.assignments ORDER BY segment_id")

    assert [(row["segment_id"], row["barrier"]) for row in rows] == [(i, "readable") for i in range(3)]


@pytest.mark.parametrize(
    ("change", "because"),
    [
        ("deadline = clock_timestamp()", "past its deadline"),
        ("attempts = 3", "fails again and again"),
        (
            "claimed_by = 'x', claim_expires_at = clock_timestamp() - interval '2 minutes'",
            "its runner died and nobody took it over",
        ),
        ("intended_at = clock_timestamp() - interval '2 minutes'", "nobody runs it"),
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
    assert (stuck["parents"], stuck["children"]) == ([0], ["1:0000-7fff", "2:8000-ffff"])


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


def test_the_backlog_lists_what_no_pass_has_looked_at(driver: StoreDriver) -> None:
    topic_id = driver.create(NAME).topic_id
    backlog = "SELECT lane, changes_behind, paused FROM inspect.evaluation_backlog ORDER BY lane"

    assert [row["lane"] for row in ask(driver, backlog)] == ["consumer", "load", "merge"]

    [pending] = driver.do(evaluations.read, [topic_id])
    driver.do(
        evaluations.finish, {Lane.LOAD, Lane.MERGE}, [Finished(topic_id, pending.input_version, 1, None)]
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


@pytest.mark.parametrize(
    "view", ["layout_now", "load_now", "uncovered_ranges", "policy_effective", "why_not", "assignments"]
)
def test_asking_for_one_topic_does_not_read_the_fleet(driver: StoreDriver, view: str) -> None:
    with driver.store.transaction() as tx:
        insert_fleet(tx, 20_000, 1)
    with driver.store.transaction() as tx:
        analyze(tx)
    plan = "\n".join(
        str(row["QUERY PLAN"])
        for row in ask(driver, f"EXPLAIN SELECT * FROM inspect.{view} WHERE topic = 'topic://bench/n7/t7000'")
    )

    big = ("topic t", "segment s", "segment_load l", "evaluation e")
    assert not [table for table in big if f"Seq Scan on {table}" in plan], plan
