"""The listening thread: after whatever goes wrong it reports a gap, since it may have missed a notification."""

from __future__ import annotations

import queue
from contextlib import closing

from controller.dataplane.postgres_listener import PostgresListener
from controller.postgres.address import DatabaseAddress
from controller.postgres.connection import connect

LONG = 60.0


def test_a_callback_that_raises_is_followed_by_a_gap(database: str) -> None:
    heard: queue.Queue[int | str] = queue.Queue()

    def on_notification(first_id: int) -> None:
        if first_id == 1:
            raise ZeroDivisionError
        heard.put(first_id)

    listener = PostgresListener(
        database, ["news"], on_notification=on_notification, on_gap=lambda: heard.put("gap")
    )
    with (
        closing(listener),
        closing(
            connect(DatabaseAddress.of(database), application_name="test", statement_seconds=LONG)
        ) as sender,
    ):
        sender.autocommit = True
        listener.start()
        assert heard.get(timeout=LONG) == "gap"
        with sender.cursor() as cursor:
            cursor.execute("NOTIFY news, '1'")
            assert heard.get(timeout=LONG) == "gap"
            cursor.execute("NOTIFY news, '2'")
            assert heard.get(timeout=LONG) == 2


def test_a_listener_that_never_started_can_be_closed_twice(database: str) -> None:
    listener = PostgresListener(database, ["news"], on_notification=lambda _: None, on_gap=lambda: None)
    listener.close()
    listener.close()
