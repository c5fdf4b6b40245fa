"""One admin request over real HTTP: the delay that a broker asks for."""

from __future__ import annotations

import time

import pytest
import requests

from controller.bundles.brokers.calls import error_of, send
from controller.domain.errors import DataPlaneUnavailable
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
