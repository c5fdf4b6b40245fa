"""Sixteen processes change the same topics in every way at once, on real logs; afterwards every law holds.

No update is lost, the ring has no gap and no overlap, no id is used twice, no subscription is missing on a log,
and no log of a topic is touched by the deletion of an earlier topic of its name.
"""

from __future__ import annotations

import multiprocessing
import secrets
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from controller.dataplane.base import LogState
from controller.dataplane.embedded import EmbeddedDataPlane
from controller.domain.errors import NotFound
from controller.services.deletion_sweeper import sweep
from controller.services.operation_runner import RunnerContext, run_due
from controller.store.journal import deletion_entries
from controller.store.topics import policies, subscriptions, topics
from tests.support.churn import CALL_TIMEOUT_SECONDS, NAMESPACE, ProcessRecord, churn
from tests.support.live_operations import live_operations
from tests.support.store_driver import StoreDriver
from tests.support.waiting import wait_until

PROCESSES = 16
NAMES = [f"topic://{NAMESPACE}/{name}" for name in "abcd"]


@pytest.fixture
def plane(database: str) -> Iterator[EmbeddedDataPlane]:
    plane = EmbeddedDataPlane(database, call_timeout_seconds=CALL_TIMEOUT_SECONDS)
    yield plane
    plane.close()


@pytest.mark.timeout(300)
def test_sixteen_processes_break_no_law(driver: StoreDriver, database: str, plane: EmbeddedDataPlane) -> None:
    _play_and_check(driver, database, plane, rounds=10)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_sixteen_processes_break_no_law_in_thousands_of_rounds(
    driver: StoreDriver, database: str, plane: EmbeddedDataPlane
) -> None:
    _play_and_check(driver, database, plane, rounds=250)


def _play_and_check(driver: StoreDriver, database: str, plane: EmbeddedDataPlane, rounds: int) -> None:
    seed = secrets.randbelow(10**6) * PROCESSES
    print(f"seeds {seed} to {seed + PROCESSES - 1}")  # noqa: T201 - pytest shows it when the test fails
    records = _play(database, seed, rounds)
    outcomes = sum((record.outcomes for record in records), Counter[str]())
    print(dict(sorted(outcomes.items())))  # noqa: T201
    _settle(driver, plane)

    assert sum(outcomes.values()) == PROCESSES * rounds
    _check_updates(driver, records)
    _check_request_keys(records)
    _check_identities(driver)
    _check_histories(driver)
    _check_logs(driver, plane)


def _play(database: str, seed: int, rounds: int) -> list[ProcessRecord]:
    context = multiprocessing.get_context("forkserver")  # a fork of this process would share its connections
    context.set_forkserver_preload(["tests.support.churn"])
    with ProcessPoolExecutor(PROCESSES, mp_context=context) as pool:
        players = [pool.submit(churn, database, seed + n, rounds, NAMES) for n in range(PROCESSES)]
        return [player.result() for player in players]


def _settle(driver: StoreDriver, plane: EmbeddedDataPlane) -> None:
    """Let every operation end and every superfluous log go."""
    planes = {"embedded": plane}
    context = RunnerContext(store=driver.store, planes=planes, runner_id="settler", lease_seconds=30.0)

    def all_ended() -> bool:
        run_due(context, limit=100)
        return not driver.do(live_operations)

    def all_gone() -> bool:
        sweep(driver.store, planes)
        return not driver.do(deletion_entries.list_open)

    wait_until(all_ended, timeout_seconds=120, message="operations stay live")
    wait_until(all_gone, timeout_seconds=120, message="deletion_entries stay open")


def _check_updates(driver: StoreDriver, records: list[ProcessRecord]) -> None:
    """As many increments in the database as processes saw succeed."""
    told = sum((record.bumps for record in records), Counter[int]())
    stored = driver.sql(
        "SELECT topic_id, CAST(properties ->> 'bumps' AS bigint) FROM cleave.topic WHERE properties ? 'bumps'"
    )
    writes = sum(record.namespace_writes for record in records)

    assert {topic_id: bumps for topic_id, bumps in stored} == dict(told)  # noqa: C416 - rows are not pairs to mypy
    assert driver.do(policies.stored_version, namespace=NAMESPACE)[1] == writes


def _check_request_keys(records: list[ProcessRecord]) -> None:
    """Everybody who came with a key got the same operation."""
    operations_of_key: dict[str, set[int]] = {}
    for record in records:
        for key, operation_id in record.operation_of_key.items():
            operations_of_key.setdefault(key, set()).add(operation_id)

    assert {key: ids for key, ids in operations_of_key.items() if len(ids) > 1} == {}


def _check_identities(driver: StoreDriver) -> None:
    """Each id and log was reserved once per name, and every segment is one that was reserved."""
    twice = driver.sql("""
        SELECT t.name, c.segment_id FROM cleave.operation_child c JOIN cleave.topic t USING (topic_id)
         GROUP BY t.name, c.segment_id HAVING count(*) > 1
    """)
    unreserved = driver.sql("""
        SELECT s.topic_id, s.segment_id FROM cleave.segment s
          LEFT JOIN cleave.operation_child c USING (topic_id, segment_id, backing_topic) WHERE c.operation_id IS NULL
    """)
    assert (twice, unreserved) == ([], [])


def _check_histories(driver: StoreDriver) -> None:
    """Epochs without a gap, and at each of them a layout that tiles the ring."""
    for topic_id, epoch, changes in driver.sql("""
        SELECT t.topic_id, t.epoch, array_agg(c.epoch ORDER BY c.epoch) FROM cleave.topic t
          JOIN cleave.layout_change c USING (topic_id) GROUP BY t.topic_id
    """):
        assert changes == list(range(epoch + 1))
        for past in changes:
            driver.layout_at(topic_id, past).check_invariants()


def _check_logs(driver: StoreDriver, plane: EmbeddedDataPlane) -> None:
    """The logs on the data plane are those of the layout, open or closed as it says, with its subscriptions."""
    for name in NAMES:
        try:
            topic = driver.do(topics.find_topic, name)
        except NotFound:
            assert plane.list_segments(name) == []
            continue
        recorded = driver.do(subscriptions.list_subscriptions, topic.topic_id)
        logs = driver.sql(
            """SELECT backing_topic, state, sealed_epoch FROM cleave.segment
                WHERE topic_id = :id AND pruned_epoch IS NULL ORDER BY backing_topic""",
            id=topic.topic_id,
        )
        assert sorted(plane.list_segments(name)) == [log for log, _state, _sealed in logs]
        for log, state, sealed_epoch in logs:
            wanted = {
                row.name for row in recorded if sealed_epoch is None or sealed_epoch > row.created_epoch
            }
            found = set(plane.list_subscriptions(log))
            assert plane.segment_state(log) is (LogState.OPEN if state == "ACTIVE" else LogState.TERMINATED)
            assert wanted <= found <= {row.name for row in recorded}, log
