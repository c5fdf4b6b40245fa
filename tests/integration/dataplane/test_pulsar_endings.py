"""A process that ends with clients open ends as it would without: the library's threads are gone before the interpreter is."""

from __future__ import annotations

import secrets
import subprocess
import sys

import pytest

from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.plane import PulsarDataPlane
from tests.support.brokers import SharedBroker
from tests.support.pulsar_namespaces import make_namespace

PROCESS = """
import sys, threading
from controller.dataplane.log_client import OutgoingMessage
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.log_client import PulsarLogClient
admin_url, service_url, log, how = sys.argv[1:]
logs = PulsarLogClient(PulsarAccess(admin_url=admin_url, service_url=service_url), call_timeout_seconds=30.0)
logs.append(log, [OutgoingMessage(b"1")], producer="p", sequence=1)
reader = logs.open_reader(log, "s", owner="o", live_owners=(), on_arrival=lambda: None)
positions = logs.open_reader_at(log, None, on_arrival=lambda: None)

def send():
    for sequence in range(2, 1_000_000):
        logs.append(log, [OutgoingMessage(b"1")] * 100, producer="p", sequence=sequence)
        reader.read(10)
        if sequence == 5:
            begun.set()

begun = threading.Event()
if how == "busy":
    threading.Thread(target=send, daemon=True).start()
    begun.wait()
if how == "failing":
    sys.exit(3)
"""


@pytest.mark.parametrize(("how", "code"), [("idle", 0), ("busy", 0), ("failing", 3)])
def test_a_process_ends_with_clients_open(pulsar_broker: SharedBroker, how: str, code: int) -> None:
    access = PulsarAccess(admin_url=pulsar_broker.admin_url, service_url=pulsar_broker.service_url)
    plane = PulsarDataPlane(access, call_timeout_seconds=30.0)
    namespace = make_namespace(access, f"endings-{secrets.token_hex(4)}")
    log = f"persistent://{namespace}/log"
    plane.create_segment(log, ["s"])
    plane.close()

    done = subprocess.run(
        [sys.executable, "-c", PROCESS, pulsar_broker.admin_url, pulsar_broker.service_url, log, how],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (done.returncode, "terminate" in done.stderr) == (code, False), done.stderr
