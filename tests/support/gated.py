"""Logs with gates on a real broker, and consumers of the standard client that know nothing of Cleave."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pulsar
import requests

from controller.dataplane.pulsar.access import PulsarAccess
from controller.dataplane.pulsar.barrier import ENTRIES
from controller.dataplane.pulsar.log_client import PulsarLogClient
from controller.dataplane.pulsar.plane import PulsarDataPlane
from tests.support.bench_planes import OnPulsar
from tests.support.pulsar_namespaces import make_namespace
from tests.support.waiting import wait_until

FAILOVER, EXCLUSIVE = pulsar.ConsumerType.Failover, pulsar.ConsumerType.Exclusive
_PATIENT_SECONDS = 60.0
_QUIET = pulsar.LoggerLevel.Error


@dataclass
class GatedScene:
    """A namespace on a broker, Cleave's plane, and an application's own client. `close` gives back all of it."""

    here: OnPulsar
    plane: PulsarDataPlane
    logs: PulsarLogClient
    client: pulsar.Client
    consumers: list[pulsar.Consumer] = field(default_factory=list)

    @classmethod
    def at(
        cls, admin_url: str, service_url: str, namespace: str = "gates", *, fixed: bool = True
    ) -> GatedScene:
        """A scene with a topic of its own; `fixed` as for `make_namespace`."""
        access = PulsarAccess(admin_url=admin_url, service_url=service_url)
        topic = f"topic://{make_namespace(access, namespace, fixed=fixed)}/orders-{secrets.token_hex(4)}"
        here = OnPulsar(admin_url, service_url, topic)
        return cls(here, _plane(here.access), _logs(here.access), _client(service_url))

    def log(self, *subscriptions: str) -> str:
        """A new log with these subscriptions."""
        name = self.plane.backing_topic(self.here.topic, f"0000-ffff-{secrets.randbelow(10**9)}")
        self.plane.create_segment(name, subscriptions)
        return name

    def gated(self, subscription: str = "stock", *, messages: int = 10) -> str:
        """A new log whose gate for the subscription was closed before the messages came."""
        log = self.log(subscription)
        self.plane.close_gate(log, subscription)
        self.send(log, messages)
        return log

    def send(self, log: str, messages: int) -> None:
        """Append `0`, `1`, ... with the application's client."""
        producer = self.client.create_producer(log)
        for number in range(messages):
            producer.send(b"%d" % number)
        producer.close()

    def consumer(
        self,
        log: str,
        subscription: str = "stock",
        kind: pulsar.ConsumerType = FAILOVER,
        action: pulsar.ConsumerCryptoFailureAction = pulsar.ConsumerCryptoFailureAction.FAIL,
    ) -> pulsar.Consumer:
        """A consumer as an application makes it."""
        found = self.client.subscribe(
            log,
            subscription,
            consumer_type=kind,
            initial_position=pulsar.InitialPosition.Earliest,
            crypto_failure_action=action,
        )
        self.consumers.append(found)
        return found

    def admin(self, method: str, path: str, **options: Any) -> requests.Response:
        """A call as Pulsar's own tools make it; `path` comes behind `/admin/v2/`."""
        url = f"{self.here.admin_url.split(',')[0]}/admin/v2/{path}"
        answer = requests.request(method, url, timeout=_PATIENT_SECONDS, **options)
        answer.raise_for_status()
        return answer

    def load_again(self, log: str) -> None:
        """Have the broker load the topic again, as after a restart: each dispatch rate begins with a full bucket."""
        self.admin("PUT", f"{path_of(log)}/unload")

    def dispatched(self, log: str, subscription: str = "stock") -> int:
        """Entries that the broker has given to consumers of the subscription since it loaded the topic."""
        found: Mapping[str, Any] = self.admin("GET", f"{path_of(log)}/stats").json()["subscriptions"]
        return int(found[subscription]["msgOutCounter"]) if subscription in found else 0

    def spends_its_token(self, log: str, subscription: str = "stock") -> None:
        """Wait until the entry that the rate lets pass after a load was given to a consumer. On a busy broker it is seldom two."""
        wait_until(
            lambda: self.dispatched(log, subscription) > 0,
            timeout_seconds=_PATIENT_SECONDS,
            message=f"an entry of {log} for a consumer",
        )
        assert self.dispatched(log, subscription) <= ENTRIES

    def close(self) -> None:
        """End the consumers and remove the logs."""
        self.client.close()
        self.here.remove(self.plane)
        self.logs.close()
        self.plane.close()


def received(consumer: pulsar.Consumer) -> list[bytes]:
    """Messages that wait at the consumer, without waiting for more."""
    found: list[bytes] = []
    try:
        while True:
            found.append(consumer.receive(timeout_millis=1).data())
    except pulsar.Timeout:
        return found


def receive(consumer: pulsar.Consumer, count: int) -> list[bytes]:
    """The next messages, acknowledged."""
    found: list[bytes] = []
    for _ in range(count):
        message = consumer.receive(timeout_millis=int(_PATIENT_SECONDS * 1000))
        consumer.acknowledge(message)
        found.append(message.data())
    return found


def numbers(count: int) -> Sequence[bytes]:
    """What `GatedScene.send` appends."""
    return [b"%d" % number for number in range(count)]


def path_of(log: str) -> str:
    """The topic's part of an admin call."""
    return log.replace("://", "/")


def _plane(access: PulsarAccess) -> PulsarDataPlane:
    return PulsarDataPlane(access, call_timeout_seconds=_PATIENT_SECONDS)


def _logs(access: PulsarAccess) -> PulsarLogClient:
    return PulsarLogClient(access, call_timeout_seconds=_PATIENT_SECONDS)


def _client(service_url: str) -> pulsar.Client:
    return pulsar.Client(service_url, logger=pulsar.FileLogger(_QUIET, "/dev/null"))
