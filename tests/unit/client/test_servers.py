"""What a client of the workers refuses before anything is sent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controller.client.servers import Servers, consumer_path, topic_path
from controller.domain.errors import InvalidInput

HALF_A_PAIR = "a\ud800"


@pytest.fixture
def servers() -> Iterator[Servers]:
    """Of a worker that is not there: whatever is sent fails as unavailable."""
    servers = Servers(["http://127.0.0.1:9"], "token")
    yield servers
    servers.close()


def test_names_without_utf8_form_are_refused() -> None:
    with pytest.raises(InvalidInput, match="surrogate"):
        topic_path(f"topic://acme/shop/{HALF_A_PAIR}")
    for subscription, consumer in (("billing", HALF_A_PAIR), (HALF_A_PAIR, "c")):
        with pytest.raises(InvalidInput, match="surrogate"):
            consumer_path("topic://acme/shop/orders", subscription, consumer)


def test_texts_without_utf8_form_are_refused(servers: Servers) -> None:
    for said in ({"document": {"a": [HALF_A_PAIR]}}, {"query": {"a": HALF_A_PAIR}}):
        with pytest.raises(InvalidInput, match="no UTF-8 form"):
            servers.ask("POST", "/api/v1/topics", **said)
