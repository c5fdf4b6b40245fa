"""Policies: three levels, stored as wholes, validated together, changed by version."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import text

from controller.domain.errors import InvalidPolicy, LostRace, TopicNotFound, TopicNotLive
from controller.domain.evaluation_input import TICKS_OF_MEMORY
from controller.domain.policy import (
    CHOICES,
    OVERRIDABLE_PARAMETERS,
    PARAMETERS,
    AutoScalePolicy,
    PolicyOverride,
    resolve,
    violations,
)
from controller.domain.policy_parameters import write_parameter
from controller.store.load import records as loads
from controller.store.topics import policies, topics
from tests.support.drawn import cases
from tests.support.store_driver import SOMEBODY_WAITS, StoreDriver
from tests.support.waiting import wait_until

NAMESPACE_ACTORS = "SELECT actor, row_version FROM cleave.namespace_policy"


def in_force(driver: StoreDriver, topic_id: int) -> dict[str, tuple[object, str]]:
    """Each parameter's value and level, as people see them."""
    statement = "SELECT parameter, value, level FROM inspect.policy_effective WHERE topic_id = :id"
    return {parameter: (value, level) for parameter, value, level in driver.sql(statement, id=topic_id)}


def test_an_untouched_database_has_the_default_policy_everywhere(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id

    assert driver.do(policies.get_cluster) == AutoScalePolicy()
    assert driver.do(policies.get_namespace, "t/n") == PolicyOverride()
    assert driver.policy(topic_id) == AutoScalePolicy()
    assert {level for _, level in in_force(driver, topic_id).values()} == {"default"}


def test_each_parameter_comes_from_the_nearest_level_that_sets_it(driver: StoreDriver) -> None:
    topic_id = driver.create("topic://t/n/a").topic_id
    other_id = driver.create("topic://t/other/a").topic_id
    driver.do(policies.set_cluster, AutoScalePolicy(max_segments=32, min_segments=2), actor="ann")
    driver.do(policies.set_namespace, "t/n", PolicyOverride(max_segments=16, enabled=False), actor="bob")
    driver.do(policies.set_topic, topic_id, PolicyOverride(max_segments=8))

    found = in_force(driver, topic_id)

    assert found["max_segments"] == (8, "topic")
    assert found["enabled"] == (False, "namespace")
    assert found["min_segments"] == (2, "cluster")
    assert found["profile"] == ("pip483", "default")
    assert driver.policy(other_id).max_segments == 32


def test_sql_and_the_domain_agree_on_what_is_in_force(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    driver.do(policies.set_cluster, AutoScalePolicy(max_segments=32, merge_msg_rate_in=10.5), actor="ann")
    driver.do(policies.set_namespace, "t/n", PolicyOverride(split_byte_rate_in=float("inf")), actor="bob")
    driver.do(policies.set_topic, topic_id, PolicyOverride(min_segments=3, strict_pulsar=True))

    rows = in_force(driver, topic_id)

    assert {parameter: value for parameter, (value, _) in rows.items()} == driver.policy(
        topic_id
    ).to_document()
    assert {parameter: level for parameter, (_, level) in rows.items() if level != "default"} == {
        "max_segments": "cluster",
        "merge_msg_rate_in": "cluster",
        "split_byte_rate_in": "namespace",
        "min_segments": "topic",
        "strict_pulsar": "topic",
    }


def drawn_document(rng: random.Random, parameters: Mapping[str, type]) -> dict[str, Any]:
    """Some parameters as a level may store them, now and then as JSON's null."""
    values: dict[type, Callable[[], Any]] = {
        bool: lambda: rng.random() < 0.5,
        int: lambda: rng.randint(0, 9_000),
        float: lambda: write_parameter(rng.choice([0.0, 0.5, 7.25, 1e9, float("inf")])),
    }
    some = rng.sample(sorted(parameters), rng.randint(0, len(parameters)))
    document = {
        parameter: rng.choice([*CHOICES[parameter]])
        if parameter in CHOICES
        else values[parameters[parameter]]()
        for parameter in some
    }
    return {parameter: None if rng.random() < 0.1 else value for parameter, value in document.items()}


def store_documents(
    driver: StoreDriver, cluster: Any, namespaces: Mapping[str, Any], topics_: Mapping[int, Any]
) -> None:
    """Write them past the checks of `policies`: what is stored need not be valid."""
    with driver.store.transaction() as tx:
        tx.execute(
            text("UPDATE cleave.cluster_policy SET policy = CAST(:p AS jsonb)"), {"p": json.dumps(cluster)}
        )
        insert = "INSERT INTO cleave.namespace_policy (namespace, policy, actor) VALUES (:n, CAST(:p AS jsonb), 'x')"
        tx.execute(text(insert), [{"n": n, "p": json.dumps(p)} for n, p in namespaces.items()])
        update = "UPDATE cleave.topic SET policy = CAST(:p AS jsonb), row_version = row_version + 1 WHERE topic_id = :i"
        tx.execute(text(update), [{"i": i, "p": json.dumps(p)} for i, p in topics_.items()])


@pytest.mark.drawn
@pytest.mark.parametrize("seed", range(cases(3, 20)))
def test_every_view_that_resolves_a_policy_gives_what_the_domain_gives(
    driver: StoreDriver, seed: int
) -> None:
    """Value and level for people, thresholds for load records, and the length of a tick of the load memory."""
    rng = random.Random(seed)
    names = {f"t/{n}": [driver.create(f"topic://t/{n}/{x}").topic_id for x in "abc"] for n in "mn"}
    cluster = drawn_document(rng, PARAMETERS)
    namespaces = {name: drawn_document(rng, OVERRIDABLE_PARAMETERS) for name in names}
    own = {i: drawn_document(rng, OVERRIDABLE_PARAMETERS) for ids in names.values() for i in ids}
    store_documents(driver, cluster, namespaces, own)

    limits = {row["topic_id"]: row for row in driver.do(loads.baseline).thresholds.to_pylist()}
    ticks = dict(driver.sql("SELECT topic_id, tick_seconds FROM cleave.memory_in_force"))
    expected_ticks = {}
    for namespace, topic_id in ((name, i) for name, ids in names.items() for i in ids):
        levels = [
            PolicyOverride.from_document(document) for document in (namespaces[namespace], own[topic_id])
        ]
        policy = resolve(AutoScalePolicy.from_document(cluster), *levels)
        shown = in_force(driver, topic_id)
        assert {parameter: value for parameter, (value, _) in shown.items()} == policy.to_document()
        for parameter, (_, level) in shown.items():
            changed = (
                "default"
                if cluster.get(parameter) in (None, AutoScalePolicy().to_document()[parameter])
                else "cluster"
            )
            nearest = "namespace" if parameter in levels[0].parameters else changed
            assert level == ("topic" if parameter in levels[1].parameters else nearest), parameter
        assert {name: limits[topic_id][name] for name in loads.THRESHOLD_SCHEMA.names[1:]} == {
            name: getattr(policy, name) for name in loads.THRESHOLD_SCHEMA.names[1:]
        }
        if policy.profile == "adaptive":
            expected_ticks[topic_id] = max(policy.load_memory_seconds, TICKS_OF_MEMORY) / TICKS_OF_MEMORY
    assert ticks == pytest.approx(expected_ticks)


def test_removing_a_level_uncovers_the_one_above(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    driver.do(policies.set_cluster, AutoScalePolicy(max_segments=32), actor="ann")
    driver.do(policies.set_namespace, "t/n", PolicyOverride(max_segments=16), actor="ann")
    driver.do(policies.set_topic, topic_id, PolicyOverride(max_segments=8))

    def most() -> int:
        return driver.policy(topic_id).max_segments

    steps = [most()]
    driver.do(policies.set_topic, topic_id, None)
    steps.append(most())
    driver.do(policies.set_namespace, "t/n", PolicyOverride(), actor="ann")
    steps.append(most())
    driver.do(policies.set_cluster, AutoScalePolicy(), actor="ann")
    steps.append(most())

    assert steps == [8, 16, 32, 64]
    assert driver.sql("SELECT policy FROM cleave.topic WHERE policy IS NOT NULL") == []


def test_a_level_is_validated_together_with_those_above(driver: StoreDriver) -> None:
    """Each document alone is fine; it is the merged policy that would not do."""
    topic_id = driver.create().topic_id
    driver.do(policies.set_cluster, AutoScalePolicy(min_segments=10), actor="ann")

    with pytest.raises(InvalidPolicy, match=r"max_segments = 4 must be >= min_segments = 10"):
        driver.do(policies.set_namespace, "t/n", PolicyOverride(max_segments=4), actor="ann")

    driver.do(
        policies.set_namespace,
        "t/n",
        PolicyOverride(split_msg_rate_in=500.0, merge_msg_rate_in=100.0),
        actor="ann",
    )

    with pytest.raises(InvalidPolicy, match=r"split_msg_rate_in = 500.0 must be > merge_msg_rate_in = 600.0"):
        driver.do(policies.set_topic, topic_id, PolicyOverride(merge_msg_rate_in=600.0))
    with pytest.raises(InvalidPolicy, match="max_segments"):
        driver.do(policies.set_cluster, AutoScalePolicy(max_segments=0), actor="ann")
    assert driver.do(topics.get_topic, topic_id).policy is None


def test_a_stale_version_is_refused_and_the_sentence_says_which_is_in_force(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    _, cluster_version = driver.do(policies.stored_version)
    driver.do(policies.set_cluster, AutoScalePolicy(), actor="ann", seen_row_version=cluster_version)
    driver.do(policies.set_namespace, "t/n", PolicyOverride(max_segments=8), actor="ann", seen_row_version=0)
    topic = driver.do(topics.get_topic, topic_id)
    driver.do(
        policies.set_topic, topic_id, PolicyOverride(max_segments=8), seen_row_version=topic.row_version
    )

    with pytest.raises(LostRace, match="cluster is at version 2, not 1"):
        driver.do(policies.set_cluster, AutoScalePolicy(), actor="bob", seen_row_version=cluster_version)
    with pytest.raises(LostRace, match="namespace t/n is at version 1, not 0"):
        driver.do(policies.set_namespace, "t/n", PolicyOverride(), actor="bob", seen_row_version=0)
    with pytest.raises(LostRace, match="read the policy again"):
        driver.do(policies.set_topic, topic_id, None, seen_row_version=topic.row_version)

    assert driver.do(policies.stored_version, namespace="t/n") == ({"max_segments": 8}, 1)


def test_of_two_who_set_a_namespaces_first_policy_one_is_told(driver: StoreDriver) -> None:
    """There is no row to lock yet: the later one waits at the first one's insert, and then sees a version it did not read."""
    with ThreadPoolExecutor(1) as pool:
        with driver.store.transaction() as first:
            policies.set_namespace(first, "t/n", PolicyOverride(max_segments=8), actor="ann")
            second = pool.submit(
                driver.do, policies.set_namespace, "t/n", PolicyOverride(max_segments=9), actor="bob"
            )
            wait_until(lambda: driver.sql(SOMEBODY_WAITS), message="the second waits for the first")
        with pytest.raises(LostRace, match="has just set the policy"):
            second.result()

    assert driver.sql(NAMESPACE_ACTORS) == [("ann", 1)]


@pytest.mark.parametrize("level", ["namespace", "topic"])
def test_the_levels_above_stand_still_while_a_policy_is_validated_with_them(
    driver: StoreDriver, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    topic_id = driver.create().topic_id
    validating = policies.validate
    others: list[Future[object]] = []

    def validate_meanwhile(policy: AutoScalePolicy) -> None:
        if not others:
            others.append(pool.submit(driver.do, policies.set_cluster, AutoScalePolicy(), actor="bob"))
            wait_until(lambda: others[0].done() or driver.sql(SOMEBODY_WAITS), message="the other one waits")
            assert not others[0].done()
        validating(policy)

    monkeypatch.setattr(policies, "validate", validate_meanwhile)
    with ThreadPoolExecutor(1) as pool:
        if level == "topic":
            driver.do(policies.set_topic, topic_id, PolicyOverride(max_segments=8))
        else:
            driver.do(policies.set_namespace, "t/n", PolicyOverride(max_segments=8), actor="ann")
        others[0].result()


def test_versions_of_a_namespace_go_on_after_its_policy_was_removed(driver: StoreDriver) -> None:
    driver.do(policies.set_namespace, "t/n", PolicyOverride(max_segments=8), actor="ann")
    driver.do(policies.set_namespace, "t/n", PolicyOverride(), actor="ann")
    driver.do(policies.set_namespace, "t/n", PolicyOverride(max_segments=8), actor="bob")

    assert driver.sql(NAMESPACE_ACTORS) == [("bob", 3)]


def test_only_a_live_topic_takes_a_policy(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    driver.delete(topic_id)

    with pytest.raises(TopicNotLive):
        driver.do(policies.set_topic, topic_id, PolicyOverride(max_segments=8))
    with pytest.raises(TopicNotFound):
        driver.do(policies.set_topic, topic_id + 1, PolicyOverride(max_segments=8))


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ('{"a_parameter_of_tomorrow": 1}', "'a_parameter_of_tomorrow' cannot be set here"),
        (f'{{"split_msg_rate_in": 1{"0" * 400}}}', "split_msg_rate_in = 1000"),
        (f'{{"max_segments": 1{"0" * 5000}}}', "max_segments = '1000"),
        ('{"max_segments": "8"}', "max_segments = '8'; give a whole number"),
        ('{"enabled": [false]}', "enabled = [False]; give true or false"),
        (f'{{"enabled": {"[" * 5000}{"]" * 5000}}}', "nested too deeply"),
    ],
    ids=["unknown", "too large", "5,000 digits", "no number", "a list", "nested deeply"],
)
def test_a_document_nobody_here_understands_disables_and_says_why(document: str, says: str) -> None:
    for level, documents in (
        ("cluster", (document,)),
        ("namespace", ("{}", document)),
        ("topic", ("{}", None, document)),
    ):
        [violation] = violations(policies.read_policy(*documents))
        assert str(violation).startswith(f"unreadable: {level}'s policy: ")
        assert says in str(violation)


@pytest.mark.parametrize("level", ["cluster", "namespace", "topic"])
def test_a_stored_number_that_python_does_not_convert_sets_the_policy_aside(
    driver: StoreDriver, level: str
) -> None:
    topic_id = driver.create("topic://t/n/a").topic_id
    document = f'{{"max_segments": {"9" * 5000}, "min_segments": 2}}'
    statement = {
        "cluster": "UPDATE cleave.cluster_policy SET policy = CAST(:p AS jsonb)",
        "namespace": "INSERT INTO cleave.namespace_policy (namespace, policy, actor) VALUES ('t/n', CAST(:p AS jsonb), 'x')",
        "topic": "UPDATE cleave.topic SET policy = CAST(:p AS jsonb), row_version = row_version + 1",
    }[level]
    with driver.store.transaction() as tx:
        tx.execute(text(statement), {"p": document})

    [violation] = violations(driver.do(policies.in_force, topic_id))

    assert str(violation).startswith(f"unreadable: {level}'s policy: ")
    assert "max_segments = '999" in str(violation)


def test_documents_are_read_level_by_level() -> None:
    read = policies.read_policy('{"max_segments": 8, "enabled": null}', None, '{"min_segments": 2}')
    assert read == AutoScalePolicy(max_segments=8, min_segments=2)


def test_the_controllers_role_may_do_all_this(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    with driver.store.transaction() as tx:
        tx.execute(text("SET LOCAL ROLE cleave_controller"))
        policies.set_cluster(tx, AutoScalePolicy(max_segments=32), actor="ann")
        policies.set_namespace(tx, "t/n", PolicyOverride(max_segments=16), actor="ann")
        policies.set_topic(tx, topic_id, PolicyOverride(max_segments=8))

    assert driver.policy(topic_id).max_segments == 8
