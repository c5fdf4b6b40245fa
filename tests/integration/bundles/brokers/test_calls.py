"""One admin request over real HTTP: the delay that a broker asks for, and a body that is incomplete at the deadline."""

from __future__ import annotations

import time

import pytest
import requests

from controller.bundles.brokers.calls import error_of, send
from controller.dataplane.pulsar_load import http
from controller.domain.errors import DataPlaneTimeout, DataPlaneUnavailable
from tests.support.scripted_broker import scripted_broker


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), ("-7", 0.0), ("1e9", 300.0), ("inf", 300.0), ("nan", 5.0), ("soon", 5.0)],
)
def test_a_delay_is_finite_whatever_the_broker_asks_for(header: str, seconds: float) -> None:
    with scripted_broker() as broker, requests.Session() as session:
        broker.behaves(broker.refuses(503, "not ready", Retry_After=header))
        error = error_of(send(session, "GET", broker.url, time.monotonic() + 30))

    assert isinstance(error, DataPlaneUnavailable)
    assert error.delay_seconds == seconds


def test_a_body_without_a_length_that_is_incomplete_at_the_deadline_is_a_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The timer that shuts the socket may end after the body seems to end; here it never ends."""
    monkeypatch.setattr(http.threading.Timer, "is_alive", lambda _timer: True)
    with scripted_broker() as broker, requests.Session() as session:
        broker.behaves(broker.stops_in_a_body_without_length(b'{"half": '))

        with pytest.raises(DataPlaneTimeout, match="no whole answer from"):
            send(session, "GET", broker.url, time.monotonic() + 0.5)
