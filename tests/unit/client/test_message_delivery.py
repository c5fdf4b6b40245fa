"""Outcomes of a delivery when the application's observer, a worker or the dead-letter log raises an error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from controller.client.keyed_schedule import WorkItem
from controller.client.message_delivery import End, Handling
from controller.client.work_observer import GuardedObserver, WorkObserver
from controller.dataplane.log_client import LogMessage
from controller.domain.delivery_events import DeliveryEvent
from controller.domain.errors import DataPlaneUnavailable, StoreUnavailable


@pytest.mark.parametrize("method", ["begun", "ended"])
def test_an_error_of_the_observer_is_kept_and_the_message_is_done(method: str) -> None:
    error = StoreUnavailable("the observer's own database is away")
    observer = WorkObserver()

    def fail(*_: object) -> None:
        raise error

    setattr(observer, method, fail)
    guarded = GuardedObserver(observer)
    consumer = cast(Any, SimpleNamespace(may_begin=lambda _batch: True))
    handling = Handling(consumer, lambda _message: None, cast(Any, None), guarded, 3, None)

    outcome = handling.run(cast(Any, None), cast(Any, None), WorkItem(LogMessage((1,), 0, b"k", b"")))

    assert (outcome.end, outcome.error) == (End.DONE, None)
    with pytest.raises(StoreUnavailable, match="the observer's own database"):
        guarded.raise_error()
    guarded.raise_error()  # once


def test_a_delivery_whose_beginning_cannot_be_reported_is_put_off() -> None:
    """If the process died during the delivery, nothing would show that the message had begun."""
    handle, counts = Mock(), Mock()
    counts.note.side_effect = StoreUnavailable("no worker answers")
    consumer = cast(Any, SimpleNamespace(may_begin=lambda _batch: True))
    item = WorkItem(LogMessage((1,), 0, b"k", b""), is_noted=True, is_alone=True)

    outcome = Handling(consumer, handle, counts, GuardedObserver(WorkObserver()), 3, None).run(
        cast(Any, None), cast(Any, None), item
    )

    assert (outcome.end, item.deliveries) == (End.PUT_OFF, 0)
    assert counts.note.call_args.args[2:] == (DeliveryEvent.BEGUN, 1)
    handle.assert_not_called()


@pytest.mark.parametrize(
    ("is_owned", "error", "end"),
    [
        (True, None, End.PARKED),
        (True, DataPlaneUnavailable("away"), End.STUCK),
        (False, None, End.PUT_OFF),
    ],
    ids=["stored", "log out of reach", "bucket lost"],
)
def test_a_message_at_the_limit_is_stored_by_the_owner_of_its_bucket(
    is_owned: bool, error: Exception | None, end: End
) -> None:
    dead_letters = Mock()
    dead_letters.put.side_effect = error
    consumer = cast(Any, SimpleNamespace(owns=lambda _batch: is_owned, topic="t", subscription="s", name="c"))
    batch = cast(Any, SimpleNamespace(segment_id=7))
    item = WorkItem(LogMessage((1,), 0, b"k", b""), deliveries=3)
    handling = Handling(consumer, Mock(), cast(Any, None), GuardedObserver(WorkObserver()), 3, dead_letters)

    outcome = handling.run(batch, cast(Any, None), item)

    assert outcome.end is end
    assert dead_letters.put.called is is_owned


@pytest.mark.parametrize(
    ("dead_letters", "deliveries", "deaths", "is_reached"),
    [
        (Mock(), 2, 0, False),
        (Mock(), 3, 0, True),
        (Mock(), 4, 4, True),
        (None, 100, 2, False),
        (None, 3, 3, True),
    ],
)
def test_deliveries_count_with_a_dead_letter_log_and_deaths_without(
    dead_letters: Mock | None, deliveries: int, deaths: int, is_reached: bool
) -> None:
    item = WorkItem(LogMessage((1,), 0, b"k", b""), deliveries=deliveries, deaths=deaths)
    handling = Handling(Mock(), Mock(), Mock(), Mock(), 3, dead_letters)

    assert handling.has_reached_limit(item) is is_reached
