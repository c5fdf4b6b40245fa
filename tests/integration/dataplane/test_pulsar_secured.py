"""A real broker that wants TLS and a token: both sides of the plane get in with them, and nobody without."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import requests

from controller.bootstrap import application
from controller.dataplane.base import LogState
from controller.dataplane.log_client import OutgoingMessage
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.cursors import Cursors
from controller.dataplane.pulsar.log_client import PulsarLogClient
from controller.dataplane.pulsar.plane import PulsarDataPlane
from controller.dataplane.pulsar.stored_entries import NOWHERE, SentBatch
from controller.dataplane.pulsar.topic_end import TopicEnd
from controller.devstack.ports import free_port, release_port
from controller.devstack.pulsar.jars import PULSAR_4
from controller.devstack.pulsar.java_server import QUICK
from controller.devstack.pulsar.standalone import PulsarStandalone
from controller.devstack.pulsar.tokens import TokenAuthentication
from controller.domain.errors import DataPlaneUnavailable, Terminal, Unsupported
from controller.domain.gate_states import GateState
from controller.tasks.application_of_connection import settings_at
from tests.support.brokers import demand_jars
from tests.support.certificates import Authority
from tests.support.command_line import CommandLine
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.pulsar, pytest.mark.xdist_group("secured_broker")]  # one broker of its own

PATIENCE_SECONDS = 30.0
"""A broker among other busy servers may take its time; nothing here is about speed."""


@dataclass(frozen=True)
class SecuredBroker:
    """How the administrator gets in, and tokens for others."""

    access: PulsarAccess
    tokens: TokenAuthentication
    namespace: str

    def log(self) -> str:
        """A name nobody used before."""
        return f"persistent://{self.namespace}/{secrets.token_hex(6)}-segment-0000-ffff-0"

    def grant(self, role: str, *actions: str) -> PulsarAccess:
        """Let the role do this in the namespace. Return how it gets in."""
        requests.post(
            f"{self.access.admin_url}/admin/v2/namespaces/{self.namespace}/permissions/{role}",
            json=actions,
            headers={"Authorization": f"Bearer {self.access.token}"},
            verify=self.access.ca_file,
            timeout=30,
        ).raise_for_status()
        return replace(self.access, token=self.tokens.token(role))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """A broker of this module's own; its data is gone afterwards."""
    demand_jars(PULSAR_4)
    home = tmp_path_factory.mktemp("secured")
    authority = Authority(home / "certificates")
    shown = authority.issue("broker")
    tokens = TokenAuthentication(home)
    web_port, service_port = free_port(), free_port()
    broker = PulsarStandalone(
        home / "broker",
        jvm=QUICK,
        properties={
            "webServicePortTls": str(web_port),
            "brokerServicePortTls": str(service_port),
            "tlsCertificateFilePath": str(shown.cert),
            "tlsKeyFilePath": str(shown.key),
            "tlsTrustCertsFilePath": str(authority.ca),
            "brokerClientTrustCertsFilePath": str(authority.ca),
        },
        authentication=tokens,
    )
    try:
        broker.start()
        access = PulsarAccess(
            admin_url=f"https://127.0.0.1:{web_port}",
            service_url=f"pulsar+ssl://127.0.0.1:{service_port}",
            token=tokens.token(),
            ca_file=str(authority.ca),
        )
        _make_namespace(access)
        yield SecuredBroker(access, tokens, "secured/tests")
    finally:
        broker.destroy()
        release_port(web_port)
        release_port(service_port)


def _make_namespace(access: PulsarAccess) -> None:
    for path, body in (
        ("tenants/secured", {"allowedClusters": ["standalone"], "adminRoles": []}),
        ("namespaces/secured/tests", None),
    ):
        requests.put(
            f"{access.admin_url}/admin/v2/{path}",
            json=body,
            headers={"Authorization": f"Bearer {access.token}"},
            verify=access.ca_file,
            timeout=30,
        ).raise_for_status()


