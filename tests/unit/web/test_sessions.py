"""Where a worker sends a consumer whose topic it does not lead."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from controller.devstack.serving import SECRET, token_for
from controller.services.computing.computers import Computers
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
        leader=SimpleNamespace(leads=lambda _topic_id: False),
        layouts=SimpleNamespace(find=lambda _topic: (1, leader)),
    )
    app = create_app(cast(Any, served), SECRET, Slots(10), computers=Computers(), address=OWN)

    answer = AppClient(app).get(PATH, params={"incarnation": "f00d"}, headers=bearer(token_for()))

    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert "no worker leads topic://acme/shop/orders at the moment" in answer.json()["reason"]
