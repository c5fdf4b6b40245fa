"""Situations: what a decision looks at is what is stored, and many topics cost no more statements than one."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, text

from benchmarks.fleet import analyze, insert_fleet
from controller.clock import to_ms
from controller.domain.decision import CONSUMER_COUNT, RefusalReason
from controller.domain.entry_buckets import MOST_UNITS
from controller.domain.evaluation_input import Capabilities, EvaluationInput
from controller.domain.evaluator import decide
from controller.domain.hash_range import HashRange
from controller.domain.operation import Operation, OperationState
from controller.domain.policy import AutoScalePolicy, PolicyOverride
from controller.domain.reshape import ReshapeKind, plan_heal, plan_merge, plan_rebucket, plan_split
from controller.store.decisions.evaluation_inputs import (
    live_elsewhere,
    load_evaluation_inputs,
    lock_free_topics,
)
from controller.store.journal.operations import get_operation
from controller.store.topics import held_topics, policies
from controller.store.topics.subscriptions import SubscriptionKind
from tests.support.ancestry import merge_depth_by_ancestry
from tests.support.plans import plans_of, statements_of
from tests.support.reports import milliseconds, report_load
from tests.support.store_driver import StoreDriver, request

PLANES = {"embedded": Capabilities(max_children=4)}
RING = HashRange(0, 65_535)


def situation(driver: StoreDriver, topic_id: int) -> EvaluationInput:
    """The one topic's."""
    return driver.do(load_evaluation_inputs, [topic_id], PLANES)[topic_id]


def register(driver: StoreDriver, topic_id: int, subscription: str, *names: str) -> None:
    """Registers consumers, whatever their kind."""
    for name in names:
        driver.sql(
            "INSERT INTO cleave.consumer (topic_id, subscription, name) VALUES (:id, :subscription, :name)",
            id=topic_id,
            subscription=subscription,
            name=name,
        )


def test_an_ancestor_counts_only_for_the_hashes_that_no_nearer_ancestor_has(driver: StoreDriver) -> None:
    topic_id = driver.create(segments=1).topic_id
    driver.do(policies.set_topic, topic_id, PolicyOverride(profile="adaptive"))
    driver.do(report_load, topic_id, {0: 10.0})
    driver.split(topic_id, 0)
    driver.do(report_load, topic_id, {1: 7.0})
    driver.reshape(topic_id, lambda layout: plan_merge(layout, 1, 2))

    [load] = situation(driver, topic_id).loads.values()

    # 7 of segment 1, and half of segment 0 for segment 2, which was not measured.
    assert load.stats.msg_rate_in == 12.0


def test_ancestors_beside_a_segment_do_not_count_for_it(driver: StoreDriver) -> None:
    topic_id = driver.create(segments=1).topic_id
    driver.do(policies.set_topic, topic_id, PolicyOverride(profile="adaptive"))
    driver.do(report_load, topic_id, {0: 8.0})
    driver.split(topic_id, 0)
    driver.reshape(topic_id, lambda layout: plan_merge(layout, 1, 2))
    driver.reshape(topic_id, lambda layout: plan_split(layout, 3, RING.equal_cuts(4)))

    assert [load.stats.msg_rate_in for load in situation(driver, topic_id).loads.values()] == [2.0] * 4


def test_the_ancestors_of_a_topic_without_load_records_are_not_read(driver: StoreDriver) -> None:
    """After hundreds of reshapes, reading all of them took a tenth of a second for each decision."""
    topic_id = driver.create(segments=1).topic_id
    driver.do(policies.set_topic, topic_id, PolicyOverride(profile="adaptive"))
    driver.split(topic_id, 0)

    def ancestors_read(tx: Connection) -> int:
        load_evaluation_inputs(tx, [topic_id], PLANES)
        explain = "EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE cleave_situation_expected (ARRAY[%(topic_id)s])"
        plan = json.dumps(tx.exec_driver_sql(explain, {"topic_id": topic_id}).scalar_one())
        [rows] = re.findall(r'"Node Type": "Recursive Union".*?"Actual Rows": ([0-9.]+)', plan)
        return int(float(rows))

    assert driver.do(ancestors_read) == 0


