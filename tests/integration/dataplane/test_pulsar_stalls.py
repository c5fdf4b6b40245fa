"""A reader to which a broker delivers no more, though messages wait, ends and the next one goes on; of each kind of reader.

Here the client keeps messages to itself, or drops them, which looks to the broker like messages that got lost on the way: it has
given them, and their permits do not come back.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence

import pytest

from controller import client_metrics
from controller.dataplane.log_client import LogMessage, OutgoingMessage
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.log_client import PulsarLogClient
from controller.dataplane.pulsar.plane import PulsarDataPlane
from controller.dataplane.pulsar.reader_stall import StallWatch
from controller.domain.errors import CleaveError, DataPlaneUnavailable, LostRace
from tests.support.brokers import SharedBroker
from tests.support.pulsar_namespaces import make_namespace
from tests.support.waiting import wait_until


@pytest.fixture
def access(pulsar_broker: SharedBroker) -> PulsarAccess:
    """The broker, as Cleave is told of it."""
    return PulsarAccess(admin_url=pulsar_broker.admin_url, service_url=pulsar_broker.service_url)


@pytest.fixture
def log(access: PulsarAccess) -> str:
    """A topic with the subscription `s`."""
    name = f"persistent://{make_namespace(access, 'stalls')}/{secrets.token_hex(4)}"
    plane = PulsarDataPlane(access, call_timeout_seconds=30.0)
    plane.create_segment(name, ["s"])
    plane.close()
    return name


@pytest.fixture
def logs(access: PulsarAccess) -> Iterator[PulsarLogClient]:
    """A client that waits for next to nothing before it looks."""
    logs = PulsarLogClient(access, call_timeout_seconds=30.0, stall_seconds=0.05)
    yield logs
    logs.close()


def send(logs: PulsarLogClient, log: str, payload: bytes) -> None:
    logs.append(log, [OutgoingMessage(payload)], producer="p", sequence=int(payload))


def ends(read: Callable[[int], Sequence[LogMessage]], kind: type[CleaveError]) -> None:
    """It says so, and counts."""
    before = client_metrics.STALLED_READERS._value.get()

    def said() -> str:
        try:
            assert not read(1)
        except kind as raised:
            return str(raised)
        return ""

    assert "delivers nothing" in wait_until(said, message="the end")
    assert client_metrics.STALLED_READERS._value.get() == before + 1


def misses_nothing(read: Callable[[int], Sequence[LogMessage]], watch: StallWatch, why: str) -> None:
    """Nothing comes, however often it would look."""
    for _ in range(3):
        watch._check_at = 0.0
        assert not read(1), why


def comes(read: Callable[[int], Sequence[LogMessage]]) -> LogMessage:
    """The next message."""
    return wait_until(lambda: read(1), message="a message")[0]


def test_of_a_whole_topic(logs: PulsarLogClient, log: str) -> None:
    reader = logs.open_reader(log, "s", owner="a", live_owners=(), on_arrival=lambda: None)
    intake, reader._intake = reader._intake, None
    assert intake is not None
    misses_nothing(reader.read, reader._stall, "nothing is there, so nothing is missed")
    send(logs, log, b"1")

    ends(reader.read, LostRace)

    reader.close()
    heir = logs.open_reader(log, "s", owner="a", live_owners=(), on_arrival=lambda: None)
    assert comes(heir.read).payload == b"1"


def test_of_a_queue(logs: PulsarLogClient, log: str) -> None:
    reader = logs.open_queue_reader(log, "s", owner="a", on_arrival=lambda: None)
    assert reader._opened is not None
    reader._opened[1].pause_message_listener()
    send(logs, log, b"1")

    ends(reader.read, LostRace)

    reader.close()
    heir = logs.open_queue_reader(log, "s", owner="a", on_arrival=lambda: None)
    message = comes(heir.read)
    assert message.payload == b"1"
    misses_nothing(heir.read, heir._stall, "what is in hand is not missed")
    heir.acknowledge([message.position])


def test_of_a_position(logs: PulsarLogClient, log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = logs.open_reader_at(log, None, on_arrival=lambda: None)
    send(logs, log, b"1")
    assert comes(reader.read).payload == b"1"
    misses_nothing(reader.read, reader._stall, "nothing is there, so nothing is missed")
    monkeypatch.setattr(
        reader, "_take_in", lambda _limit: None
    )  # what comes from now on stays with the library
    send(logs, log, b"2")

    ends(reader.read, DataPlaneUnavailable)

    heir = logs.open_reader_at(log, reader._read, on_arrival=lambda: None)
    assert comes(heir.read).payload == b"2"
