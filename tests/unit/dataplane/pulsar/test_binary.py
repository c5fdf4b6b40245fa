"""What is opened over the binary protocol ends with its deadline, also while it waits for a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pulsar
import pytest

from controller.dataplane.pulsar.admin import Deadline
from controller.dataplane.pulsar.binary import PARALLEL_OPENS, Connections
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.domain.errors import DataPlaneTimeout, DataPlaneUnavailable


@pytest.fixture
def connections() -> Connections:
    """Connections to a cluster of which no broker answers. Each test closes them."""
    access = PulsarAccess(admin_url="http://127.0.0.1:1", service_url="pulsar://127.0.0.1:1")
    return Connections(access, call_timeout_seconds=5.0)


def test_what_found_no_thread_in_time_is_not_opened_later(connections: Connections) -> None:
    all_busy, released, opened = threading.Barrier(PARALLEL_OPENS + 1), threading.Event(), list[str]()

    def hold(_client: pulsar.Client) -> None:
        all_busy.wait(20)
        released.wait(20)

    with ThreadPoolExecutor(PARALLEL_OPENS) as others:
        for _ in range(PARALLEL_OPENS):
            others.submit(connections.open, "hold", Deadline(30), hold)
        all_busy.wait(20)
        with pytest.raises(DataPlaneTimeout, match="did not open it within"):
            connections.open("late", Deadline(0.05), lambda _client: opened.append("late"))
        released.set()
    connections.close()

    assert opened == []


class OnceBegun(Deadline):
    """A deadline that passes while something is being opened: when `begun` is set."""

    def __init__(self) -> None:
        super().__init__(5.0)
        self.begun = threading.Event()

    @property
    def left_seconds(self) -> float:
        """As `Deadline.left_seconds`."""
        assert self.begun.wait(20)
        return 0.0


def test_what_opens_after_the_deadline_is_closed_before_its_client(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadline, is_late, reader, closed = OnceBegun(), threading.Event(), Mock(), list[str]()
    reader.close.side_effect = lambda: closed.append("reader")
    monkeypatch.setattr(pulsar.Client, "close", lambda _client: closed.append("client"))

    def open_late(_client: pulsar.Client) -> Mock:
        deadline.begun.set()
        assert is_late.wait(20)
        return reader

    with pytest.raises(DataPlaneTimeout, match="open it: "):
        connections.open_alone("open it", deadline, open_late)
    assert closed == []
    is_late.set()
    connections.close()

    assert closed == ["reader", "client"]


def test_what_fails_after_the_deadline_fails_silently(
    connections: Connections, caplog: pytest.LogCaptureFixture
) -> None:
    deadline, is_late = OnceBegun(), threading.Event()

    def fail_late(_client: pulsar.Client) -> None:
        deadline.begun.set()
        assert is_late.wait(20)
        raise pulsar.AlreadyClosed("the topic")

    with pytest.raises(DataPlaneTimeout, match="open it: "):
        connections.open("open it", deadline, fail_late)
    is_late.set()
    connections.close()

    assert caplog.records == []


def test_a_closed_client_keeps_nothing_that_could_not_be_closed(connections: Connections) -> None:
    """Such a consumer keeps its client, and with it a thread and descriptors."""
    client, _ = connections.open_alone("open", Deadline(30), lambda client: client._consumers.append("one"))

    connections.close_aside(client)
    connections.close()

    assert client._consumers == []


def test_what_is_closed_after_the_connections_is_closed(connections: Connections) -> None:
    """An application may close its log client first, and the readers with clients of their own afterwards."""
    reader, is_closed = Mock(), threading.Event()
    reader.close.side_effect = is_closed.set

    connections.close()
    connections.close_aside(reader)

    assert is_closed.wait(20)


@pytest.mark.parametrize("method", [Connections.open, Connections.open_alone])
@pytest.mark.parametrize(
    ("end", "message"),
    [
        (Connections.close, "open it: the connections were closed"),
        (Connections.end, "open it: this process is ending"),
    ],
    ids=["after the close", "while the process ends"],
)
def test_at_the_end_nothing_is_opened(
    connections: Connections,
    end: Callable[[Connections], None],
    message: str,
    method: Callable[[Connections, str, Deadline, Callable[[pulsar.Client], object]], object],
) -> None:
    opened = list[str]()
    end(connections)

    with pytest.raises(DataPlaneUnavailable, match=message):
        method(connections, "open it", Deadline(30), lambda _client: opened.append("late"))
    connections.close()
    assert opened == []
