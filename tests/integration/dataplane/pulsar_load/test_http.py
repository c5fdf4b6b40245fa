"""Bodies over real HTTP whose deadline passes while they arrive: none is taken for complete."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import requests

from controller.dataplane.pulsar_load import http
from controller.domain.errors import DataPlaneTimeout, DataPlaneUnavailable
from tests.support.scripted_broker import Conversation, scripted_broker

LONG_SECONDS, SHORT_SECONDS = 60.0, 0.5
BODY = b"x" * 3 * http.BLOCK_BYTES

Read = Callable[[requests.Session, str, float], object]


def read_blocks(session: requests.Session, url: str, deadline: float) -> list[bytes]:
    return [*http.blocks(session, url, deadline)]


def test_a_block_that_arrives_after_the_deadline_is_a_timeout_although_the_socket_is_still_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The timer's thread may not have shut the socket yet; here it never does."""
    with scripted_broker() as broker, requests.Session() as session:
        broker.behaves(lambda conversation: conversation.answer(200, BODY, {}))
        deadline = time.monotonic() + LONG_SECONDS
        body = http.blocks(session, f"{broker.url}/metrics/", deadline)
        assert next(body) == BODY[: http.BLOCK_BYTES]
        monkeypatch.setattr(http, "time", SimpleNamespace(monotonic=lambda: deadline))

        with pytest.raises(DataPlaneTimeout, match="did not send /metrics/ completely in time"):
            next(body)


@pytest.mark.parametrize("read", [http.ask, read_blocks])
@pytest.mark.parametrize(("seconds_left", "error"), [(0.0, DataPlaneTimeout), (1.0, DataPlaneUnavailable)])
def test_a_tls_socket_that_was_shut_is_not_taken_for_a_document_that_is_not_json(
    monkeypatch: pytest.MonkeyPatch, read: Read, seconds_left: float, error: type[DataPlaneUnavailable]
) -> None:
    """Over TLS, a read raises ValueError if the timer shuts the socket between two of its steps."""
    shut = Mock(side_effect=ValueError("Read on closed or unwrapped SSL socket."))
    monkeypatch.setattr(requests.Response, "iter_content", shut)
    deadline = time.monotonic() + LONG_SECONDS
    with scripted_broker() as broker, requests.Session() as session:

        def answer_late(conversation: Conversation) -> None:
            monkeypatch.setattr(http, "time", SimpleNamespace(monotonic=lambda: deadline - seconds_left))
            conversation.answer(200, b"{}", {})

        broker.behaves(answer_late)

        with pytest.raises(DataPlaneUnavailable, match="/stats") as raised:
            read(session, f"{broker.url}/stats", deadline)
    assert type(raised.value) is error
    assert "JSON" not in str(raised.value)


def test_a_document_without_a_length_that_is_incomplete_at_the_deadline_is_a_timeout() -> None:
    """The end that the timer makes looks like the end of the document."""
    with scripted_broker() as broker, requests.Session() as session:
        broker.behaves(broker.stops_in_a_body_without_length(b'{"a": 1'))

        with pytest.raises(DataPlaneTimeout, match="did not send /stats completely in time"):
            http.ask(session, f"{broker.url}/stats", time.monotonic() + SHORT_SECONDS)


def test_a_complete_document_that_is_not_json_is_no_timeout() -> None:
    with scripted_broker() as broker, requests.Session() as session:
        broker.behaves(broker.says_text(200, "<html>"))

        with pytest.raises(DataPlaneUnavailable, match="did not send JSON for /stats") as raised:
            http.ask(session, f"{broker.url}/stats", time.monotonic() + LONG_SECONDS)
        assert not isinstance(raised.value, DataPlaneTimeout)


@pytest.mark.parametrize("read", [http.ask, read_blocks])
def test_a_body_that_is_cut_off_before_the_deadline_is_no_timeout(read: Read) -> None:
    with scripted_broker() as broker, requests.Session() as session:
        broker.behaves(broker.cuts_in_mid_answer())

        with pytest.raises(DataPlaneUnavailable, match="closed the connection at /stats") as raised:
            read(session, f"{broker.url}/stats", time.monotonic() + LONG_SECONDS)
        assert not isinstance(raised.value, DataPlaneTimeout)


@pytest.mark.parametrize("read", [http.ask, read_blocks])
def test_a_body_that_never_ends_is_a_timeout(read: Read) -> None:
    with scripted_broker() as broker, requests.Session() as session:
        broker.behaves(broker.drips())

        with pytest.raises(DataPlaneTimeout, match="did not send /stats completely in time"):
            read(session, f"{broker.url}/stats", time.monotonic() + SHORT_SECONDS)


@pytest.mark.parametrize("length", ["many", "-1"])
def test_a_length_that_is_none_does_not_make_the_end_of_a_body_recognizable(length: str) -> None:
    """Such a body ends with its connection, as a body that is cut off does."""

    def answer(conversation: Conversation) -> None:
        conversation.send_response(200)
        conversation.send_header("Content-Length", length)
        conversation.end_headers()
        conversation.wfile.write(b"half")
        conversation.wfile.flush()
        conversation.cut()

    with scripted_broker() as broker, requests.Session() as session:
        broker.behaves(answer)

        with pytest.raises(DataPlaneUnavailable, match="sent a body without a recognizable end"):
            read_blocks(session, f"{broker.url}/metrics/", time.monotonic() + LONG_SECONDS)


def test_a_document_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "DOCUMENT_BYTES", 10)
    with scripted_broker() as broker, requests.Session() as session:
        broker.behaves(broker.says_text(200, "1" * 10), broker.says_text(200, "1" * 11))
        url, deadline = f"{broker.url}/stats", time.monotonic() + LONG_SECONDS

        assert http.ask(session, url, deadline).document == 1_111_111_111
        with pytest.raises(DataPlaneUnavailable, match="for /stats that exceeds 10 bytes"):
            http.ask(session, url, deadline)