def test_the_layout_is_that_of_the_active_segments_and_now_is_the_databases(driver: StoreDriver) -> None:
    topic_id = driver.create(segments=2, splits=[0]).topic_id
    driver.reshape(topic_id, lambda layout: plan_merge(layout, 3, 1))
    whole = driver.layout(topic_id)

    before = to_ms(driver.sql("SELECT clock_timestamp()")[0][0])  # type: ignore[arg-type]
    found = situation(driver, topic_id)

    assert found.layout.active == tuple(whole.active)
    assert (found.layout.epoch, found.layout.next_segment_id) == (whole.epoch, whole.next_segment_id)
    assert found.capabilities == PLANES["embedded"]
    assert before <= found.now <= to_ms(driver.sql("SELECT clock_timestamp()")[0][0])  # type: ignore[arg-type]


def _split_to_keep(driver: StoreDriver, topic_id: int, segment_id: int) -> Operation:
    """Intend a split whose segments are kept apart for two hours."""
    wanted = replace(request(), keep_seconds=7_200)
    return driver.intend_reshape(topic_id, lambda layout: plan_split(layout, segment_id), wanted).operation


def test_what_lies_in_a_segment_of_a_split_to_keep_is_kept_until_then(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    operation_id = driver.run(_split_to_keep(driver, topic_id, 0)).operation_id
    [(since, until)] = driver.sql(
        "SELECT intended_at, kept_until FROM inspect.operations WHERE operation_id = :id", id=operation_id
    )
    span = (to_ms(since), to_ms(until))

    assert span[1] - span[0] == 7_200_000, "exactly as long as wanted: a millisecond less reads as 120 min"
    assert until - since == timedelta(hours=2)
    assert situation(driver, topic_id).kept == {1: span, 2: span}
    driver.split(topic_id, 1)
    driver.reshape(topic_id, lambda layout: plan_heal(layout, 2))
    assert situation(driver, topic_id).kept == {3: span, 4: span, 5: span}
    driver.reshape(topic_id, lambda layout: plan_merge(layout, 4, 5))
    assert situation(driver, topic_id).kept == {3: span}, "a person joined what another kept apart"

    driver.sql(
        "UPDATE cleave.operation SET kept_until = intended_at WHERE operation_id = :id", id=operation_id
    )
    assert situation(driver, topic_id).kept == {}


def test_a_split_that_was_given_up_keeps_nothing(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    operation = _split_to_keep(driver, topic_id, 0)
    assert situation(driver, topic_id).kept == {}
    driver.sql(
        "UPDATE cleave.operation SET deadline = intended_at WHERE operation_id = :id",
        id=operation.operation_id,
    )
    assert driver.run(driver.do(get_operation, operation.operation_id)).state is OperationState.ABORTED
    driver.split(topic_id, 0)

    assert situation(driver, topic_id).kept == {}


def test_a_topic_is_held_while_its_logs_have_to_be_compared(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    assert not situation(driver, topic_id).is_held

    driver.do(held_topics.doubt, [topic_id])

    assert situation(driver, topic_id).is_held


def test_a_record_is_as_fresh_as_its_source_unless_it_fell_silent(driver: StoreDriver) -> None:
    topic_id = driver.create(segments=3).topic_id
    heard = datetime.now(UTC) - timedelta(seconds=5)
    driver.do(report_load, topic_id, {0: 10.0}, cold_for=timedelta(minutes=9))
    driver.do(report_load, topic_id, {1: 20.0}, silent_for=timedelta(minutes=7))
    driver.do(report_load, topic_id, {}, observed_at=heard + timedelta(seconds=5))

    loads = situation(driver, topic_id).loads

    assert set(loads) == {0, 1}
    assert loads[0].stats.rates == (10.0, 1000.0, 10.0, 1000.0)
    assert loads[0].cold_since is not None
    assert loads[0].modified_at - loads[0].cold_since == timedelta(minutes=9) / timedelta(milliseconds=1)
    assert loads[0].observed_at >= milliseconds(heard + timedelta(seconds=5))
    assert loads[1].modified_at - loads[1].observed_at == timedelta(minutes=7) / timedelta(milliseconds=1)


def test_load_of_sealed_segments_is_left_out(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    driver.do(report_load, topic_id, {0: 10.0})
    driver.split(topic_id, 0)
    driver.do(report_load, topic_id, {1: 5.0})

    assert set(situation(driver, topic_id).loads) == {1}


def test_consumers_of_stream_subscriptions_count_and_others_do_not(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    for name, kind in (
        ("billing", SubscriptionKind.STREAM),
        ("idle", SubscriptionKind.STREAM),
        ("work", SubscriptionKind.QUEUE),
    ):
        driver.subscribe(topic_id, name, kind)
    register(driver, topic_id, "billing", "a", "b")
    register(driver, topic_id, "work", "c", "d", "e")

    assert situation(driver, topic_id).stream_consumers == {"billing": 2, "idle": 0}


def test_a_session_whose_connection_broke_counts_until_it_is_given_up(driver: StoreDriver) -> None:
    """It may be back in a moment: nothing is merged under it."""
    topic_id = driver.create(subscriptions=["billing"]).topic_id
    register(driver, topic_id, "billing", "a", "b")

    driver.sql("UPDATE cleave.consumer SET disconnected_at = clock_timestamp() WHERE name = 'a'")

    assert situation(driver, topic_id).stream_consumers == {"billing": 2}


@pytest.mark.parametrize(
    ("child_ranges", "child_count"),
    [('["0000-7fff", "8000-bfff", "c000-ffff"]', 3), ('"halves"', 2), ("7", 2)],
)
def test_ranges_that_a_newer_program_has_written_hide_no_topic(
    driver: StoreDriver, child_ranges: str, child_count: int
) -> None:
    topic_id = driver.create(segments=1).topic_id
    driver.intend(topic_id, lambda layout: plan_split(layout, 0))
    driver.sql(
        "UPDATE cleave.operation SET parameters = parameters || jsonb_build_object('child_ranges', CAST(:ranges AS jsonb))"
        " WHERE topic_id = :id AND finished_at IS NULL RETURNING 1",
        id=topic_id,
        ranges=child_ranges,
    )

    [reshape] = situation(driver, topic_id).in_flight
    assert reshape.child_count == child_count


def test_cooldowns_are_read_from_the_commits_and_live_reshapes_from_the_journal(driver: StoreDriver) -> None:
    topic_id = driver.create(segments=3).topic_id
    split = driver.split(topic_id, 0)
    driver.reshape(topic_id, lambda layout: plan_merge(layout, 1, 2))
    live = driver.intend(topic_id, lambda layout: plan_split(layout, 3))

    found = situation(driver, topic_id)

    stamps = driver.sql(
        "SELECT last_split_at, last_merge_at FROM cleave.topic WHERE topic_id = :id", id=topic_id
    )
    assert (found.history.last_split_at, found.history.last_merge_at) == tuple(map(to_ms, stamps[0]))  # type: ignore[arg-type]
    assert found.history.last_rebucket_at is None
    [reshape] = found.in_flight
    assert (reshape.operation_id, reshape.kind) == (live.operation_id, ReshapeKind.SPLIT)
    assert (reshape.parent_ids, reshape.child_count) == ((3,), 2)
    [(intended_at,)] = driver.sql(
        "SELECT intended_at FROM cleave.operation WHERE operation_id = :id", id=live.operation_id
    )
    assert reshape.started_at == to_ms(intended_at)  # type: ignore[arg-type]
    assert reshape.operation_id != split.operation_id


def test_acts_for_consumers_are_told_from_others_and_the_places_that_they_make_are_counted(
    driver: StoreDriver,
) -> None:
    topic_id = driver.create(segments=2).topic_id
    for_consumers = replace(request(), reason=CONSUMER_COUNT)
    done = driver.intend_reshape(
        topic_id, lambda layout: plan_split(layout, 0, buckets=8), for_consumers
    ).operation
    [under_way] = situation(driver, topic_id).in_flight
    assert (under_way.for_consumers, under_way.child_places) == (True, 16)

    driver.run(done)
    driver.intend(topic_id, lambda layout: plan_split(layout, 1))
    found = situation(driver, topic_id)

    [(intended_at,)] = driver.sql(
        "SELECT intended_at FROM cleave.operation WHERE operation_id = :id", id=done.operation_id
    )
    assert found.history.last_consumer_act_at == to_ms(intended_at)  # type: ignore[arg-type]
    [other] = found.in_flight
    assert (other.for_consumers, other.child_places) == (False, 2)
    crowded = driver.intend(topic_id, lambda layout: plan_rebucket(layout, 2, 100, 1024))
    assert {one.operation_id: one.child_places for one in situation(driver, topic_id).in_flight}[
        crowded.operation_id
    ] == MOST_UNITS


def test_a_reshape_counts_as_in_flight_up_to_its_commit_and_not_after(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    operation = driver.intend(topic_id, lambda layout: plan_split(layout, 0))

    claimed = driver.claim(operation)
    seen = []
    while claimed.state.is_live:
        seen.append((claimed.state, len(situation(driver, topic_id).in_flight)))
        claimed = driver.step(claimed)

    assert dict(seen) == {
        OperationState.INTENDED: 1,
        OperationState.PREPARED: 1,
        OperationState.FENCING: 1,
        OperationState.FENCED: 1,
        OperationState.COMMITTED: 0,
    }


def test_the_policy_is_resolved_over_the_three_levels(driver: StoreDriver) -> None:
    ids = [driver.create(f"topic://t/{name}").topic_id for name in ("n/a", "n/b", "other/a")]
    driver.do(policies.set_cluster, AutoScalePolicy(max_segments=32), actor="ann")
    driver.do(policies.set_namespace, "t/n", PolicyOverride(max_segments=16), actor="ann")
    driver.do(policies.set_topic, ids[0], PolicyOverride(max_segments=8))

    found = driver.do(load_evaluation_inputs, ids, PLANES)

    assert [found[topic_id].policy.max_segments for topic_id in ids] == [8, 16, 32]


def test_a_policy_that_cannot_be_read_holds_back_its_own_topic_only(driver: StoreDriver) -> None:
    ids = [driver.create(f"topic://t/n/{name}", segments=2).topic_id for name in "ab"]
    for topic_id in ids:
        driver.do(report_load, topic_id, {0: 1e9})
    driver.sql(
        "UPDATE cleave.topic SET policy = CAST(:policy AS jsonb), row_version = row_version + 1 WHERE topic_id = :id",
        id=ids[0],
        policy='{"parameter_of_tomorrow": 1}',
    )

    verdicts = {
        topic_id: decide(found) for topic_id, found in driver.do(load_evaluation_inputs, ids, PLANES).items()
    }

    assert [refusal.reason for refusal in verdicts[ids[0]].refusals] == [RefusalReason.INVALID_POLICY]
    assert len(verdicts[ids[1]].decisions) == 1


def test_pulsars_exact_answers_get_the_ancestors_their_merge_depth_needs(driver: StoreDriver) -> None:
    topic_id = driver.create(segments=2).topic_id
    driver.reshape(topic_id, lambda layout: plan_merge(layout, 0, 1))
    driver.do(policies.set_topic, topic_id, PolicyOverride(strict_pulsar=True))

    found = situation(driver, topic_id)

    assert merge_depth_by_ancestry(found.layout, 2) == 1
    assert found.layout == driver.layout(topic_id)


def test_a_situation_reads_back_from_its_text_to_the_same_verdict(driver: StoreDriver) -> None:
    topic_id = driver.create(segments=4, subscriptions=["billing"]).topic_id
    register(driver, topic_id, "billing", *"abcdefgh")
    driver.do(report_load, topic_id, {0: 12_000.5, 1: 0.25, 2: 0.5}, cold_for=timedelta(hours=1))

    found = situation(driver, topic_id)

    assert decide(EvaluationInput.from_json(found.to_json())) == decide(found)


def test_topics_that_are_not_live_or_on_an_unknown_plane_have_none(driver: StoreDriver) -> None:
    creating = driver.intend_create("topic://t/n/creating").operation.topic_id
    deleted = driver.create("topic://t/n/deleted").topic_id
    driver.delete(deleted)
    live = driver.create("topic://t/n/live").topic_id

    assert set(driver.do(load_evaluation_inputs, [creating, deleted, live, 404], PLANES)) == {live}
    assert driver.do(load_evaluation_inputs, [live], {"pulsar": Capabilities()}) == {}
    assert driver.do(live_elsewhere, [creating, deleted, live], ["pulsar"]) == {live: "embedded"}
    assert driver.do(live_elsewhere, [live], ["embedded"]) == {}


def test_locking_never_waits_and_tells_whether_the_layout_moved(driver: StoreDriver) -> None:
    held, free = (driver.create(f"topic://t/n/{name}").topic_id for name in "ab")
    read = situation(driver, free).layout
    with driver.store.transaction() as other:
        other.execute(text("SELECT FROM cleave.topic WHERE topic_id = :id FOR UPDATE"), {"id": held})
        with driver.store.transaction() as tx:
            tx.execute(text("SET LOCAL lock_timeout = '2s'"))
            locked = lock_free_topics(tx, [held, free])

    assert set(locked) == {free}
    assert locked[free].is_unmoved(read)

    driver.intend(free, lambda layout: plan_split(layout, 0))

    assert not driver.do(lock_free_topics, [free])[free].is_unmoved(read)


def test_five_hundred_topics_take_as_many_statements_as_one_all_on_indexes(driver: StoreDriver) -> None:
    def count(tx: Connection, topics: int) -> int:
        return len(statements_of(tx, lambda: load_evaluation_inputs(tx, range(1, topics + 1), PLANES)))

    with driver.store.transaction() as tx:
        insert_fleet(tx, 20_000, 2)
    with driver.store.transaction() as tx:
        analyze(tx)
        count(tx, 1)  # which prepares them
        assert count(tx, 500) == count(tx, 1) == 4
        plans = plans_of(tx, lambda: load_evaluation_inputs(tx, range(1, 51), PLANES))

    assert "topic_pkey" in plans[0]
    assert "topic_id = ANY" in plans[1]  # where all are ACTIVE any index on topics will do
    assert "segment_load_pkey" in plans[1]
    big = ("topic t", "segment s", "segment_load l", "segment_parent p")
    assert not [plan for plan in plans if any(f"Seq Scan on {table}" in plan for table in big)]


def test_since_when_consumers_have_been_the_same_is_known(driver: StoreDriver) -> None:
    topic_id = driver.create(subscriptions=["billing"]).topic_id
    seen = [situation(driver, topic_id).consumers_changed_at]
    for change in (
        lambda: register(driver, topic_id, "billing", "a"),
        lambda: driver.sql("UPDATE cleave.consumer SET incarnation = 'next'"),
        lambda: driver.sql("DELETE FROM cleave.consumer"),
    ):
        driver.sql("SELECT pg_sleep(0.002)")  # instants are whole milliseconds
        change()
        seen.append(situation(driver, topic_id).consumers_changed_at)

    made, came, restarted, left = (one or 0 for one in seen)
    assert 0 < made < came == restarted < left
