"""What was: load, policies, and the load that an act was decided on, as the inspector reads them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import text

from controller.domain.errors import InvariantViolated
from controller.domain.policy import AutoScalePolicy, PolicyOverride
from controller.store.journal import topic_intents
from controller.store.load import load_deletion
from controller.store.postgres.clock import database_now
from controller.store.topics import policies
from tests.support.inspection import NAME, ask, busy_history
from tests.support.store_driver import StoreDriver, backing_topic, request

_LOAD = """
    INSERT INTO cleave.segment_load (topic_id, segment_id, msg_rate_in, byte_rate_in, msg_rate_out, byte_rate_out, source, modified_at)
    VALUES (:topic, :segment, :rate, 0, 0, 0, 'broker-1', now())
    ON CONFLICT (topic_id, segment_id) DO UPDATE SET msg_rate_in = excluded.msg_rate_in, modified_at = now(), row_version = segment_load.row_version + 1
"""


def load(driver: StoreDriver, topic_id: int, segment_id: int, rate: float) -> None:
    driver.sql(_LOAD, topic=topic_id, segment=segment_id, rate=rate)


def test_each_load_record_that_was_written_stays(driver: StoreDriver) -> None:
    topic_id = driver.create(NAME, segments=2).topic_id
    for rate in (10.0, 900.0, 20.0):
        load(driver, topic_id, 0, rate)

    rows = ask(driver, "SELECT * FROM inspect.load_history ORDER BY recorded_at")

    assert [(row["topic"], row["segment_id"], row["hash_range"], row["msg_rate_in"]) for row in rows] == [
        (NAME, 0, "0000-7fff", rate) for rate in (10.0, 900.0, 20.0)
    ]
    assert all(row["recorded_at"].tzinfo for row in rows)


def test_what_is_older_than_asked_for_is_forgotten_by_the_controllers_role(driver: StoreDriver) -> None:
    topic_id = driver.create(NAME).topic_id
    load(driver, topic_id, 0, 10.0)
    load(driver, topic_id, 0, 20.0)
    driver.sql(
        "UPDATE cleave.load_history SET recorded_at = now() - interval '9 days' WHERE msg_rate_in = 10"
    )

    with driver.store.transaction() as tx:
        tx.execute(text("SET LOCAL ROLE cleave_controller"))
        assert load_deletion.forget_history_before(tx, database_now(tx) - timedelta(days=8)) == 1

    assert [row["msg_rate_in"] for row in ask(driver, "SELECT * FROM inspect.load_history")] == [20.0]


def test_an_act_by_hand_has_the_load_it_was_asked_for_at(driver: StoreDriver) -> None:
    topic_id = driver.create(NAME, segments=2).topic_id
    load(driver, topic_id, 0, 12_000.0)
    driver.split(topic_id, 0)
    load(driver, topic_id, 0, 1.0)
    driver.split(topic_id, 1)

    rows = ask(driver, "SELECT * FROM inspect.operation_loads ORDER BY operation_id")

    assert [(row["origin"], row["segment_id"], row["msg_rate_in"]) for row in rows] == [
        ("manual", 0, 12_000.0),
        ("manual", 1, None),
    ]


def test_who_set_which_parameter_when_at_each_level(driver: StoreDriver) -> None:
    topic = driver.create(NAME)
    driver.do(policies.set_cluster, AutoScalePolicy(max_segments=32), actor="ada")
    driver.do(policies.set_namespace, "t/n", PolicyOverride(max_segments=16), actor="bob")
    driver.do(policies.set_namespace, "t/n", PolicyOverride(min_segments=2), actor="cyd")
    driver.do(policies.set_topic, topic.topic_id, PolicyOverride(enabled=False), actor="dan")
    driver.do(policies.set_topic, topic.topic_id, None, actor="eve")

    rows = ask(
        driver,
        "SELECT level, name, actor, parameter, was, value FROM inspect.policy_history ORDER BY change_id, parameter",
    )

    assert [tuple(row.values()) for row in rows] == [
        ("cluster", None, "ada", "max_segments", None, 32),
        ("namespace", "t/n", "bob", "max_segments", None, 16),
        ("namespace", "t/n", "cyd", "max_segments", 16, None),
        ("namespace", "t/n", "cyd", "min_segments", None, 2),
        ("topic", NAME, "dan", "enabled", None, False),
        ("topic", NAME, "eve", "enabled", False, None),
    ]


_WHO = "SELECT level, actor FROM cleave.policy_change ORDER BY change_id"


def test_the_policy_a_topic_is_made_with_is_of_whom_asked_for_the_topic(driver: StoreDriver) -> None:
    driver.do(
        topic_intents.intend_create,
        NAME,
        segments=1,
        data_plane="embedded",
        backing_topic=backing_topic,
        bucket_budget=4,
        max_buckets=64,
        request=request(),
        policy=PolicyOverride(max_segments=8),
    )

    assert driver.sql(_WHO) == [("topic", request().actor)]


@pytest.mark.parametrize(
    ("level", "statement"),
    [
        ("cluster", "UPDATE cleave.cluster_policy SET policy = '{}'"),
        ("namespace", "UPDATE cleave.namespace_policy SET policy = '{}'"),
        ("namespace", "DELETE FROM cleave.namespace_policy"),
        ("topic", "UPDATE cleave.topic SET policy = NULL, row_version = row_version + 1"),
    ],
)
def test_a_policy_changed_by_hand_is_of_the_login_and_not_of_whoever_set_it_before(
    driver: StoreDriver, level: str, statement: str
) -> None:
    topic = driver.create(NAME)
    driver.do(policies.set_cluster, AutoScalePolicy(max_segments=32), actor="ada")
    driver.do(policies.set_namespace, "t/n", PolicyOverride(max_segments=16), actor="ada")
    driver.do(policies.set_topic, topic.topic_id, PolicyOverride(enabled=False), actor="ada")

    driver.sql(statement)

    [(login,)] = driver.sql("SELECT session_user")
    assert driver.sql(_WHO)[3:] == [(level, login)]


def test_of_two_changes_in_one_transaction_each_is_of_its_own_actor(driver: StoreDriver) -> None:
    topic_id = driver.create(NAME).topic_id
    with driver.store.transaction() as tx:
        policies.set_topic(tx, topic_id, PolicyOverride(max_segments=8), actor="ada")
        policies.set_namespace(tx, "t/n", PolicyOverride(max_segments=16), actor="bob")
        policies.set_topic(tx, topic_id, None)

    [(login,)] = driver.sql("SELECT session_user")
    assert driver.sql(_WHO) == [("topic", "ada"), ("namespace", "bob"), ("topic", login)]


def test_a_policy_that_is_written_as_it_was_is_no_change(driver: StoreDriver) -> None:
    for _ in range(2):
        driver.do(policies.set_namespace, "t/n", PolicyOverride(max_segments=16), actor="bob")

    assert driver.sql("SELECT count(*) FROM cleave.policy_change") == [(1,)]


def test_the_history_of_policies_is_never_rewritten(driver: StoreDriver) -> None:
    driver.do(policies.set_cluster, AutoScalePolicy(max_segments=32), actor="ada")

    with pytest.raises(InvariantViolated, match="history"):
        driver.sql("UPDATE cleave.policy_change SET actor = 'eve'")


def test_every_segment_is_there_with_its_edges(driver: StoreDriver) -> None:
    busy_history(driver)

    rows = ask(driver, "SELECT * FROM inspect.segments ORDER BY segment_id")

    edges = {row["segment_id"]: (row["parents"], row["children"]) for row in rows}
    assert edges == {
        0: ([], [2, 3]),
        1: ([], [6]),
        2: ([0], []),
        3: ([0], [4, 5]),
        4: ([3], [7]),
        5: ([3], [6]),
        6: ([5, 1], [7]),
        7: ([4, 6], []),
    }
    assert [row["segment_id"] for row in rows if row["pruned_at"]] == [0]
    assert {row["segment_id"] for row in rows if row["state"] == "ACTIVE"} == {2, 7}


def test_the_situation_of_a_decision_can_be_asked_into(driver: StoreDriver) -> None:
    topic_id = driver.create(NAME).topic_id
    driver.sql(
        """INSERT INTO cleave.decision (topic_id, lanes, decided_by, epoch, input_version, situation, decisions, refusals, code_version)
           VALUES (:id, '{load}', 'test', 0, 1, '{"policy": {"max_segments": 8}}', '[]', '[]', 'test')""",
        id=topic_id,
    )

    [row] = ask(driver, "SELECT situation -> 'policy' -> 'max_segments' AS cap FROM inspect.decisions")

    assert row["cap"] == 8
