"""Who a broker is, and who asks: certificates both ways, and no token where anybody could read it."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.dataplane.base import LogState
from controller.dataplane.pulsar.admin import AdminCalls, Ask
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.plane import PulsarDataPlane
from controller.domain.errors import DataPlaneUnavailable, InvalidInput, Terminal
from tests.support.certificates import Authority
from tests.support.scripted_broker import ScriptedBroker, scripted_broker

LOG = "persistent://t/n/x-segment-0000-ffff-0"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Signs for the brokers here."""
    return Authority(tmp_path_factory.mktemp("authority"))


def context_of(
    authority: Authority, name: str, *, address: str | None, mutual: bool = False
) -> ssl.SSLContext:
    """What a server shows, and whether it wants to see a client's certificate."""
    made = authority.issue(name, address=address)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.cert, made.key)
    if mutual:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority.ca)
    return context


@pytest.fixture
def broker(authority: Authority) -> Iterator[ScriptedBroker]:
    """A broker at 127.0.0.1 that says so."""
    with scripted_broker(context_of(authority, "broker", address="127.0.0.1")) as broker:
        broker.behaves(broker.says(200, {"state": "Terminated"}))
        yield broker


def look(**access: object) -> LogState:
    """One call."""
    plane = PulsarDataPlane(PulsarAccess(**access), call_timeout_seconds=5.0)  # type: ignore[arg-type]
    try:
        return plane.segment_state(LOG)
    finally:
        plane.close()


def test_a_broker_of_a_trusted_authority_is_believed(broker: ScriptedBroker, authority: Authority) -> None:
    assert look(admin_url=broker.url, ca_file=str(authority.ca)) is LogState.TERMINATED


def test_one_of_an_unknown_authority_is_not(broker: ScriptedBroker, tmp_path: Path) -> None:
    for ca_file in (None, str(Authority(tmp_path, "another").ca)):
        with pytest.raises(Terminal, match="CLEAVE_PULSAR_CA_FILE"):
            look(admin_url=broker.url, ca_file=ca_file)
    assert broker.received == []


def test_a_certificate_for_another_name_serves_only_if_names_are_not_checked(authority: Authority) -> None:
    with scripted_broker(context_of(authority, "elsewhere.example.org", address=None)) as broker:
        broker.behaves(broker.says(200, {"state": "LedgerOpened"}))
        with pytest.raises(Terminal, match="CLEAVE_PULSAR_VERIFY_HOSTNAME"):
            look(admin_url=broker.url, ca_file=str(authority.ca))

        assert look(admin_url=broker.url, ca_file=str(authority.ca), verify_hostname=False) is LogState.OPEN
        with pytest.raises(Terminal, match="has no valid certificate"):
            look(admin_url=broker.url, verify_hostname=False)


def test_a_client_certificate_is_shown(authority: Authority) -> None:
    client = authority.issue("cleave", address=None)
    with scripted_broker(context_of(authority, "strict", address="127.0.0.1", mutual=True)) as broker:
        broker.behaves(broker.says(200, {"state": "LedgerOpened"}))
        shown = {"cert_file": str(client.cert), "key_file": str(client.key)}
        assert look(admin_url=broker.url, ca_file=str(authority.ca), **shown) is LogState.OPEN

        with pytest.raises((DataPlaneUnavailable, Terminal)):
            look(admin_url=broker.url, ca_file=str(authority.ca))
        assert len(broker.received) == 1


def test_a_token_is_not_taken_to_where_there_is_no_tls(broker: ScriptedBroker, authority: Authority) -> None:
    with scripted_broker() as plain:
        broker.behaves(broker.says(307, Location=f"{plain.url}/admin/v2/persistent/t/n/x/internalStats"))

        with pytest.raises(Terminal, match="would show the token"):
            look(admin_url=broker.url, ca_file=str(authority.ca), token="hush")

        assert plain.received == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"admin_url": "broker:8080"}, "CLEAVE_PULSAR_ADMIN_URL"),
        ({"admin_url": "http://"}, "CLEAVE_PULSAR_ADMIN_URL"),
        ({"admin_url": "http://host:port"}, "CLEAVE_PULSAR_ADMIN_URL"),
        ({"admin_url": "https://one:8443,http://two:8080"}, "CLEAVE_PULSAR_ADMIN_URL.*the same scheme"),
        ({"admin_url": "http://user:hush@host:8080"}, "CLEAVE_PULSAR_TOKEN"),
        ({"admin_url": "http://h:1", "service_url": "http://h:2"}, "CLEAVE_PULSAR_SERVICE_URL"),
        ({"admin_url": "http://h:1", "cert_file": __file__}, "CLEAVE_PULSAR_KEY_FILE"),
        ({"admin_url": "http://h:1", "ca_file": "/nowhere/ca.pem"}, "CLEAVE_PULSAR_CA_FILE=/nowhere/ca.pem"),
    ],
)
def test_settings_that_cannot_be_right_are_refused_without_their_secrets(
    wrong: dict[str, str], words: str
) -> None:
    with pytest.raises(InvalidInput, match=words) as raised:
        PulsarAccess(**wrong)  # type: ignore[arg-type]
    assert "hush" not in str(raised.value)


class ClosingServer(socket.socket):
    """Closes each connection after the first bytes."""

    accepted = 0

    def __init__(self) -> None:
        super().__init__()
        self.bind(("127.0.0.1", 0))
        self.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.accept()
                self.accepted += 1
                with connection:
                    connection.recv(4096)


def test_a_broker_that_goes_away_during_the_handshake_is_out_of_reach_and_the_next_one_is_called() -> None:
    closing = [ClosingServer(), ClosingServer()]
    address = ",".join(f"https://127.0.0.1:{server.getsockname()[1]}" for server in closing)
    calls = AdminCalls(PulsarAccess(admin_url=address), call_timeout_seconds=10.0)

    with contextlib.closing(calls), pytest.raises(DataPlaneUnavailable, match="out of reach"):
        calls.ask(Ask("GET", "brokers/version", "check"), calls.deadline())

    for server in closing:
        server.close()
        assert server.accepted
