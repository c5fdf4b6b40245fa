"""Where a worker sends a consumer whose topic it does not lead, and which topic a request of a consumer is about."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from controller.devstack.serving import SECRET, token_for
from controller.domain.errors import TopicNotFound
from controller.services.computing.computers import Computers
from controller.services.consumer_sessions.requests import Request
from controller.services.consumer_sessions.timing import ConsumerTiming
from controller.web import deliveries
from controller.web.app import create_app
from controller.web.request_slots import Slots
from tests.support.app_client import AppClient
from tests.support.asking import bearer

OWN = "http://w:1"
PATH = "/api/v1/topics/acme/shop/orders/subscriptions/billing/consumers/a/assignment"


@pytest.mark.parametrize("leader", [None, OWN])
def test_a_worker_without_the_lease_never_sends_a_consumer_back_to_itself(leader: str | None) -> None:
    """The database may still name a worker that has just lost the lease, or has just won it."""
    served = SimpleNamespace(
        leader=SimpleNamespace(leads=lambda _topic_id: False, led_topic_id=lambda _topic: None),
        layouts=SimpleNamespace(find=lambda _topic: (1, leader)),
    )
    app = create_app(cast(Any, served), SECRET, Slots(10), computers=Computers(), address=OWN)

    answer = AppClient(app).get(PATH, params={"incarnation": "f00d"}, headers=bearer(token_for()))

    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert "no worker leads topic://acme/shop/orders at the moment" in answer.json()["reason"]


def test_only_requests_that_begin_something_read_the_topic_from_the_database(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A topic of the same name may have been created a moment ago; the leader still has the sessions of its predecessor."""
    requests, logs = list[Request](), list[int]()

    def submit(request: Request) -> None:
        requests.append(request)
        request.done.set_result(None)

    def make_log(_store: object, _planes: object, topic_id: int, _subscription: str) -> SimpleNamespace:
        logs.append(topic_id)
        return SimpleNamespace(data_plane="embedded", backing_topic="dead-letters")

    served = SimpleNamespace(
        leader=SimpleNamespace(
            leads=lambda _topic_id: True,
            led_topic_id=lambda _topic: 1,
            submit=submit,
            timing=ConsumerTiming(10.0),
        ),
        layouts=SimpleNamespace(find=lambda _topic: (2, OWN)),
        app=SimpleNamespace(store=None, planes=None),
    )
    monkeypatch.setattr(deliveries, "make", make_log)
    client = AppClient(create_app(cast(Any, served), SECRET, Slots(10), computers=Computers(), address=OWN))
    consumer = PATH.removesuffix("/assignment")
    options = {"json": {"incarnation": "f00d"}, "headers": bearer(token_for())}

    client.post(f"{consumer}/pulse", **options)
    answer = client.post(consumer, **options)
    client.post(f"{consumer}/dead-letters", **options)

    assert [request.key.topic_id for request in requests] == [1, 2]
    assert answer.json()["topic_id"] == 2
    assert logs == [2]


def test_a_topic_that_the_leader_remembers_and_that_is_gone_is_registered_again() -> None:
    """NotFound would end the consumer for good, although another topic may have the name."""
    served = SimpleNamespace(
        leader=SimpleNamespace(
            leads=lambda _topic_id: True,
            led_topic_id=lambda _topic: 1,
            submit=lambda request: request.done.set_exception(TopicNotFound("topic 1 is gone")),
            timing=ConsumerTiming(10.0),
        ),
        layouts=SimpleNamespace(find=lambda _topic: (2, OWN)),
    )
    client = AppClient(create_app(cast(Any, served), SECRET, Slots(10), computers=Computers(), address=OWN))

    refused = client.get(PATH, params={"incarnation": "f00d"}, headers=bearer(token_for()))
    registered = client.post(
        PATH.removesuffix("/assignment"), json={"incarnation": "f00d"}, headers=bearer(token_for())
    )

    assert refused.json()["kind"] == "LostRace"
    assert registered.json()["kind"] == "TopicNotFound"