def test_gates_take_an_administrator_of_the_tenant(secured: SecuredBroker) -> None:
    """One who may produce and consume everywhere in the namespace may not set the policies of topics."""
    theirs = secured.grant("applications", "produce", "consume")
    log, topic = secured.log(), f"topic://{secured.namespace}/orders"
    with (
        closing(PulsarDataPlane(secured.access, call_timeout_seconds=PATIENCE_SECONDS)) as plane,
        closing(PulsarDataPlane(theirs, call_timeout_seconds=PATIENCE_SECONDS)) as of_applications,
    ):
        plane.demand_gates(topic)
        plane.create_segment(log, ["stock"])
        plane.close_gate(log, "stock")
        assert plane.gate_state(log, "stock") is GateState.CLOSED

        with pytest.raises(Unsupported, match="make the role of Cleave's token an admin"):
            of_applications.demand_gates(topic)


def test_with_both_a_segment_lives_its_life(secured: SecuredBroker) -> None:
    plane = PulsarDataPlane(secured.access, call_timeout_seconds=PATIENCE_SECONDS)
    logs = PulsarLogClient(secured.access, call_timeout_seconds=PATIENCE_SECONDS)
    log = secured.log()
    plane.create_segment(log, ["s"])
    assert logs.append(log, [OutgoingMessage(b"x", b"k")], producer="p", sequence=1) == 1
    plane.terminate_segment(log)
    reader = logs.open_reader(log, "s", owner="r", live_owners=(), on_arrival=lambda: None)
    messages = wait_until(lambda: reader.read(1))
    reader.acknowledge(messages[0].position)
    wait_until(reader.is_drained)
    reader.close()
    logs.close()
    plane.delete_segment(log)
    assert plane.segment_state(log) is LogState.MISSING
    plane.close()


def test_settings_and_the_extras_of_a_connection_let_in_too_and_a_renewed_token_needs_no_restart(
    secured: SecuredBroker,
    database: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)  # no .env of ours
    token = tmp_path / "token"
    said = {
        "pulsar_admin_url": secured.access.admin_url,
        "pulsar_service_url": str(secured.access.service_url),
        "pulsar_token_file": str(token),
        "pulsar_ca_file": str(secured.access.ca_file),
        "call_timeout_seconds": "25",
    }
    for name, value in said.items():
        monkeypatch.setenv(f"CLEAVE_{name.upper()}", value)
    monkeypatch.setenv("CLEAVE_DATABASE_URL", database)
    token.write_text(str(secured.access.token))
    topic = f"topic://{secured.namespace}/{secrets.token_hex(6)}"
    cleave = CommandLine(database, capsys)
    cleave.ok("topics", "create", topic, "--data-plane", "pulsar")
    cleave.ok("segments", "split", topic, "0")
    cleave.store.dispose()
    for name in said:
        monkeypatch.delenv(f"CLEAVE_{name.upper()}")

    with application(settings_at(database, said)) as app:
        plane = app.planes["pulsar"]
        logs = plane.list_segments(topic)
        assert len(logs) == 3
        token.write_text("no.token.at.all")
        with pytest.raises(Terminal, match="CLEAVE_PULSAR_TOKEN"):
            plane.segment_state(logs[0])
        token.write_text(secured.tokens.token())
        states = [plane.segment_state(log) for log in logs]
    assert Counter(states) == {LogState.OPEN: 2, LogState.TERMINATED: 1}


@pytest.mark.parametrize("token", [None, "no.token.at.all"])
def test_without_a_token_of_the_cluster_nobody_gets_in(secured: SecuredBroker, token: str | None) -> None:
    access = replace(secured.access, token=token)
    plane = PulsarDataPlane(access, call_timeout_seconds=PATIENCE_SECONDS)

    with pytest.raises(Terminal, match="CLEAVE_PULSAR_TOKEN") as raised:
        plane.create_segment(secured.log(), [])
    assert "no.token" not in str(raised.value)
    plane.close()


