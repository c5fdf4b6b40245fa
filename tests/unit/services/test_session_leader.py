"""Which requests a leader refuses at its end, and while it has no database."""

from __future__ import annotations

from contextlib import nullcontext
from typing import cast
from unittest.mock import MagicMock, Mock

import pytest

from controller.domain.errors import CleaveError, Conflict, StoreUnavailable
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


@pytest.mark.parametrize(
    ("subscriptions", "errors"),
    [
        (("a", "b"), [StoreUnavailable("away")]),
        (("a", "a"), [Conflict("one of the two is refused"), StoreUnavailable("away")]),
    ],
    ids=["another subscription", "the rest of a batch that is tried one by one"],
)
def test_every_request_of_a_round_is_answered_when_the_database_goes_away(
    subscriptions: tuple[str, ...], errors: list[CleaveError]
) -> None:
    store, listener = MagicMock(), MagicMock()
    store.transaction.side_effect = [nullcontext(MagicMock()), *errors]  # the first reads the sessions
    leader = SessionLeader(
        store,
        listener,
        Mock(terms={0: 1}),
        shard_count=1,
        timing=ConsumerTiming(10.0),
        clock=ManualClock(),
    )
    requests = [
        Register(key=SubscriptionKey(1, name), consumer=f"c{number}", incarnation="1")
        for number, name in enumerate(subscriptions)
    ]
    for request in requests:
        leader.submit(request)

    with pytest.raises(StoreUnavailable):
        leader._round()

    assert [request.done.done() for request in requests] == [True, True]
    assert [type(request.done.exception()) for request in requests] == [StoreUnavailable] * 2
