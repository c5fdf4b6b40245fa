"""Outcomes of a delivery when the application's observer raises an error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from controller.client.delivery_limit import DeliveryLimit
from controller.client.keyed_schedule import WorkItem
from controller.client.message_delivery import End, Handling
from controller.client.work_observer import WorkObserver
from controller.dataplane.log_client import LogMessage
from controller.domain.errors import StoreUnavailable


@pytest.mark.parametrize("method", ["begun", "ended"])
def test_an_error_of_the_observer_is_raised_and_the_message_is_not_put_off(method: str) -> None:
    """A message that is put off is delivered again, without a limit."""
    error = StoreUnavailable("the observer's own database is away")
    observer = WorkObserver()

    def fail(*_: object) -> None:
        raise error

    setattr(observer, method, fail)
    consumer = cast(Any, SimpleNamespace(may_begin=lambda _batch: True))
    limit = DeliveryLimit(3, has_dead_letters=False)
    handling = Handling(consumer, lambda _message: None, cast(Any, None), observer, limit, None)

    outcome = handling.run(cast(Any, None), cast(Any, None), WorkItem(LogMessage((1,), 0, b"k", b"")))

    assert (outcome.end, outcome.error) == (End.BROKEN, error)
