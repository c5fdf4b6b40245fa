"""Calls about several logs at once, on every data plane that takes them: each log fares as if it were alone."""

from __future__ import annotations

import pytest

from controller.dataplane.base import CreatedLog, LogState, SetWiseDataPlane, Successor
from controller.domain.errors import SegmentTerminated
from tests.support.planes import Planes

pytestmark = pytest.mark.integration


@pytest.fixture
def plane(planes: Planes) -> SetWiseDataPlane:
    """The plane under test; each of them takes such calls."""
    assert isinstance(planes.plane, SetWiseDataPlane)
    return planes.plane


def names(planes: Planes, count: int) -> list[str]:
    topic = planes.topic()
    return [planes.plane.backing_topic(topic, f"0000-ffff-{number}") for number in range(count)]


class TestCreateSuccessors:
    def test_each_has_those_it_was_given_and_those_of_its_predecessors_but_the_excepted(
        self, planes: Planes, plane: SetWiseDataPlane
    ) -> None:
        old, other = planes.log("own", "ending"), planes.log("elsewhere")
        left, right = names(planes, 2)

        born = plane.create_successors(
            [
                Successor(left, (old,), ("billing",), ("ending",)),
                Successor(right, (old, other), ("billing",), ("ending",)),
            ]
        )

        assert {name: (one.state, sorted(one.subscriptions)) for name, one in born.items()} == {
            left: (LogState.OPEN, ["billing", "own"]),
            right: (LogState.OPEN, ["billing", "elsewhere", "own"]),
        }
        assert sorted(plane.list_subscriptions(left)) == ["billing", "own"]
        assert sorted(plane.list_subscriptions(right)) == ["billing", "elsewhere", "own"]

    def test_a_repeat_keeps_messages_and_positions_and_adds_what_is_missing(
        self, planes: Planes, plane: SetWiseDataPlane
    ) -> None:
        [log] = names(planes, 1)
        plane.create_successors([Successor(log, (), ("old",))])
        planes.send(log, b"1")
        assert planes.drain(log, "old") == [b"1"]

        born = plane.create_successors([Successor(log, (), ("old", "new"))])

        assert born[log].state is LogState.OPEN
        assert {"old", "new"} <= {*born[log].subscriptions}
        assert (plane.backlog(log, "old"), plane.backlog(log, "new")) == (0, 1)

    def test_one_that_is_terminated_is_told_apart_from_one_that_is_open(
        self, planes: Planes, plane: SetWiseDataPlane
    ) -> None:
        closed, fresh = names(planes, 2)
        plane.create_segment(closed, [])
        plane.terminate_segment(closed)

        born = plane.create_successors([Successor(closed, (), ("s",)), Successor(fresh, (), ("s",))])

        assert born[closed].state is LogState.TERMINATED
        assert born[fresh] == CreatedLog(LogState.OPEN, ("s",))

    def test_a_predecessor_that_is_missing_has_nothing_to_give(
        self, planes: Planes, plane: SetWiseDataPlane
    ) -> None:
        missing, log = names(planes, 2)

        assert plane.create_successors([Successor(log, (missing,), ())]) == {
            log: CreatedLog(LogState.OPEN, ())
        }
        assert plane.segment_state(missing) is LogState.MISSING


class TestTerminateSegments:
    def test_each_answers_its_last_position_and_a_missing_one_nothing(
        self, planes: Planes, plane: SetWiseDataPlane
    ) -> None:
        empty, full, (missing,) = planes.log("s"), planes.log("s"), names(planes, 1)
        planes.send(full, b"1")

        positions = plane.terminate_segments([empty, full, missing])

        assert positions == {log: plane.terminate_segment(log) for log in (empty, full)}
        assert positions[empty] != positions[full]
        assert plane.terminate_segments([empty, full]) == positions
        assert plane.segment_state(missing) is LogState.MISSING

    def test_what_was_answered_for_takes_no_more(self, planes: Planes, plane: SetWiseDataPlane) -> None:
        logs = [planes.log("s"), planes.log("s")]

        plane.terminate_segments(logs)

        for log in logs:
            with pytest.raises(SegmentTerminated):
                planes.send(log, b"late")
            assert plane.segment_state(log) is LogState.TERMINATED


class TestSubscriptionsOf:
    def test_those_of_each_log_and_nothing_of_one_without(
        self, planes: Planes, plane: SetWiseDataPlane
    ) -> None:
        two, none, (missing,) = planes.log("b", "a"), planes.log(), names(planes, 1)

        found = plane.subscriptions_of([two, none, missing])

        assert {name: list(subscriptions) for name, subscriptions in found.items()} == {two: ["a", "b"]}


class TestListSegmentsOf:
    def test_each_topic_has_its_own_and_one_without_none(
        self, planes: Planes, plane: SetWiseDataPlane
    ) -> None:
        one, other, empty = (planes.topic() for _ in range(3))
        logs = [plane.backing_topic(one, "0000-7fff-1"), plane.backing_topic(one, "8000-ffff-0")]
        foreign = plane.backing_topic(other, "0000-ffff-0")
        for log in (*logs, foreign):
            plane.create_segment(log, [])

        found = plane.list_segments_of([one, other, empty])

        assert {topic: list(names) for topic, names in found.items()} == {
            one: sorted(logs),
            other: [foreign],
            empty: [],
        }
