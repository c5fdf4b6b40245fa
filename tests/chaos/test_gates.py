"""Closed gates hold while brokers are killed, restarted and replaced, with consumers attached all the time.

A namespace beside the gates, without any, shows that the same consumers would have had every message. `tests/integration/dataplane/test_pulsar_gates.py` is the
quick part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import pulsar
import pytest
import requests

from controller.dataplane.pulsar.barrier import ENTRIES
from controller.devstack.pulsar.cluster import CALM, ClusterBroker, PulsarCluster
from controller.devstack.pulsar.java_server import QUICK
from controller.devstack.pulsar.standalone import PulsarStandalone
from controller.domain.errors import CleaveError, Retryable
from controller.domain.gates import GateState
from tests.support.brokers import demand_jars
from tests.support.gated import EXCLUSIVE, FAILOVER, GatedScene, numbers, path_of, receive, received
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.pulsar, pytest.mark.chaos, pytest.mark.timeout(900)]

MESSAGES = 20
LOGS = 12
TAKEOVER_SECONDS = 120.0


@dataclass
class Held:
    """Logs with a consumer each. Those of `gated` have closed gates, those of `control` have none."""

    scene: GatedScene
    gated: dict[str, pulsar.Consumer] = field(default_factory=dict)
    control: dict[str, pulsar.Consumer] = field(default_factory=dict)

    def settle(self) -> None:
        """Wait until the broker has given the consumer of each gated log the entry that a load gives out."""
        for log in self.gated:
            was_given = partial(self._was_given, log)
            wait_until(retry_for(was_given), timeout_seconds=TAKEOVER_SECONDS, message=f"an entry of {log}")

    def _was_given(self, log: str) -> bool:
        return self.scene.dispatched(log) > 0

    def leaked(self) -> dict[str, list[bytes]]:
        """Messages that came through closed gates, by log."""
        found = {log: received(consumer) for log, consumer in self.gated.items()}
        return {log: messages for log, messages in found.items() if messages}

    def open(self) -> None:
        """Open each gate; every message comes, in order."""
        for log in self.gated:
            assert self.scene.plane.gate_state(log, "stock") is GateState.CLOSED
            self.scene.plane.open_gate(log, "stock")
        for consumer in self.gated.values():
            assert receive(consumer, MESSAGES) == numbers(MESSAGES)


def retry_for(look: Callable[[], bool]) -> Callable[[], bool]:
    """`look`, and False while a broker is away or hands a topic over."""

    def found() -> bool:
        try:
            return look()
        except (Retryable, requests.RequestException):
            return False

    return found


def held(scene: GatedScene, kinds: Sequence[pulsar.ConsumerType], logs: int) -> Held:
    """Gated logs of each kind with a consumer each, that attached before the gate was closed; and a control of each."""
    found = Held(scene)
    for kind in kinds:
        for _ in range(logs):
            log = scene.log("stock")
            found.gated[log] = scene.consumer(log, kind=kind)
        log = scene.log("stock")
        found.control[log] = scene.consumer(log, kind=kind)
    for log in found.gated:
        scene.plane.close_gate(log, "stock")
    return found


def test_nothing_passes_a_closed_gate_however_often_the_broker_dies(
    killable_broker: PulsarStandalone,
) -> None:
    with closing(GatedScene.at(killable_broker.admin_url, killable_broker.service_url)) as scene:
        found = held(scene, [FAILOVER, EXCLUSIVE], 4)
        for log in (*found.gated, *found.control):
            scene.send(log, MESSAGES)

        def kill() -> None:
            killable_broker.kill()
            killable_broker.start()

        def unload() -> None:
            for log in found.gated:
                scene.load_again(log)

        for strike in (kill, unload, killable_broker.restart, unload, kill, unload):
            strike()
            found.settle()
            assert found.leaked() == {}
        for consumer in found.control.values():
            assert Counter(receive(consumer, MESSAGES)) == Counter(numbers(MESSAGES))
        found.open()


@pytest.mark.parametrize("kind", [FAILOVER, EXCLUSIVE])
def test_each_load_gives_out_the_barrier_alone(
    killable_broker: PulsarStandalone,
    kind: pulsar.ConsumerType,
    record_figure: Callable[[str], None],
) -> None:
    """Twenty logs are loaded side by side, eight times. Now and then a load gives out two entries of the barrier, since the broker counts a
    dispatch with a number that the dispatch of another topic changes.
    """
    with closing(GatedScene.at(killable_broker.admin_url, killable_broker.service_url)) as scene:
        found = held(scene, [kind], 20)
        for log in found.gated:
            scene.send(log, MESSAGES)
        given = Counter[int]()
        for _ in range(8):
            for log in found.gated:
                scene.load_again(log)
            found.settle()
            assert found.leaked() == {}
            given.update(scene.dispatched(log) for log in found.gated)
        record_figure(
            f"entries that a load of a gated log gave out, {kind.name}: {dict(sorted(given.items()))}"
        )
        assert max(given) < ENTRIES
        found.open()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarCluster]:
    """Two brokers. The death of one is noticed within seconds instead of half a minute."""
    quick = {**CALM, "metadataStoreSessionTimeoutMillis": "5000"}
    cluster = PulsarCluster(
        tmp_path_factory.mktemp("pair"), jvm=QUICK, properties=quick, hosts=("127.0.0.1", "localhost")
    )
    demand_jars(cluster.version)
    with cluster:
        yield cluster
    cluster.destroy()


def owners(scene: GatedScene, logs: Sequence[str]) -> dict[str, str]:
    """The broker that serves each log, as `host:port` of its admin API."""
    url = scene.here.admin_url.split(",")[0]
    found = {}
    for log in logs:
        answer = requests.get(f"{url}/lookup/v2/topic/{path_of(log)}", timeout=60).json()
        found[log] = answer["httpUrl"].removeprefix("http://")
    return found


@pytest.mark.parametrize("at_once", [False, True])
def test_a_broker_that_takes_over_gated_logs_from_a_killed_one_lets_nothing_pass(
    pair: PulsarCluster, *, at_once: bool
) -> None:
    """Each broker in turn owns gated logs and dies by SIGKILL. `at_once`: the moment the last gate is closed, when the other broker
    may not have read the new policies.
    """
    for victim in pair.brokers:
        survivor = next(one for one in pair.brokers if one is not victim)
        with closing(_scene(pair, survivor)) as scene:
            found = held(scene, [FAILOVER, EXCLUSIVE], LOGS)
            if not at_once:
                for log in (*found.gated, *found.control):
                    scene.send(log, MESSAGES)
                found.settle()
            owner = owners(scene, [*found.gated, *found.control])
            lost = [log for log in found.gated if owner[log] == victim.broker_id]
            assert lost, "the broker to be killed owns no gated log"

            victim.kill()
            wait_for_takeover(scene, [*found.gated, *found.control], survivor)
            if at_once:
                for log in (*found.gated, *found.control):
                    scene.send(log, MESSAGES)
            found.settle()
            assert found.leaked() == {}
            for consumer in found.control.values():
                assert Counter(receive(consumer, MESSAGES)) == Counter(numbers(MESSAGES))
            found.open()
            victim.start()


def wait_for_takeover(scene: GatedScene, logs: Sequence[str], survivor: ClusterBroker) -> None:
    """Wait until the broker serves all of the logs."""
    wait_until(
        retry_for(lambda: {*owners(scene, logs).values()} == {survivor.broker_id}),
        timeout_seconds=TAKEOVER_SECONDS,
        message=f"{len(logs)} logs at {survivor.broker_id}",
    )


def _scene(pair: PulsarCluster, survivor: ClusterBroker) -> GatedScene:
    return GatedScene.at(survivor.admin_url, pair.service_url, "gates-of-a-pair")


def test_gates_are_refused_where_topics_have_no_policies(tmp_path_factory: pytest.TempPathFactory) -> None:
    for setting in ("topicLevelPoliciesEnabled", "dispatchThrottlingOnNonBacklogConsumerEnabled"):
        broker = PulsarStandalone(
            tmp_path_factory.mktemp("without"), jvm=QUICK, properties={setting: "false"}
        )
        demand_jars(broker.version)
        try:
            broker.start()
            with closing(GatedScene.at(broker.admin_url, broker.service_url, fixed=False)) as scene:
                with pytest.raises(CleaveError, match=f"set {setting}=true"):
                    scene.plane.demand_gates(scene.here.topic)
                log = scene.log("stock")
                if setting == "topicLevelPoliciesEnabled":
                    with pytest.raises(CleaveError, match=f"set {setting}=true"):
                        scene.plane.close_gate(log, "stock")
                    scene.plane.open_gate(log, "stock")
                    assert scene.plane.gate_state(log, "stock") is GateState.OPEN
        finally:
            broker.destroy()