def test_a_role_without_rights_is_told_what_it_lacks(secured: SecuredBroker) -> None:
    """Once for the admin's side, once for the application's."""
    access = replace(secured.access, token=secured.tokens.token("nobody"))
    plane, admin = (
        PulsarDataPlane(access, call_timeout_seconds=PATIENCE_SECONDS),
        PulsarDataPlane(secured.access, call_timeout_seconds=PATIENCE_SECONDS),
    )
    log = secured.log()
    admin.create_segment(log, ["s"])
    logs = PulsarLogClient(access, call_timeout_seconds=PATIENCE_SECONDS)

    with pytest.raises(Terminal, match=r"answered 40[13].*admin of the tenant|CLEAVE_PULSAR_TOKEN"):
        plane.terminate_segment(log)
    with pytest.raises(Terminal, match=r"40[13]"):
        logs.append(log, [OutgoingMessage(b"x")], producer="p", sequence=1)

    assert admin.segment_state(log) is LogState.OPEN
    for one in (plane, admin, logs):
        one.close()


def test_an_application_that_may_consume_needs_no_more(secured: SecuredBroker) -> None:
    """Its reader looks at statistics and takes over cursors with the right to consume alone."""
    admin = PulsarDataPlane(secured.access, call_timeout_seconds=PATIENCE_SECONDS)
    log = secured.log()
    admin.create_segment(log, ["s"])
    app = secured.grant("app", "produce", "consume")
    logs = PulsarLogClient(app, call_timeout_seconds=PATIENCE_SECONDS)

    logs.append(log, [OutgoingMessage(b"x")], producer="p", sequence=1)
    dead = logs.open_reader(log, "s", owner="a", live_owners=(), on_arrival=lambda: None)
    heir = logs.open_reader(log, "s", owner="b", live_owners=["b"], on_arrival=lambda: None)
    assert [m.payload for m in wait_until(lambda: heir.read(1))] == [b"x"]
    assert not heir.is_drained()
    admin.terminate_segment(log)
    end = TopicEnd(Cursors(logs._admin), log)
    assert end.stored_of(SentBatch("p", 0, 1), NOWHERE, logs._admin.deadline())[1], "its end is final"
    for one in (dead, heir, logs, admin):
        one.close()


def test_a_producer_that_may_not_consume_is_told_to_be_given_that_right(secured: SecuredBroker) -> None:
    """It sends as others do, until a batch is in doubt because its segment was sealed."""
    log, of_producer = secured.log(), secured.grant("producer", "produce")
    with (
        closing(PulsarDataPlane(secured.access, call_timeout_seconds=PATIENCE_SECONDS)) as admin,
        closing(PulsarLogClient(of_producer, call_timeout_seconds=PATIENCE_SECONDS)) as logs,
    ):
        admin.create_segment(log, [])
        assert logs.append(log, [OutgoingMessage(b"x")], producer="p", sequence=1) == 1
        admin.terminate_segment(log)

        with pytest.raises(Terminal, match="grant the token's role the right to consume"):
            TopicEnd(Cursors(logs._admin), log).stored_of(
                SentBatch("p", 0, 1), NOWHERE, logs._admin.deadline()
            )


def test_a_broker_that_proves_nothing_is_not_talked_to(secured: SecuredBroker, tmp_path: Path) -> None:
    access = replace(secured.access, ca_file=str(Authority(tmp_path, "another").ca))
    plane = PulsarDataPlane(access, call_timeout_seconds=PATIENCE_SECONDS)

    with pytest.raises(Terminal, match="has no valid certificate"):
        plane.segment_state(secured.log())
    plane.close()
    log = secured.log()
    admin = PulsarDataPlane(secured.access, call_timeout_seconds=PATIENCE_SECONDS)
    admin.create_segment(log, [])
    logs = PulsarLogClient(access, call_timeout_seconds=3.0)
    with pytest.raises((DataPlaneUnavailable, Terminal)):
        logs.append(log, [OutgoingMessage(b"x")], producer="p", sequence=1)
    logs.close()
    admin.close()
