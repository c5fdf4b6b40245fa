"""Outcomes of a delivery when the application's observer raises an error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from controller.client.delivery_limit import DeliveryLimit
from controller.client.keyed_schedule import WorkItem
from controller.client.message_delivery import End, Handling
from controller.client.work_observer import GuardedObserver, WorkObserver
from controller.dataplane.log_client import LogMessage
from controller.domain.errors import StoreUnavailable


@pytest.mark.parametrize("method", ["begun", "ended"])
def test_an_error_of_the_observer_is_kept_and_the_message_is_done(method: str) -> None:
    error = StoreUnavailable("the observer's own database is away")
    observer = WorkObserver()

    def fail(*_: object) -> None:
        raise error

    setattr(observer, method, fail)
    guarded = GuardedObserver(observer)
    consumer = cast(Any, SimpleNamespace(may_begin=lambda _batch: True))
    limit = DeliveryLimit(3, has_dead_letters=False)
    handling = Handling(consumer, lambda _message: None, cast(Any, None), guarded, limit, None)

    outcome = handling.run(cast(Any, None), cast(Any, None), WorkItem(LogMessage((1,), 0, b"k", b"")))

    assert (outcome.end, outcome.error) == (End.DONE, None)
    with pytest.raises(StoreUnavailable, match="the observer's own database"):
        guarded.raise_error()
    guarded.raise_error()  # once
