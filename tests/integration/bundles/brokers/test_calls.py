"""One admin request over real HTTP: the delay that a broker asks for, and bodies that are incomplete or too long."""

from __future__ import annotations

import time
from unittest.mock import Mock

import pytest
import requests

from controller.bundles.brokers import calls
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


@pytest.mark.parametrize("behaviour", ["cuts_in_mid_answer", "drips"])
def test_a_body_that_is_cut_off_or_never_ends_is_a_timeout(behaviour: str) -> None:
    """The broker may have processed the request."""
    with scripted_broker() as broker, requests.Session() as session:
        broker.behaves(getattr(broker, behaviour)())

        with pytest.raises(DataPlaneTimeout, match="no whole answer from"):
            send(session, "POST", broker.url, time.monotonic() + 0.5)


def test_a_tls_socket_that_was_shut_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over TLS, a read raises ValueError if the timer shuts the socket between two of its steps."""
    shut = Mock(side_effect=ValueError("Read on closed or unwrapped SSL socket."))
    monkeypatch.setattr(requests.Response, "iter_content", shut)
    with scripted_broker() as broker, requests.Session() as session:
        broker.behaves(broker.says(200, {}))

        with pytest.raises(DataPlaneTimeout, match=r"no whole answer from .*: ValueError"):
            send(session, "POST", broker.url, time.monotonic() + 30)


def test_a_body_that_is_too_long_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "BODY_BYTES", 10)
    with scripted_broker() as broker, requests.Session() as session:
        broker.behaves(broker.says_text(200, "x" * 10), broker.says_text(200, "x" * 11))

        assert send(session, "GET", broker.url, time.monotonic() + 30).body == b"x" * 10
        with pytest.raises(DataPlaneTimeout, match="without end"):
            send(session, "GET", broker.url, time.monotonic() + 30)
