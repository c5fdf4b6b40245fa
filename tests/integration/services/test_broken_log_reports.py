"""Segments that clients report: a look at that log and no more, a repair where the log is really missing or closed."""

from __future__ import annotations

import pytest

from controller.dataplane.base import LogState
from controller.domain.errors import TopicNotFound
from controller.domain.operation import OperationKind
from controller.services.reconciler import Suspects, broken_log_reports
from controller.services.segment_admin import splitting
from tests.support.bench import TOPIC, Bench
from tests.support.faulty_data_plane import Fault, FaultyDataPlane, PlannedFault
from tests.support.manual_clock import ManualClock


def calls(plane: FaultyDataPlane) -> list[str]:
    """Names of the calls so far."""
    return [name for name, _ in plane.log]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def plane(bench: Bench) -> FaultyDataPlane:
    """The bench's plane; it counts calls."""
    return FaultyDataPlane(bench.runner_plane)


@pytest.fixture
def reported(bench: Bench, plane: FaultyDataPlane, clock: ManualClock) -> Suspects:
    bench.topic_with(segments=2)
    return Suspects(bench.store, {bench.plane.name: plane.as_data_plane()}, clock)


def test_a_closed_log_is_replaced(bench: Bench, reported: Suspects) -> None:
    bench.plane.terminate_segment(bench.log_of(1))
    reported.report(TOPIC, 1)

    assert reported.check_next()
    [operation] = bench.live_operations()
    assert (operation.kind, operation.parent_ids) == (OperationKind.HEAL, (1,))


def test_a_missing_log_is_made_once_more_with_its_subscriptions(bench: Bench, reported: Suspects) -> None:
    bench.plane.delete_segment(bench.log_of(1))
    reported.report(TOPIC, 1)

    assert reported.check_next()
    assert bench.plane.segment_state(bench.log_of(1)) is LogState.OPEN
    assert list(bench.plane.list_subscriptions(bench.log_of(1))) == ["billing"]


def test_a_false_report_costs_one_call_about_that_log(
    bench: Bench, reported: Suspects, plane: FaultyDataPlane
) -> None:
    reported.report(TOPIC, 0)

    assert reported.check_next()
    assert calls(plane) == ["describe_logs"]
    assert bench.live_operations() == []


@pytest.mark.parametrize("segment_id", [0, 7])
def test_a_segment_that_is_not_active_is_not_looked_at(
    bench: Bench, reported: Suspects, segment_id: int
) -> None:
    bench.reshape(splitting(0))
    reported.report(TOPIC, segment_id)

    assert not reported.check_next()


def test_what_an_operation_is_about_is_left_to_its_runner(
    bench: Bench, reported: Suspects, plane: FaultyDataPlane
) -> None:
    bench.intend(splitting(0))
    bench.plane.terminate_segment(bench.log_of(0))
    reported.report(TOPIC, 0)

    assert reported.check_next()
    assert calls(plane) == []


def test_a_topic_is_looked_at_seldom_however_often_it_is_reported(
    bench: Bench, reported: Suspects, plane: FaultyDataPlane, clock: ManualClock
) -> None:
    for _ in range(50):
        reported.report(TOPIC, 0)
        reported.report(TOPIC, 1)
        reported.check_next()

    assert len(calls(plane)) == 1
    clock.seconds += broken_log_reports.TOPIC_SECONDS
    assert reported.check_next()
    assert not reported.check_next()
    assert len(calls(plane)) == 2


@pytest.mark.parametrize("bound", ["MOST_TOPICS", "MOST_SEGMENTS"])
def test_no_more_wait_than_the_bounds(
    bench: Bench,
    reported: Suspects,
    plane: FaultyDataPlane,
    monkeypatch: pytest.MonkeyPatch,
    bound: str,
) -> None:
    monkeypatch.setattr(broken_log_reports, bound, 0)
    bench.plane.delete_segment(bench.log_of(1))
    reported.report(TOPIC, 1)
    reported.check_next()

    assert calls(plane) == []


def test_a_topic_that_is_not_there_is_refused(reported: Suspects) -> None:
    with pytest.raises(TopicNotFound):
        reported.report("topic://acme/shop/nothing", 0)


def test_a_log_without_the_cursor_of_a_subscription_gets_it(bench: Bench, reported: Suspects) -> None:
    bench.plane.delete_subscription(bench.log_of(1), "billing")
    reported.report(TOPIC, 1)

    assert reported.check_next()
    assert list(bench.plane.list_subscriptions(bench.log_of(1))) == ["billing"]


def test_a_check_that_fails_is_forgotten_and_a_later_report_is_checked(
    bench: Bench, clock: ManualClock
) -> None:
    bench.topic_with(segments=2)
    plane = FaultyDataPlane(bench.runner_plane, PlannedFault(Fault.REFUSED, "describe_logs"))
    reported = Suspects(bench.store, {bench.plane.name: plane.as_data_plane()}, clock)
    bench.plane.delete_segment(bench.log_of(1))
    reported.report(TOPIC, 1)

    assert reported.check_next()
    clock.seconds += broken_log_reports.TOPIC_SECONDS
    assert not reported.check_next()
    reported.report(TOPIC, 1)
    assert reported.check_next()
    assert bench.plane.segment_state(bench.log_of(1)) is LogState.OPEN


def test_further_segments_of_a_topic_that_waits_are_checked_although_no_other_topic_may_wait(
    bench: Bench, reported: Suspects, plane: FaultyDataPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broken_log_reports, "MOST_TOPICS", 1)
    reported.report(TOPIC, 0)
    reported.report(TOPIC, 1)

    assert reported.check_next()
    assert plane.log == [("describe_logs", ([bench.log_of(0), bench.log_of(1)],))]
