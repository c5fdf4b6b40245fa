"""The listener: hears what is sent, can be interrupted, and says when it may have missed something."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from controller.domain.errors import StoreUnavailable
from controller.postgres.listener import Listener
from controller.postgres.notification import Notification
from tests.support.store_driver import StoreDriver
from tests.support.waiting import wait_until

LONG = 60.0


@pytest.fixture
def listener(database: str) -> Iterator[Listener]:
    """A connected listener on two channels."""
    with Listener(database, ["cleave_layout", "cleave_load"]) as listener:
        assert [one.is_resync for one in listener.wait(LONG)] == [True]
        yield listener


def test_what_is_sent_arrives_in_order_with_its_payload(driver: StoreDriver, listener: Listener) -> None:
    driver.sql("SELECT pg_notify('cleave_layout', '7:1'), pg_notify('cleave_layout', '7:2')")

    assert listener.wait(LONG) == [Notification("cleave_layout", "7:1"), Notification("cleave_layout", "7:2")]


def test_other_channels_and_transactions_rolled_back_are_not_heard(
    driver: StoreDriver, listener: Listener
) -> None:
    driver.sql("NOTIFY cleave_policy, '5'")
    with contextlib.suppress(ZeroDivisionError), driver.store.transaction() as tx:
        tx.exec_driver_sql("NOTIFY cleave_load, '6'")
        raise ZeroDivisionError
    driver.sql("NOTIFY cleave_load, '7'")

    assert listener.wait(LONG) == [Notification("cleave_load", "7")]


def test_nothing_comes_back_when_the_time_has_passed(listener: Listener) -> None:
    assert listener.wait(0.0) == []


def test_an_interrupt_before_or_during_a_wait_ends_it(listener: Listener) -> None:
    listener.interrupt()

    assert listener.wait(LONG) == []

    thread = threading.Timer(0.05, listener.interrupt)
    thread.start()

    assert listener.wait(LONG) == []
    thread.join()


def test_any_number_of_interrupts_is_one(driver: StoreDriver, listener: Listener) -> None:
    for _ in range(100_000):  # more than a pipe holds
        listener.interrupt()
    assert listener.wait(LONG) == []

    driver.sql("NOTIFY cleave_load, '8'")

    assert listener.wait(LONG) == [Notification("cleave_load", "8")]


def test_a_signal_handler_may_interrupt(listener: Listener) -> None:
    previous = signal.signal(signal.SIGUSR1, lambda *_: listener.interrupt())
    try:
        thread = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
        thread.start()

        assert listener.wait(LONG) == []
        thread.join()
    finally:
        signal.signal(signal.SIGUSR1, previous)


def test_a_lost_connection_is_made_again_and_announced(driver: StoreDriver, listener: Listener) -> None:
    driver.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'cleave-listener'"
    )

    assert [one.is_resync for one in listener.wait(LONG)] == [True]

    driver.sql("NOTIFY cleave_load, '8'")

    assert listener.wait(LONG) == [Notification("cleave_load", "8")]


def test_a_server_that_is_away_is_retryable() -> None:
    with (
        Listener("postgresql://nobody@127.0.0.1:1/none", ["cleave_load"]) as listener,
        pytest.raises(StoreUnavailable, match="PostgreSQL is unreachable"),
    ):
        listener.wait(0.0)


def test_a_connection_that_cannot_listen_is_closed(driver: StoreDriver, database: str) -> None:
    """A standby refuses, and so does any server for a channel without a name. The caller may keep the error."""
    connections = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'refused'"
    with Listener(database, [""], application_name="refused") as listener:
        with pytest.raises(StoreUnavailable, match="zero-length") as refused:
            listener.wait(0.0)

        wait_until(lambda: driver.sql(connections)[0][0] == 0, message="the connection is closed")
    assert refused.value is not None


def test_a_layout_change_is_heard_when_it_commits(driver: StoreDriver, listener: Listener) -> None:
    topic = driver.create()

    assert Notification("cleave_layout", f"{topic.topic_id}:0") in listener.wait(LONG)
