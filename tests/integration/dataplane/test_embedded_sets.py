"""Calls about many embedded logs: who is waited for, in which order, and what waits for the disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg2
import psycopg2.extensions
import pytest

from controller.dataplane.base import LogState, SetWiseDataPlane, Successor
from controller.dataplane.embedded import EmbeddedDataPlane, set_wise
from controller.postgres.address import DatabaseAddress
from tests.support.planes import Planes
from tests.support.store_driver import SOMEBODY_WAITS
from tests.support.waiting import wait_until


@contextmanager
def session(database: str) -> Iterator[psycopg2.extensions.cursor]:
    """A transaction of somebody else's, rolled back."""
    connection = psycopg2.connect(DatabaseAddress.of(database).uri)
    try:
        yield connection.cursor()
    finally:
        connection.close()


@pytest.fixture
def plane(planes: Planes) -> SetWiseDataPlane:
    """The embedded one."""
    assert isinstance(planes.plane, SetWiseDataPlane)
    return planes.plane


def test_a_log_that_somebody_holds_is_left_open_and_the_others_are_closed(
    database: str, planes: Planes, plane: SetWiseDataPlane
) -> None:
    """Appends last milliseconds; whoever holds a log for longer is not waited for while the others are locked."""
    held, free = planes.log(), planes.log()

    with session(database) as somebody:
        somebody.execute("SELECT FROM embedded.log WHERE name = %s FOR UPDATE", [held])
        positions = plane.terminate_segments([held, free])

    assert set(positions) == {free}
    assert (plane.segment_state(held), plane.segment_state(free)) == (LogState.OPEN, LogState.TERMINATED)


def test_a_log_that_is_held_is_given_up_long_before_a_call_has_to_end(database: str, planes: Planes) -> None:
    """By the call itself: this session would wait for ever, were it not for the end of the statement."""
    held, free = planes.log(), planes.log()

    with session(database) as somebody, session(database) as closing:
        closing.connection.autocommit = True
        closing.execute("SET lock_timeout = 0; SET statement_timeout = '2s'")
        somebody.execute("SELECT FROM embedded.log WHERE name = %s FOR UPDATE", [held])

        assert set(set_wise.terminate(closing, [held, free], waits_for_disk=True)) == {free}


def test_logs_are_locked_in_the_order_of_their_names_before_any_cursor(database: str, planes: Planes) -> None:
    patient = EmbeddedDataPlane(database, call_timeout_seconds=20.0)
    topic = planes.topic()
    late, early = (planes.log(topic=topic, descriptor=f"0000-ffff-{number}") for number in (2, 1))

    with ThreadPoolExecutor(1) as pool, session(database) as somebody, session(database) as other:
        somebody.execute("SELECT FROM embedded.log WHERE name = %s FOR UPDATE", [early])
        wanted = [Successor(name, (), ("s",)) for name in (late, early)]
        creating = pool.submit(patient.create_successors, wanted)

        def waits() -> bool:
            other.connection.rollback()  # within a transaction the answer never changes
            other.execute(SOMEBODY_WAITS)
            return bool(other.fetchall())

        wait_until(waits, message="the call waits for the log that is held")
        other.execute("SELECT log_id FROM embedded.log WHERE name = %s FOR UPDATE NOWAIT", [late])
        assert len(other.fetchall()) == 1
        other.connection.rollback()
        somebody.connection.rollback()
        assert set(creating.result()) == {late, early}
    patient.close()


Act = Callable[[psycopg2.extensions.cursor, str, bool], object]


def create(cursor: psycopg2.extensions.cursor, log: str, waits: bool) -> object:
    return set_wise.create(cursor, [Successor(log, (), ("s",))], waits_for_disk=waits)


def terminate(cursor: psycopg2.extensions.cursor, log: str, waits: bool) -> object:
    return set_wise.terminate(cursor, [log], waits_for_disk=waits)


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("act", [create, terminate])
def test_an_act_waits_for_the_disk_as_it_is_told_to(
    database: str,
    planes: Planes,
    act: Act,
    waits: bool,
) -> None:
    log = planes.log()

    with session(database) as cursor:
        cursor.execute("SET LOCAL synchronous_commit = 'on'")
        assert act(cursor, log, waits)
        cursor.execute("SHOW synchronous_commit")

        assert cursor.fetchone() == ("on" if waits else "off",)


@pytest.mark.parametrize("shares_server", [True, False])
def test_a_plane_waits_for_the_disk_unless_it_shares_the_journals_server(
    database: str,
    planes: Planes,
    monkeypatch: pytest.MonkeyPatch,
    shares_server: bool,
) -> None:
    """What the journal is told of it must not outlive it."""
    log, told = planes.log(), dict[str, bool]()

    def noting(name: str) -> Callable[..., Any]:
        real = getattr(set_wise, name)

        def act(*arguments: Any, waits_for_disk: bool) -> Any:
            told[name] = waits_for_disk
            return real(*arguments, waits_for_disk=waits_for_disk)

        return act

    for name in ("create", "terminate"):
        monkeypatch.setattr(set_wise, name, noting(name))
    plane = EmbeddedDataPlane(database, call_timeout_seconds=5.0, shares_journal_server=shares_server)
    plane.create_successors([Successor(log, (), ("s",))])
    plane.terminate_segments([log])
    plane.close()

    assert told == {"create": not shares_server, "terminate": not shares_server}
