"""Logs with gates on a real broker, and standard consumers: consumers of Pulsar's own client, without Cleave."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pulsar
import requests

from controller.dataplane.pulsar.barrier import ENTRIES
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.log_client import PulsarLogClient
from controller.dataplane.pulsar.plane import PulsarDataPlane
from controller.domain.gate_states import GateState
from tests.support.bench_planes import PulsarTopic
from tests.support.pulsar_namespaces import make_namespace
from tests.support.waiting import wait_until

FAILOVER, EXCLUSIVE = pulsar.ConsumerType.Failover, pulsar.ConsumerType.Exclusive
RATE = {"dispatchThrottlingRateInMsg": 1, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 2**31 - 1}
"""Dispatch rate of a closed gate, as the admin API takes it."""
_PATIENT_SECONDS = 60.0
_QUIET = pulsar.LoggerLevel.Error


@dataclass
class GatedScene:
    """A namespace on a broker with Cleave's data plane, and the Pulsar client of an application. Needs `close`."""

    here: PulsarTopic
    plane: PulsarDataPlane
    logs: PulsarLogClient
    client: pulsar.Client
    consumers: list[pulsar.Consumer] = field(default_factory=list)

    @classmethod
    def at(
        cls, admin_url: str, service_url: str, namespace: str = "gates", *, fixed: bool = True
    ) -> GatedScene:
        """Return a scene with a separate topic. `fixed` is passed to `make_namespace`."""
        access = PulsarAccess(admin_url=admin_url, service_url=service_url)
        topic = f"topic://{make_namespace(access, namespace, fixed=fixed)}/orders-{secrets.token_hex(4)}"
        here = PulsarTopic(admin_url, service_url, topic)
        return cls(here, _plane(here.access), _logs(here.access), _client(service_url))

    def log(self, *subscriptions: str) -> str:
        """Create a log with these subscriptions. Return its name."""
        name = self.plane.backing_topic(self.here.topic, f"0000-ffff-{secrets.randbelow(10**9)}")
        self.plane.create_segment(name, subscriptions)
        return name

    def gated(self, subscription: str = "stock", *, messages: int = 10) -> str:
        """Create a log, close its gate for the subscription, then send the messages. Return the name of the log."""
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
        queue: int = 1000,
    ) -> pulsar.Consumer:
        """Return a consumer, created as an application creates it. `queue`: maximum number of messages that wait in the consumer."""
        consumer = self.client.subscribe(
            log,
            subscription,
            consumer_type=kind,
            initial_position=pulsar.InitialPosition.Earliest,
            crypto_failure_action=action,
            receiver_queue_size=queue,
        )
        self.consumers.append(consumer)
        return consumer

    def admin(self, method: str, path: str, **options: Any) -> requests.Response:
        """Send a request to the admin API, as Pulsar's own tools do. `path` follows `/admin/v2/`. Raises for an error status."""
        url = f"{self.here.admin_url.split(',')[0]}/admin/v2/{path}"
        response = requests.request(method, url, timeout=_PATIENT_SECONDS, **options)
        response.raise_for_status()
        return response

    def load_again(self, log: str) -> None:
        """Make the broker reload the topic, as after a restart: each dispatch rate begins with a full token bucket."""
        self.admin("PUT", f"{path_of(log)}/unload")

    def dispatched(self, log: str, subscription: str = "stock") -> int:
        """Return the number of entries that the broker has sent to consumers of the subscription since it loaded the topic."""
        subscriptions: Mapping[str, Any] = self.admin("GET", f"{path_of(log)}/stats").json()["subscriptions"]
        return int(subscriptions[subscription]["msgOutCounter"]) if subscription in subscriptions else 0

    def spends_its_token(self, log: str, subscription: str = "stock") -> None:
        """Wait until a consumer was sent the entry that the rate lets pass after a load. A busy broker rarely sends a second entry."""
        wait_until(
            lambda: self.dispatched(log, subscription) > 0,
            timeout_seconds=_PATIENT_SECONDS,
            message=f"a consumer was sent an entry of {log}",
        )
        assert self.dispatched(log, subscription) <= ENTRIES

    def wear_down(self, log: str, subscription: str = "stock") -> None:
        """Change a policy of the topic until the gate is spent. A consumer must be connected.

        Each change renews the tokens of the rate, and one more entry passes.
        """
        rates = itertools.count(100)

        def is_spent() -> bool:
            sent = self.dispatched(log, subscription)
            rate = {**RATE, "dispatchThrottlingRateInMsg": next(rates)}
            self.admin("POST", f"{path_of(log)}/other/dispatchRate", json=rate)
            wait_until(lambda: self.dispatched(log, subscription) > sent, message="an entry passes")
            return self.plane.gate_state(log, subscription) is GateState.SPENT

        wait_until(is_spent, message="the gate is spent")

    def close(self) -> None:
        """Close the consumers, remove the logs and close the connections."""
        self.client.close()
        self.here.remove(self.plane)
        self.logs.close()
        self.plane.close()


def received(consumer: pulsar.Consumer, most: int = 1000) -> list[bytes]:
    """Return the payloads of up to `most` messages that the consumer has buffered, without waiting. Nothing is acknowledged."""
    payloads: list[bytes] = []
    try:
        while len(payloads) < most:
            payloads.append(consumer.receive(timeout_millis=1).data())
    except pulsar.Timeout:
        pass
    return payloads


def receive(consumer: pulsar.Consumer, count: int) -> list[bytes]:
    """Receive and acknowledge until `count` different messages were delivered. Return their payloads, in the order of first deliveries.

    A message may be delivered again if the consumer loses its connection before the broker has the acknowledgement. Raises pulsar.Timeout.
    """
    payloads: dict[bytes, None] = {}
    while len(payloads) < count:
        message = consumer.receive(timeout_millis=int(_PATIENT_SECONDS * 1000))
        consumer.acknowledge(message)
        payloads[message.data()] = None
    return list(payloads)


def acknowledge_all(consumer: pulsar.Consumer) -> None:
    """Acknowledge all messages that the consumer has buffered."""
    with suppress(pulsar.Timeout):
        while True:
            consumer.acknowledge(consumer.receive(timeout_millis=1))


def numbers(count: int) -> Sequence[bytes]:
    """Return the payloads that `GatedScene.send` appends."""
    return [b"%d" % number for number in range(count)]


def path_of(log: str) -> str:
    """Return the part of an admin path that names the log's topic."""
    return log.replace("://", "/")


def _plane(access: PulsarAccess) -> PulsarDataPlane:
    return PulsarDataPlane(access, call_timeout_seconds=_PATIENT_SECONDS)


def _logs(access: PulsarAccess) -> PulsarLogClient:
    return PulsarLogClient(access, call_timeout_seconds=_PATIENT_SECONDS)


def _client(service_url: str) -> pulsar.Client:
    return pulsar.Client(service_url, logger=pulsar.FileLogger(_QUIET, "/dev/null"))
