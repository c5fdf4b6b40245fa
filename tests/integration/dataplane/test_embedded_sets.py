"""The termination of many embedded logs: a log that another session has locked is left out."""

from __future__ import annotations

from controller.dataplane.base import LogState, SetWiseDataPlane
from controller.dataplane.embedded import set_wise
from tests.support.planes import Planes
from tests.support.rolled_back_session import rolled_back_session


def test_a_log_that_somebody_holds_is_left_open_and_the_others_are_closed(
    database: str, planes: Planes, plane: SetWiseDataPlane
) -> None:
    """Appends last milliseconds; whoever holds a log for longer is not waited for while the others are locked."""
    held, free = planes.log(), planes.log()

    with rolled_back_session(database) as somebody:
        somebody.execute("SELECT FROM embedded.log WHERE name = %s FOR UPDATE", [held])
        positions = plane.terminate_segments([held, free])

    assert set(positions) == {free}
    assert (plane.segment_state(held), plane.segment_state(free)) == (LogState.OPEN, LogState.TERMINATED)


def test_a_log_that_is_held_is_given_up_long_before_a_call_has_to_end(database: str, planes: Planes) -> None:
    """By the call itself: this session would wait for ever, were it not for the end of the statement."""
    held, free = planes.log(), planes.log()

    with rolled_back_session(database) as somebody, rolled_back_session(database) as closing:
        closing.connection.autocommit = True
        closing.execute("SET lock_timeout = 0; SET statement_timeout = '2s'")
        somebody.execute("SELECT FROM embedded.log WHERE name = %s FOR UPDATE", [held])

        assert set(set_wise.terminate(closing, [held, free], waits_for_disk=True)) == {free}
