"""What an application serves of Cleave's metrics: what its own producers and consumers count, and no more."""

from __future__ import annotations

import json
import subprocess
import sys

SERVED = """
import json
from prometheus_client import REGISTRY
import controller.client.http_source, controller.client.keyed_work, pulsar_cleave
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.registry import PlaneSettings, build_log_client

pulsar = PulsarAccess(admin_url="http://127.0.0.1:1", service_url="pulsar://127.0.0.1:1")
settings = PlaneSettings(pulsar=pulsar, embedded_url="postgresql://127.0.0.1:1/none")
for plane in ("pulsar", "embedded"):
    build_log_client(plane, settings).close()
print(json.dumps([one.name for one in REGISTRY.collect() if one.name.startswith("cleave_")]))
"""


def test_an_application_has_the_series_of_clients_alone() -> None:
    served = subprocess.run([sys.executable, "-c", SERVED], capture_output=True, check=True, text=True)

    assert set(json.loads(served.stdout)) == {
        "cleave_producer_batches",
        "cleave_producer_messages",
        "cleave_consumer_messages",
        "cleave_consumer_acknowledged",
        "cleave_stalled_readers",
        "cleave_misplaced_messages",
        "cleave_shortened_logs",
        "cleave_loop_errors",
        "cleave_ignored_notifications",
    }
