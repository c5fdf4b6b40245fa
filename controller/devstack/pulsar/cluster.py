"""A Pulsar cluster on loopback: ZooKeeper, one bookie and several brokers, each as a separate process.

For tests that need more than one broker: ownership, moves of bundles, the end of a broker. Two brokers are ready in
about 25 s and take 1.1 GiB together. Each part may be stopped, killed and started again separately.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

from controller.devstack.control_group import ControlGroup
from controller.devstack.failure import DevstackFailed
from controller.devstack.ports import LOOPBACK, is_listening
from controller.devstack.process import run_checked
from controller.devstack.pulsar.broker_health import is_healthy
from controller.devstack.pulsar.configuration import (
    BOOKIE,
    BROKER,
    delete_data,
    kept_ports,
    loopback_interface,
    write_properties,
)
from controller.devstack.pulsar.jars import PULSAR_4, pulsar_jars
from controller.devstack.pulsar.java_server import TUNED, JavaProgram, JavaServer, Jvm
from controller.devstack.running import Running

CLUSTER_NAME = "cleave"
CALM: Final[Mapping[str, str]] = {
    "loadBalancerSheddingEnabled": "false",
    "loadBalancerAutoBundleSplitEnabled": "false",
    "statsUpdateFrequencyInSecs": "5",
}
"""Settings of brokers that do not move or split bundles by themselves, and count rates every 5 s instead of every
minute.
"""
_BOOKIE_DRIVER = "org.apache.pulsar.metadata.bookkeeper.PulsarMetadataBookieDriver"


class LoadManager(StrEnum):
    """The class that places and moves bundles; the values are Pulsar's class names."""

    MODULAR = "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl"
    EXTENSIBLE = "org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerImpl"


class ClusterBroker(JavaServer):
    """One broker of a cluster, which may be stopped or killed and started again."""

    def __init__(
        self,
        name: str,
        program: JavaProgram,
        directory: Path,
        ports: tuple[int, int],
        host: str,
    ) -> None:
        """Store the settings. `ports`: of the admin REST API, and of the binary protocol; `host` is a name of the
        loopback interface.
        """
        self.broker_id = f"{host}:{ports[0]}"
        """Pulsar's name of the broker, as in `destinationBroker` of an unload."""
        self.admin_url = f"http://{host}:{ports[0]}"
        self.service_url = f"pulsar://{host}:{ports[1]}"
        super().__init__(name, program, directory, lambda: is_healthy(self.admin_url))


