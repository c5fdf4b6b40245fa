"""The creator of a log is recorded once, and one call tells all that a deletion has to know, on every data plane."""

from __future__ import annotations

import secrets

import pytest

from controller.dataplane.base import CursorReport, LogReport, LogState, SetWiseDataPlane, Successor
from controller.domain.hash_range import HashRange
from controller.domain.log_origin import LogOrigin
from controller.domain.segment import segment_descriptor
from tests.support.planes import Planes
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration


def name(planes: Planes) -> str:
    """A log that does not exist."""
    return planes.plane.backing_topic(planes.topic(), "0000-ffff-0")


def origin() -> LogOrigin:
    """An origin like no other."""
    return LogOrigin(secrets.token_hex(16), 3, (1, 2), (4096, 32768))


def report(plane: SetWiseDataPlane, log: str) -> LogReport:
    """The report on one log."""
    return plane.describe_logs([log])[log]


class TestOrigin:
    def test_a_successor_keeps_the_origin_it_was_created_with(
        self, planes: Planes, plane: SetWiseDataPlane
    ) -> None:
        log, first = name(planes), origin()

        born = plane.create_successors([Successor(log, (), ("s",), origin=first)])
        again = plane.create_successors([Successor(log, (), ("s",), origin=origin())])

        assert (born[log].origin, again[log].origin) == (first, first)
        assert report(plane, log).origin == first

    def test_a_segment_keeps_the_origin_it_was_created_with(
        self, planes: Planes, plane: SetWiseDataPlane
    ) -> None:
        log, first = name(planes), origin()

        plane.create_segment(log, ["s"], first)
        plane.create_segment(log, ["s"], origin())

        assert report(plane, log).origin == first

    def test_each_log_of_a_call_has_its_own(self, planes: Planes, plane: SetWiseDataPlane) -> None:
        old, new = (name(planes), origin()), (name(planes), origin())
        plane.create_segment(old[0], [], old[1])

        born = plane.create_successors(
            [Successor(new[0], (), ("s",), origin=new[1]), Successor(old[0], (), ("s",), origin=origin())]
        )

        assert {log: one.origin for log, one in born.items()} == dict([old, new])

    def test_a_log_that_was_created_without_an_origin_stays_without(
        self, planes: Planes, plane: SetWiseDataPlane
    ) -> None:
        log, other = planes.log(), name(planes)
        fresh = plane.create_successors([Successor(other, (), ())])

        born = plane.create_successors([Successor(log, (), (), origin=origin())])

        assert (fresh[other].origin, born[log].origin, report(plane, log).origin) == (None, None, None)

    def test_it_outlives_the_termination(self, planes: Planes, plane: SetWiseDataPlane) -> None:
        log, first = name(planes), origin()
        plane.create_segment(log, [], first)
        plane.terminate_segment(log)

        assert report(plane, log) == LogReport(LogState.TERMINATED, first, False, {})
        assert plane.create_successors([Successor(log, (), (), origin=origin())])[log].origin == first

    def test_a_log_that_is_created_anew_has_the_new_one(
        self, planes: Planes, plane: SetWiseDataPlane
    ) -> None:
        log, second = name(planes), origin()
        plane.create_segment(log, [], origin())
        plane.delete_segment(log)

        born = plane.create_successors([Successor(log, (), (), origin=second)])

        assert (born[log].origin, report(plane, log).origin) == (second, second)

    def test_an_origin_without_parents_and_boundaries_is_one_too(
        self, planes: Planes, plane: SetWiseDataPlane
    ) -> None:
        log, first = name(planes), LogOrigin("token", 0, (), ())
        plane.create_segment(log, [], first)

        assert report(plane, log).origin == first


