"""A stream of events whose handling fails."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from controller.client.event_watch import EventWatch
from controller.client.servers import Servers
from controller.domain.errors import NotFound, StoreUnavailable
from tests.support.waiting import wait_until


class Streams:
    """In place of `Servers`: each stream has one event."""

    @contextmanager
    def events(self, _path: str, **_named: object) -> Iterator[Any]:
        """As `Servers.events`."""

        class Feed(list[Any]):
            def hang_up(self) -> None:
                """Nothing is open."""

        yield Feed([SimpleNamespace(event="topics", data="{}")])


@pytest.mark.parametrize(
    "error", [StoreUnavailable("injected"), NotFound("injected"), RuntimeError("injected")], ids=type
)
def test_an_error_of_the_application_is_logged_and_is_no_refusal(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """The application does not see it otherwise: the event is repeated until its handling succeeds."""
    handled: list[str] = []
    refusals: list[bool] = []

    def handle(event: str, _data: str) -> None:
        handled.append(event)
        if len(handled) == 1:
            raise error

    with closing(
        EventWatch(cast(Servers, Streams()), "/watch", handle, on_refusal=lambda: refusals.append(True))
    ):
        wait_until(lambda: len(handled) >= 2, message="the next stream")

    assert [record.exc_info[1] for record in caplog.records if record.exc_info] == [error]
    assert refusals == []


def test_a_handler_may_close_its_watch() -> None:
    """An application may need no further change."""
    errors: list[Exception] = []
    closed = threading.Event()
    watches: queue.SimpleQueue[EventWatch] = queue.SimpleQueue()

    def handle(_event: str, _data: str) -> None:
        try:
            watches.get().close()
        except Exception as error:  # noqa: BLE001 - the watch only logs it
            errors.append(error)
        closed.set()

    watch = EventWatch(cast(Servers, Streams()), "/watch", handle)
    watches.put(watch)

    assert closed.wait(30.0)
    watch.close()
    assert errors == []
    assert not watch._thread.is_alive()
