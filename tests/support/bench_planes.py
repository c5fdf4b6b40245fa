"""Data planes of a bench: the embedded logs of its own database, or a topic of its own on a real broker.

Operations run with short timeouts and claims, because a runner that takes over waits until both have expired. The calls of the test itself
have a long timeout, so that they succeed on a busy machine.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import requests

from controller.dataplane.base import DataPlane
from controller.dataplane.embedded.log_client import EmbeddedLogClient
from controller.dataplane.embedded.plane import EmbeddedDataPlane
from controller.dataplane.log_client import LogClient
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.log_client import PulsarLogClient
from controller.dataplane.pulsar.plane import PulsarDataPlane
from controller.dataplane.pulsar_scalable import PulsarScalableDataPlane
from tests.support.pulsar_namespaces import make_namespace

CALL_TIMEOUT_SECONDS = 0.4
LEASE_SECONDS = 0.8
UNHURRIED_LEASE_SECONDS = 30.0
"""A claim that does not run out on a slow machine, for a run that no other runner waits for."""
TOPIC = "topic://acme/shop/orders"
PLAIN_LOGS = ("persistent://t/n/old-partition-0", "persistent://t/n/old-partition-1")
"""Logs that applications made before there was a topic; the embedded plane takes any name."""
PULSAR_CALL_TIMEOUT_SECONDS = 2.0
PULSAR_LEASE_SECONDS = 2.5
_PATIENT_SECONDS = 25.0


@dataclass(frozen=True, slots=True)
class PulsarTopic:
    """A topic on a real broker that no other bench uses; it is passed to other processes as JSON."""

    admin_url: str
    service_url: str
    topic: str
    keeps_layout: bool = False
    """Whether it is one of Pulsar 5's scalable topics."""

    @classmethod
    def fresh(cls, admin_url: str, service_url: str, namespace: str) -> PulsarTopic:
        """Return an unused topic name, in a namespace that is created and configured."""
        access = PulsarAccess(admin_url=admin_url, service_url=service_url)
        return cls(
            admin_url,
            service_url,
            f"topic://{make_namespace(access, namespace)}/orders-{secrets.token_hex(4)}",
        )

    @property
    def access(self) -> PulsarAccess:
        """The broker's address, as the data plane takes it."""
        return PulsarAccess(admin_url=self.admin_url, service_url=self.service_url)

    @property
    def plain_logs(self) -> tuple[str, str]:
        """Partitions of a topic that Cleave does not manage, next to `topic`; `make_plain_topic` creates them."""
        old = f"{self.topic.replace('topic://', 'persistent://')}-old"
        return f"{old}-partition-0", f"{old}-partition-1"

    def make_plain_topic(self) -> None:
        """Create a partitioned topic as an application does, unless it exists."""
        answer = requests.put(self._plain_url, json=len(self.plain_logs), timeout=_PATIENT_SECONDS)
        assert answer.status_code in (204, 409), answer.text[:200]

    def remove(self, plane: DataPlane) -> None:
        """Delete the remaining logs and the plain topic, so that a broker that many benches share does not carry them."""
        for log in plane.list_segments(self.topic):
            plane.delete_segment(log)
        answer = requests.delete(f"{self._plain_url}?force=true", timeout=_PATIENT_SECONDS)
        assert answer.status_code in (204, 404), answer.text[:200]

    @property
    def _plain_url(self) -> str:
        return f"{self.admin_url}/admin/v2/{self.topic.replace('topic://', 'persistent/')}-old/partitions"


@dataclass(frozen=True, slots=True)
class BenchPlane:
    """One data plane of a bench: `plane` for the test's own reads and actions, `of_runners` for operations."""

    plane: DataPlane
    of_runners: DataPlane
    logs: LogClient
    lease_seconds: float
    patience_seconds: float
    """For waiting until something ends that waits for claims to run out."""

    def close(self) -> None:
        """Close all connections."""
        self.logs.close()
        self.of_runners.close()
        self.plane.close()


def bench_plane(url: str, pulsar: PulsarTopic | None) -> BenchPlane:
    """Return the data plane of the logs in the database at `url`, or of the broker."""
    if pulsar is None:
        return BenchPlane(
            EmbeddedDataPlane(url, call_timeout_seconds=_PATIENT_SECONDS),
            EmbeddedDataPlane(url, call_timeout_seconds=CALL_TIMEOUT_SECONDS),
            EmbeddedLogClient(url),
            LEASE_SECONDS,
            30.0,
        )
    adapter = PulsarScalableDataPlane if pulsar.keeps_layout else PulsarDataPlane
    return BenchPlane(
        adapter(pulsar.access, call_timeout_seconds=_PATIENT_SECONDS),
        adapter(pulsar.access, call_timeout_seconds=PULSAR_CALL_TIMEOUT_SECONDS),
        PulsarLogClient(pulsar.access, call_timeout_seconds=_PATIENT_SECONDS),
        PULSAR_LEASE_SECONDS,
        90.0,
    )
