"""The end of a leader, without a database."""

from __future__ import annotations

from typing import cast
from unittest.mock import Mock

from controller.domain.errors import StoreUnavailable
from controller.postgres.listener import Listener
from controller.services.consumer_sessions.leader import SessionLeader
from controller.services.consumer_sessions.requests import Register
from controller.services.consumer_sessions.timing import ConsumerTiming
from controller.store.postgres.engine import Store
from controller.store.topics.bucket_owners import SubscriptionKey
from tests.support.manual_clock import ManualClock


def test_requests_at_the_end_and_afterwards_are_refused() -> None:
    leader = SessionLeader(
        cast(Store, Mock()),
        cast(Listener, Mock()),
        Mock(),
        shard_count=1,
        timing=ConsumerTiming(10.0),
        clock=ManualClock(),
    )
    before, after = (
        Register(key=SubscriptionKey(1, "s"), consumer="c", incarnation=life) for life in ("1", "2")
    )

    leader.submit(before)
    leader.stop()
    leader.run()
    leader.submit(after)

    assert [type(request.done.exception(timeout=0)) for request in (before, after)] == [StoreUnavailable] * 2
