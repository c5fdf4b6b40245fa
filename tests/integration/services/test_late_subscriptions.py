"""Subscriptions that are created after splits, and seeks behind their beginning: they reach every message that is kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from controller.domain.seek_target import EARLIEST, LATEST, SeekTarget
from controller.services import subscription_admin
from controller.services.operation_runner import Outcome, run_operation
from controller.services.segment_admin import splitting
from controller.store.journal.request_keys import Intent
from tests.support.bench import Bench
from tests.support.bench_planes import PulsarTopic
from tests.support.brokers import SharedBroker
from tests.support.faulty_data_plane import Fault, FaultyDataPlane, PlannedFault

HAS_TO_READ = """
    SELECT coalesce(array_agg(s.segment_id ORDER BY s.segment_id), '{}') FROM cleave.segment s
     WHERE s.state = 'SEALED' AND s.drained_at IS NULL AND cleave.awaits_reader(s.topic_id, s.segment_id, s.sealed_epoch)
"""
"""Sealed segments that readers are given."""


@pytest.fixture(params=["embedded", pytest.param("pulsar", marks=pytest.mark.pulsar)])
def bench(request: pytest.FixtureRequest, database: str) -> Iterator[Bench]:
    """On the embedded logs, and on a broker; the first segment has 3 messages and was read by `early`, then split."""
    here = None
    if request.param == "pulsar":
        broker: SharedBroker = request.getfixturevalue("pulsar_broker")
        here = PulsarTopic.fresh(broker.admin_url, broker.service_url, "late-subscriptions")
    with closing(Bench(database, here)) as bench:
        bench.topic_with(subscriptions=("early",))
        bench.publish(0)
        bench.finish(seeking(bench, "early", LATEST))
        bench.reshape(splitting(0))
        bench.finish(seeking(bench, "early", LATEST))
        bench.publish(1, 2)
        assert bench.scalar(HAS_TO_READ) == []
        yield bench


def seeking(bench: Bench, name: str, target: SeekTarget) -> Intent:
    return subscription_admin.seek_subscription(
        bench.store, bench.topic_name, name, target, bench.request(), release_seconds=0.0
    )


def create(bench: Bench, name: str, *, from_latest: bool) -> None:
    bench.finish(
        subscription_admin.create_subscription(
            bench.store, bench.topic_name, name, bench.request(), from_latest=from_latest
        )
    )


def test_it_begins_at_the_first_message_of_every_segment_that_exists(bench: Bench) -> None:
    create(bench, "late", from_latest=False)
    assert bench.unread("late") == 5
    assert bench.scalar(HAS_TO_READ) == [0]
    assert bench.settle() == []


def test_from_latest_the_cursors_that_an_application_made_stay(bench: Bench) -> None:
    log = bench.log_of(1)
    bench.plane.create_subscription(log, "late")
    unread = bench.plane.backlog(log, "late")
    assert unread > 0

    create(bench, "late", from_latest=True)

    assert bench.plane.backlog(log, "late") == bench.unread("late") == unread


def test_from_latest_it_begins_behind_everything_published_so_far(bench: Bench) -> None:
    create(bench, "late", from_latest=True)
    bench.publish(2, 4)
    assert bench.unread("late") == 4
    assert bench.scalar(HAS_TO_READ) == []
    assert bench.settle() == []


def test_from_latest_the_cursors_that_a_reshape_beside_it_has_made_stay(bench: Bench) -> None:
    reshape = bench.intend(splitting(1)).operation
    intent = subscription_admin.create_subscription(
        bench.store, bench.topic_name, "late", bench.request(), from_latest=True
    )
    bench.drive(reshape.operation_id)
    bench.publish(3, 4)

    bench.finish(intent)

    assert bench.unread("late") == bench.plane.backlog(bench.log_of(3), "late") == 4


def test_from_latest_a_cursor_of_an_attempt_that_died_before_it_moved_the_cursor_is_moved(
    bench: Bench,
) -> None:
    intent = subscription_admin.create_subscription(
        bench.store, bench.topic_name, "late", bench.request(), from_latest=True
    )
    faulty = FaultyDataPlane(bench.runner_plane, PlannedFault(Fault.REFUSED, "skip_all", times=1))
    planes = {bench.plane.name: faulty.as_data_plane()}
    assert run_operation(bench.context(planes=planes), intent.operation.operation_id) is Outcome.DEFERRED
    assert bench.unread("late") > 0

    bench.finish(intent)

    assert bench.unread("late") == 0


def test_a_seek_reaches_behind_the_subscriptions_beginning(bench: Bench) -> None:
    create(bench, "late", from_latest=True)
    bench.finish(seeking(bench, "late", EARLIEST))
    assert bench.unread("late") == 5
    assert bench.scalar(HAS_TO_READ) == [0]
    assert bench.settle() == []


def test_a_seek_to_an_instant_leaves_alone_what_was_sealed_long_before(bench: Bench) -> None:
    create(bench, "late", from_latest=True)
    bench.execute(
        "UPDATE cleave.segment SET sealed_at = sealed_at - interval '1 hour' WHERE state = 'SEALED'"
    )
    now_ms = bench.scalar("SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)")
    bench.finish(seeking(bench, "late", SeekTarget(now_ms)))
    assert bench.plane.backlog(bench.log_of(0), "late") is None
    assert bench.unread("late") == 0
