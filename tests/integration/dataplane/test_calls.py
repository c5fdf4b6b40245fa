"""Calls to the embedded plane end on time and say what happened, whatever the server does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg2
import pytest

from controller.dataplane.base import LogState
from controller.dataplane.embedded import EmbeddedDataPlane
from controller.dataplane.postgres_calls import PostgresCalls
from controller.devstack.ports import free_port
from controller.domain.errors import DataPlaneTimeout, DataPlaneUnavailable, InvalidInput, Terminal
from controller.postgres.address import DatabaseAddress
from tests.support.planes import Planes
from tests.support.relay import Relay

LOG = "segment://t/n/x/0000-ffff-0"
CALL_TIMEOUT_SECONDS = 0.5
"""Of calls that are to run out of time."""


@pytest.fixture
def relay(database: str) -> Iterator[Relay]:
    with Relay.before(database) as relay:
        yield relay


@pytest.fixture
def relayed(database: str, relay: Relay) -> Iterator[EmbeddedDataPlane]:
    """A plane whose way to the server can be stalled."""
    plane = EmbeddedDataPlane(relay.url_of(database), call_timeout_seconds=CALL_TIMEOUT_SECONDS)
    yield plane
    plane.close()


def test_a_lock_that_is_not_given_up_is_a_time_out(database: str, planes: Planes) -> None:
    log = planes.log()
    holder = psycopg2.connect(DatabaseAddress.of(database).uri)
    with holder.cursor() as cursor:
        cursor.execute("SELECT FROM embedded.log WHERE name = %s FOR UPDATE", (log,))

    with (
        closing(EmbeddedDataPlane(database, call_timeout_seconds=CALL_TIMEOUT_SECONDS)) as hasty,
        pytest.raises(DataPlaneTimeout, match="terminate segment://"),
    ):
        hasty.terminate_segment(log)

    holder.close()
    assert planes.plane.segment_state(log) is LogState.OPEN
    planes.plane.terminate_segment(log)


def test_the_server_too_ends_what_takes_too_long(database: str) -> None:
    """In this order: a lock not given up, a statement, a client that stands still in a transaction."""
    calls = PostgresCalls(database, call_timeout_seconds=10.0, pool_size=1)
    with calls.statement("look") as cursor:
        cursor.execute(
            "SELECT current_setting('lock_timeout'), current_setting('statement_timeout'),"
            "       current_setting('idle_in_transaction_session_timeout')"
        )
        limits = cursor.fetchone()
    calls.close()

    assert limits == ("6s", "8s", "10s")


def test_a_server_that_falls_silent_is_a_time_out_and_the_act_may_have_happened(
    relay: Relay, relayed: EmbeddedDataPlane
) -> None:
    relayed.create_segment(LOG, ["s"])
    relay.stall()
    with pytest.raises(DataPlaneTimeout, match="check the state before repeating"):
        relayed.terminate_segment(LOG)

    relay.resume()

    relayed.terminate_segment(LOG)
    assert relayed.segment_state(LOG) is LogState.TERMINATED


def test_one_silent_call_does_not_hold_up_another(
    database: str, planes: Planes, relay: Relay, relayed: EmbeddedDataPlane
) -> None:
    """A call that waits for a lock, and one that waits for a stalled server, each end by themselves."""
    log = planes.log()
    relayed.segment_state(log)
    relay.stall()
    with ThreadPoolExecutor(3) as threads:
        silent = [threads.submit(relayed.segment_state, log) for _ in range(3)]
        assert planes.plane.segment_state(log) is LogState.OPEN
        for call in silent:
            assert isinstance(call.exception(), DataPlaneTimeout | DataPlaneUnavailable)


def test_more_calls_than_connections_wait_for_each_other_and_not_for_ever(database: str) -> None:
    calls = PostgresCalls(database, call_timeout_seconds=CALL_TIMEOUT_SECONDS, pool_size=1)
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with calls.statement("hold"):
            entered.set()
            leave.wait(10)

    with ThreadPoolExecutor(1) as threads:
        holding = threads.submit(hold)
        entered.wait(10)
        with pytest.raises(DataPlaneTimeout, match="no free connection"), calls.statement("second"):
            pass
        leave.set()
        holding.result()
    with calls.statement("third") as cursor:
        cursor.execute("SELECT 1")
    calls.close()


def test_a_server_that_is_not_there_is_unavailable_and_its_password_stays_secret() -> None:
    url = f"postgresql://u:hidden@127.0.0.1:{free_port()}/cleave"
    plane = EmbeddedDataPlane(url, call_timeout_seconds=CALL_TIMEOUT_SECONDS)

    with pytest.raises(DataPlaneUnavailable, match="is out of reach") as caught:
        plane.segment_state(LOG)

    assert not isinstance(caught.value, DataPlaneTimeout)
    assert "hidden" not in str(caught.value)
    plane.close()


def test_a_restart_of_the_server_costs_no_call(database: str, planes: Planes) -> None:
    """Connections that died while they were idle are noticed before they are used."""
    log = planes.log()
    _disconnect_all(database)

    assert planes.plane.segment_state(log) is LogState.OPEN
    assert planes.send(log, b"1") == 1


def test_a_broken_transaction_leaves_nothing_behind(database: str, planes: Planes) -> None:
    calls = PostgresCalls(database, call_timeout_seconds=CALL_TIMEOUT_SECONDS, pool_size=1)

    def half_an_act() -> None:
        with calls.transaction("half an act") as cursor:
            cursor.execute("INSERT INTO embedded.log (name) VALUES (%s)", (LOG,))
            raise KeyError("the caller fails")

    with pytest.raises(KeyError):
        half_an_act()
    with calls.statement("the next one on the same connection") as cursor:
        cursor.execute("SELECT count(*) FROM embedded.log")
        assert cursor.fetchone() == (0,)
    calls.close()


def test_a_database_without_the_schema_says_what_to_run(empty_database: str) -> None:
    plane = EmbeddedDataPlane(empty_database, call_timeout_seconds=CALL_TIMEOUT_SECONDS)

    with pytest.raises(Terminal, match="cleave migrate"):
        plane.segment_state(LOG)
    plane.close()


@pytest.mark.parametrize("url", ["mysql://h/d", "no url at all", "http://h"])
def test_another_kind_of_database_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="postgresql://"):
        EmbeddedDataPlane(url)


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 1001])
def test_names_that_cannot_be_kept_are_refused(planes: Planes, name: str) -> None:
    log = planes.log()
    for act in (
        lambda: planes.plane.create_segment(name, []),
        lambda: planes.plane.create_segment(log, [name]),
        lambda: planes.plane.create_subscription(log, name),
        lambda: planes.send(log, b"1", producer=name),
    ):
        with pytest.raises(InvalidInput):
            act()


def _disconnect_all(database: str) -> None:
    with psycopg2.connect(DatabaseAddress.of(database).uri) as admin, admin.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    admin.close()
