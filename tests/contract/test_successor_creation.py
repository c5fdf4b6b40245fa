"""The creation of successors, on every data plane: which subscriptions each log gets, and what a repeat adds."""

from __future__ import annotations

import pytest

from controller.dataplane.base import CreatedLog, LogState, SetWiseDataPlane, Successor
from tests.support.planes import Planes

pytestmark = pytest.mark.integration


def test_each_has_those_it_was_given_and_those_of_its_predecessors_but_the_excepted(
    planes: Planes, plane: SetWiseDataPlane
) -> None:
    old, other = planes.log("own", "ending"), planes.log("elsewhere")
    left, right = planes.missing_logs(2)

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
    planes: Planes, plane: SetWiseDataPlane
) -> None:
    [log] = planes.missing_logs(1)
    plane.create_successors([Successor(log, (), ("old",))])
    planes.send(log, b"1")
    assert planes.drain(log, "old") == [b"1"]

    born = plane.create_successors([Successor(log, (), ("old", "new"))])

    assert born[log].state is LogState.OPEN
    assert {"old", "new"} <= {*born[log].subscriptions}
    assert (plane.backlog(log, "old"), plane.backlog(log, "new")) == (0, 1)


def test_one_that_is_terminated_is_told_apart_from_one_that_is_open(
    planes: Planes, plane: SetWiseDataPlane
) -> None:
    closed, fresh = planes.missing_logs(2)
    plane.create_segment(closed, [])
    plane.terminate_segment(closed)

    born = plane.create_successors([Successor(closed, (), ("s",)), Successor(fresh, (), ("s",))])

    assert born[closed].state is LogState.TERMINATED
    assert born[fresh] == CreatedLog(LogState.OPEN, ("s",))


def test_a_predecessor_that_is_missing_has_nothing_to_give(planes: Planes, plane: SetWiseDataPlane) -> None:
    missing, log = planes.missing_logs(2)

    assert plane.create_successors([Successor(log, (missing,), ())]) == {log: CreatedLog(LogState.OPEN, ())}
    assert plane.segment_state(missing) is LogState.MISSING
