"""A broker in one process, started for real: crash and return, who may come in, and what it says when it cannot."""

from __future__ import annotations

import socket
from pathlib import Path

import psutil
import pulsar
import pytest
import requests

from controller.devstack.failure import DevstackFailed
from controller.devstack.ports import LOOPBACK, is_listening
from controller.devstack.pulsar.jars import PULSAR_4
from controller.devstack.pulsar.java_server import QUICK
from controller.devstack.pulsar.standalone import PulsarStandalone
from controller.devstack.pulsar.tokens import TokenAuthentication
from tests.support.brokers import demand_jars, pulsar_client

pytestmark = pytest.mark.pulsar
TOPIC = "persistent://public/default/devstack"


@pytest.fixture(autouse=True)
def jars() -> Path:
    return demand_jars(PULSAR_4)


@pytest.mark.chaos  # tests/chaos/test_broker_outages.py kills one under traffic, of which `make test` has a cell
def test_a_killed_broker_returns_with_its_messages_under_the_same_address(tmp_path: Path) -> None:
    server = PulsarStandalone(tmp_path, jvm=QUICK)
    try:
        server.start()
        address, first_pid = server.service_url, server.pid
        with pulsar_client(address) as producing:
            producing.create_producer(TOPIC).send(b"written before the crash")

        server.kill()
        assert not server.running
        assert not psutil.pid_exists(first_pid)
        server.start()

        assert server.service_url == address
        with pulsar_client(address) as reading:
            message = reading.create_reader(TOPIC, pulsar.MessageId.earliest).read_next(30_000)
            assert message.data() == b"written before the crash"
        assert {listener.laddr.ip for listener in listeners(server)} <= {LOOPBACK, f"::ffff:{LOOPBACK}"}
    finally:
        server.destroy()
    assert not is_listening(int(address.rpartition(":")[2]))
    assert server.running is False


@pytest.mark.chaos  # test_pulsar_secured.py has a broker with properties and tokens
def test_extra_properties_and_tokens_take_effect(tmp_path: Path) -> None:
    tokens = TokenAuthentication(tmp_path / "secret")
    server = PulsarStandalone(
        tmp_path / "broker",
        jvm=QUICK,
        properties={"maxMessageSize": "1048576", "maxConsumersPerTopic": "7"},
        authentication=tokens,
    )
    try:
        server.start()
        configuration = f"{server.admin_url}/admin/v2/brokers/configuration/runtime"
        bearer = {"Authorization": f"Bearer {tokens.token()}"}

        assert requests.get(configuration, timeout=30).status_code == 401
        runtime = requests.get(configuration, headers=bearer, timeout=30).json()
        assert runtime["maxMessageSize"] == "1048576"
        assert runtime["maxConsumersPerTopic"] == "7"

        with pulsar_client(server.service_url, tokens.token()) as admitted:
            admitted.create_producer(TOPIC).send(b"let in")
        with (
            pulsar_client(server.service_url, tokens.token("stranger")) as stranger,
            pytest.raises(pulsar.PulsarException, match="AuthorizationError"),
        ):
            stranger.create_producer(TOPIC)
    finally:
        server.destroy()


def test_a_broker_that_cannot_start_says_why_and_names_its_log(tmp_path: Path) -> None:
    server = PulsarStandalone(
        tmp_path, jvm=QUICK, properties={"managedLedgerDefaultEnsembleSize": "nonsense"}
    )

    with pytest.raises(DevstackFailed, match=r"ended unexpectedly; its log .*pulsar\.log ends: .*nonsense"):
        server.start()

    assert not server.running
    assert "nonsense" in server.log.read_text()


def test_a_port_that_was_taken_meanwhile_is_named(tmp_path: Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as stranger:
        taken = stranger.getsockname()[1]
        (tmp_path / "ports.json").write_text(f'{{"admin": {taken}, "service": 1, "bookie": 1}}')

        with pytest.raises(
            DevstackFailed, match=rf"another process uses port {taken}, the port of admin in the data"
        ):
            PulsarStandalone(tmp_path).start()


def listeners(server: PulsarStandalone) -> list[psutil._common.pconn]:
    connections = psutil.Process(server.pid).net_connections("tcp")
    return [connection for connection in connections if connection.status == psutil.CONN_LISTEN]
