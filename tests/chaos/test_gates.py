"""Closed gates hold while brokers are killed, restarted and replaced. Consumers are connected all the time.

Control logs without gates show that the same consumers would otherwise have received every message.
`tests/integration/dataplane/test_pulsar_gates.py` has the fast tests.
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
from controller.domain.gate_states import GateState
from tests.support.brokers import demand_jars
from tests.support.gated import EXCLUSIVE, FAILOVER, GatedScene, numbers, path_of, receive, received
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.pulsar, pytest.mark.chaos, pytest.mark.timeout(900)]

MESSAGES = 20
LOGS = 12
TAKEOVER_SECONDS = 120.0


@dataclass
class GatedAndControlLogs:
    """Logs with one consumer each. The logs of `gated` have closed gates; the logs of `control` have no gates."""

    scene: GatedScene
    gated: dict[str, pulsar.Consumer] = field(default_factory=dict)
    control: dict[str, pulsar.Consumer] = field(default_factory=dict)

    def settle(self) -> None:
        """Wait until the broker has sent the consumer of each gated log the entry that the rate lets pass after a load."""
        for log in self.gated:
            was_sent = partial(self._was_sent, log)
            wait_until(retry_for(was_sent), timeout_seconds=TAKEOVER_SECONDS, message=f"an entry of {log}")

    def _was_sent(self, log: str) -> bool:
        return self.scene.dispatched(log) > 0

    def leaked(self) -> dict[str, list[bytes]]:
        """Return the messages that passed closed gates, by log."""
        messages_by_log = {log: received(consumer) for log, consumer in self.gated.items()}
        return {log: messages for log, messages in messages_by_log.items() if messages}

    def open(self) -> None:
        """Open each gate, and check that every message is delivered in order."""
        for log in self.gated:
            assert self.scene.plane.gate_state(log, "stock") is GateState.CLOSED
            self.scene.plane.open_gate(log, "stock")
        for consumer in self.gated.values():
            assert receive(consumer, MESSAGES) == numbers(MESSAGES)


def retry_for(check: Callable[[], bool]) -> Callable[[], bool]:
    """Return a function that calls `check`, and returns False while a broker is down or transfers a topic."""

    def check_or_false() -> bool:
        try:
            return check()
        except (Retryable, requests.RequestException):
            return False

    return check_or_false


def held(scene: GatedScene, kinds: Sequence[pulsar.ConsumerType], logs: int) -> GatedAndControlLogs:
    """Create `logs` gated logs and one control log for each kind of consumer. The consumers connect before the gates are closed."""
    created = GatedAndControlLogs(scene)
    for kind in kinds:
        for _ in range(logs):
            log = scene.log("stock")
            created.gated[log] = scene.consumer(log, kind=kind)
        log = scene.log("stock")
        created.control[log] = scene.consumer(log, kind=kind)
    for log in created.gated:
        scene.plane.close_gate(log, "stock")
    return created


def test_nothing_passes_a_closed_gate_however_often_the_broker_dies(
    killable_broker: PulsarStandalone,
) -> None:
    with closing(GatedScene.at(killable_broker.admin_url, killable_broker.service_url)) as scene:
        held_logs = held(scene, [FAILOVER, EXCLUSIVE], 4)
        for log in (*held_logs.gated, *held_logs.control):
            scene.send(log, MESSAGES)

        def kill() -> None:
            killable_broker.kill()
            killable_broker.start()

        def unload() -> None:
            for log in held_logs.gated:
                scene.load_again(log)

        for strike in (kill, unload, killable_broker.restart, unload, kill, unload):
            strike()
            held_logs.settle()
            assert held_logs.leaked() == {}
        for consumer in held_logs.control.values():
            assert Counter(receive(consumer, MESSAGES)) == Counter(numbers(MESSAGES))
        held_logs.open()


@pytest.mark.parametrize("kind", [FAILOVER, EXCLUSIVE])
def test_each_load_gives_out_the_barrier_alone(
    killable_broker: PulsarStandalone,
    kind: pulsar.ConsumerType,
    record_figure: Callable[[str], None],
) -> None:
    """Twenty logs are reloaded eight times, all at once. A load occasionally sends two entries of the barrier, because the broker counts a
    dispatch with a number that the dispatch of another topic changes.
    """
    with closing(GatedScene.at(killable_broker.admin_url, killable_broker.service_url)) as scene:
        held_logs = held(scene, [kind], 20)
        for log in held_logs.gated:
            scene.send(log, MESSAGES)
        entries_per_load = Counter[int]()
        for _ in range(8):
            for log in held_logs.gated:
                scene.load_again(log)
            held_logs.settle()
            assert held_logs.leaked() == {}
            entries_per_load.update(scene.dispatched(log) for log in held_logs.gated)
        record_figure(
            f"entries that a load of a gated log gave out, {kind.name}: {dict(sorted(entries_per_load.items()))}"
        )
        assert max(entries_per_load) < ENTRIES
        held_logs.open()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarCluster]:
    """Cluster of two brokers. The cluster detects the death of a broker within seconds instead of half a minute."""
    quick = {**CALM, "metadataStoreSessionTimeoutMillis": "5000"}
    cluster = PulsarCluster(
        tmp_path_factory.mktemp("pair"), jvm=QUICK, properties=quick, hosts=("127.0.0.1", "localhost")
    )
    demand_jars(cluster.version)
    with cluster:
        yield cluster
    cluster.destroy()


def owners(scene: GatedScene, logs: Sequence[str]) -> dict[str, str]:
    """Return the broker that serves each log, as `host:port` of its admin API."""
    url = scene.here.admin_url.split(",")[0]
    owner_by_log = {}
    for log in logs:
        answer = requests.get(f"{url}/lookup/v2/topic/{path_of(log)}", timeout=60).json()
        owner_by_log[log] = answer["httpUrl"].removeprefix("http://")
    return owner_by_log


@pytest.mark.parametrize("at_once", [False, True])
def test_a_broker_that_takes_over_gated_logs_from_a_killed_one_lets_nothing_pass(
    pair: PulsarCluster, *, at_once: bool
) -> None:
    """Each broker in turn owns gated logs and is killed with SIGKILL.

    With `at_once` the broker is killed right after the last gate is closed, when the other broker may not have read the new policies.
    """
    for victim in pair.brokers:
        survivor = next(broker for broker in pair.brokers if broker is not victim)
        with closing(_scene(pair, survivor)) as scene:
            held_logs = held(scene, [FAILOVER, EXCLUSIVE], LOGS)
            if not at_once:
                for log in (*held_logs.gated, *held_logs.control):
                    scene.send(log, MESSAGES)
                held_logs.settle()
            owner = owners(scene, [*held_logs.gated, *held_logs.control])
            lost = [log for log in held_logs.gated if owner[log] == victim.broker_id]
            assert lost, "the broker to be killed owns no gated log"

            victim.kill()
            wait_for_takeover(scene, [*held_logs.gated, *held_logs.control], survivor)
            if at_once:
                for log in (*held_logs.gated, *held_logs.control):
                    scene.send(log, MESSAGES)
            held_logs.settle()
            assert held_logs.leaked() == {}
            for consumer in held_logs.control.values():
                assert Counter(receive(consumer, MESSAGES)) == Counter(numbers(MESSAGES))
            held_logs.open()
            victim.start()


def wait_for_takeover(scene: GatedScene, logs: Sequence[str], survivor: ClusterBroker) -> None:
    """Wait until the surviving broker serves all of the logs."""
    wait_until(
        retry_for(lambda: {*owners(scene, logs).values()} == {survivor.broker_id}),
        timeout_seconds=TAKEOVER_SECONDS,
        message=f"{survivor.broker_id} serves {len(logs)} logs",
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