class PulsarCluster(Running):
    """`brokers` brokers over one bookie; `properties` adds to or overrides the brokers' configuration.

    `hosts` are the names of the brokers, in turn: isolation policies distinguish brokers by host, not by port.
    `groups` (by `broker-0`, `broker-1`, ...) give a broker its own control group, which counts its processor time
    separately.
    """

    def __init__(
        self,
        directory: Path,
        version: str = PULSAR_4,
        *,
        brokers: int = 2,
        load_manager: LoadManager = LoadManager.MODULAR,
        jvm: Jvm = TUNED,
        properties: Mapping[str, str] | None = None,
        hosts: Sequence[str] = (LOOPBACK,),
        groups: Mapping[str, ControlGroup] | None = None,
    ) -> None:
        """Store the settings, fetch the jars of the version if necessary, and write the configuration of each part. No
        part is started.

        Raises DevstackFailed for less than one broker, and the errors of `pulsar_jars` and `kept_ports`.
        """
        if brokers < 1:
            raise DevstackFailed(f"a cluster cannot have {brokers} brokers; give at least 1")
        self._directory = directory.resolve()
        self.version = version
        self._jvm = jvm
        self._properties = {"loadManagerClassName": load_manager.value, **(properties or {})}
        self._groups = dict(groups or {})
        names = [f"broker-{number}" for number in range(brokers)]
        self._jars = pulsar_jars(version)
        self._ports = kept_ports(
            self._directory,
            ["zookeeper", "bookie", *(f"{name} {use}" for name in names for use in ("admin", "service"))],
        )
        self.zookeeper = self._create_zookeeper()
        self.bookie = self._create_bookie()
        self.brokers = tuple(
            self._create_broker(name, hosts[number % len(hosts)]) for number, name in enumerate(names)
        )

    @property
    def admin_url(self) -> str:
        """Admin REST API of the first broker; it redirects requests for topics that another broker owns."""
        return self.brokers[0].admin_url

    @property
    def service_url(self) -> str:
        """URL of all brokers, for a client that continues with the next broker if one is unavailable."""
        hosts = ",".join(broker.service_url.removeprefix("pulsar://") for broker in self.brokers)
        return f"pulsar://{hosts}"

    def start(self) -> None:
        """Start the parts that do not run, in order, and wait until every broker is healthy. If a part does not start, stop all parts and
        raise the error, which is a DevstackFailed if the part ended or was not ready within `START_TIMEOUT_SECONDS`.
        """
        try:
            self.zookeeper.start()
            self._initialise()
            self.bookie.start()
            for broker in self.brokers:
                broker.launch()
            for broker in self.brokers:
                broker.wait_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Shut everything down, brokers first; the data stays. May be repeated."""
        for broker in self.brokers:
            broker.ask_to_end()
        for server in (*self.brokers, self.bookie, self.zookeeper):
            server.stop()

    def kill(self) -> None:
        """Send SIGKILL to every process, like a power failure of the machine."""
        for server in (*self.brokers, self.bookie, self.zookeeper):
            server.kill()

    def destroy(self) -> None:
        """Kill the cluster, release its ports and delete the data permanently; the logs stay. Create another object for another start."""
        self.kill()
        delete_data(self._directory, self._ports)

    @property
    def _metadata_url(self) -> str:
        return f"zk:{LOOPBACK}:{self._ports['zookeeper']}"

    def _initialise(self) -> None:
        """Write the metadata of the cluster to ZooKeeper, unless an earlier start has done so. Raises DevstackFailed if that fails."""
        done = self._directory / "data" / "initialised"
        if done.exists():
            return
        setup = JavaProgram(
            self._jars,
            "org.apache.pulsar.PulsarClusterMetadataSetup",
            [
                *("--cluster", CLUSTER_NAME),
                *("--metadata-store", self._metadata_url),
                *("--configuration-metadata-store", self._metadata_url),
                *("--web-service-url", self.brokers[0].admin_url),
                *("--broker-service-url", self.brokers[0].service_url),
            ],
            self._jvm,
        )
        run_checked(setup.command(self._directory / "setup"), cwd=self._directory)
        done.touch()

    def _create_zookeeper(self) -> JavaServer:
        port = self._ports["zookeeper"]
        data = self._directory / "data" / "zookeeper"
        conf = write_properties(
            self._directory / "zookeeper" / "zookeeper.conf",
            {
                "tickTime": "2000",
                "dataDir": str(data),
                "clientPort": str(port),
                "clientPortAddress": LOOPBACK,
                "maxClientCnxns": "0",
                "admin.enableServer": "false",
            },
        )
        program = JavaProgram(
            self._jars,
            "org.apache.zookeeper.server.ZooKeeperServerMain",
            [conf],
            self._jvm,
            {"zookeeper.forceSync": "no"},
        )
        return JavaServer("zookeeper", program, conf.parent, lambda: is_listening(port))

    def _create_bookie(self) -> JavaServer:
        port = self._ports["bookie"]
        data = self._directory / "data" / "bookie"
        conf = write_properties(
            self._directory / "bookie" / "bookie.conf",
            BOOKIE,
            {
                "bookiePort": str(port),
                "advertisedAddress": LOOPBACK,
                "listeningInterface": loopback_interface(),
                "journalDirectories": str(data / "journal"),
                "ledgerDirectories": str(data / "ledgers"),
                "metadataServiceUri": f"metadata-store:{self._metadata_url}",
                "autoRecoveryDaemonEnabled": "false",
            },
        )
        program = JavaProgram(
            self._jars,
            "org.apache.bookkeeper.server.Main",
            ["--conf", conf],
            self._jvm,
            {"bookkeeper.metadata.bookie.drivers": _BOOKIE_DRIVER},
        )
        return JavaServer("bookie", program, conf.parent, lambda: is_listening(port))

    def _create_broker(self, name: str, host: str) -> ClusterBroker:
        ports = self._ports[f"{name} admin"], self._ports[f"{name} service"]
        own = {
            "clusterName": CLUSTER_NAME,
            "metadataStoreUrl": self._metadata_url,
            "configurationMetadataStoreUrl": self._metadata_url,
            "webServicePort": str(ports[0]),
            "brokerServicePort": str(ports[1]),
            "advertisedAddress": host,
        }
        conf = write_properties(self._directory / name / "broker.conf", BROKER, own, self._properties)
        program = JavaProgram(
            self._jars,
            "org.apache.pulsar.PulsarBrokerStarter",
            ["--broker-conf", conf],
            self._jvm,
            group=self._groups.get(name),
        )
        return ClusterBroker(name, program, conf.parent, ports, host)