class TestReports:
    def test_a_missing_log_is_reported_as_missing(self, planes: Planes, plane: SetWiseDataPlane) -> None:
        found = report(plane, name(planes))

        assert found == LogReport(LogState.MISSING, None, False, {})
        assert (found.is_unused, found.is_read_to_end) == (False, False)

    def test_a_fresh_log_is_unused(self, planes: Planes, plane: SetWiseDataPlane) -> None:
        found = report(plane, planes.log("a", "b"))

        assert (found.state, found.is_unused, found.is_read_to_end) == (LogState.OPEN, True, False)
        assert dict(found.cursors) == {"a": CursorReport(0), "b": CursorReport(0)}

    def test_a_terminated_log_that_was_never_used_is_read_to_its_end(
        self, planes: Planes, plane: SetWiseDataPlane
    ) -> None:
        log = planes.log("s")
        plane.terminate_segment(log)

        found = report(plane, log)

        assert (found.state, found.is_unused, found.is_read_to_end) == (LogState.TERMINATED, True, True)

    def test_each_subscription_has_its_own_position(self, planes: Planes, plane: SetWiseDataPlane) -> None:
        log = planes.log("half", "none", "all")
        for payload in (b"1", b"2", b"3"):
            planes.send(log, payload)
        planes.drain(log, "all")
        reader = planes.reader(log, "half")
        reader.acknowledge(planes.read(reader, 3)[0].position)
        plane.terminate_segment(log)
        planes.settles_at(log, "half", 2)
        planes.settles_at(log, "all", 0)

        found = report(plane, log)

        assert {subscription: one.unread for subscription, one in found.cursors.items()} == {
            "half": 2,
            "none": 3,
            "all": 0,
        }
        assert (found.state, found.is_unused, found.is_read_to_end) == (LogState.TERMINATED, False, False)

    def test_a_log_is_read_to_its_end_once_it_is_terminated_and_every_subscription_has_it(
        self, planes: Planes, plane: SetWiseDataPlane
    ) -> None:
        log = planes.log("a", "b")
        planes.send(log, b"1", b"2")
        planes.drain(log, "a")
        plane.skip_all(log, "b")
        planes.settles_at(log, "a", 0)
        assert not report(plane, log).is_read_to_end

        plane.terminate_segment(log)
        found = report(plane, log)

        assert (found.is_unused, found.is_read_to_end) == (False, True)

    def test_a_subscription_of_a_queue_is_told_from_one_that_is_read_in_order(
        self, planes: Planes, plane: SetWiseDataPlane
    ) -> None:
        log = planes.log("queue", "ordered", "unread")
        for payload in (b"1", b"2", b"3"):
            planes.send(log, payload)
        queue = planes.queue(log, "queue")
        _, second, _ = planes.read(queue, 3)
        assert queue.acknowledge([second.position]) == []
        ordered = planes.reader(log, "ordered")
        ordered.acknowledge(planes.read(ordered, 3)[2].position)
        planes.settles_at(log, "queue", 2)
        planes.settles_at(log, "ordered", 0)

        assert dict(report(plane, log).cursors) == {
            "queue": CursorReport(2, is_queue=True),
            "ordered": CursorReport(0, is_queue=False),
            "unread": CursorReport(3),
        }

    def test_a_queue_with_a_message_in_a_readers_hands_is_not_read_to_its_end(
        self, planes: Planes, plane: SetWiseDataPlane
    ) -> None:
        log = planes.log("queue")
        planes.send(log, b"1")
        queue = planes.queue(log, "queue")
        [message] = planes.read(queue, 1)
        plane.terminate_segment(log)
        assert not report(plane, log).is_read_to_end

        assert queue.acknowledge([message.position]) == []

        wait_until(lambda: report(plane, log).is_read_to_end, message="the queue is read to its end")

    def test_three_hundred_logs_are_one_call(self, planes: Planes, plane: SetWiseDataPlane) -> None:
        topic, first = planes.topic(), origin()
        logs = [
            plane.backing_topic(topic, segment_descriptor(one, number))
            for number, one in enumerate(HashRange(0, 65535).divide(300))
        ]
        born = plane.create_successors([Successor(log, (), ("s",), origin=first) for log in logs])
        assert {one.origin for one in born.values()} == {first}
        used, missing = logs[7], name(planes)
        planes.send(used, b"1")

        found = plane.describe_logs([*logs, missing])

        assert set(found) == {*logs, missing}
        assert {log for log in logs if found[log].origin != first} == set()
        assert {log for log in logs if not found[log].is_unused} == {used}
        assert found[used].cursors["s"].unread == 1
        assert found[missing].state is LogState.MISSING
