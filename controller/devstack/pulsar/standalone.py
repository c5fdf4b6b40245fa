"""A complete Pulsar in one process: broker, bookie and metadata, on loopback.

It is ready in about ten seconds and uses some 450 MiB of resident memory. `PulsarStandalone` owns a directory with
data, ports and log; after a kill the next start continues with this data. `cluster` provides several brokers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from controller.devstack.ports import LOOPBACK
from controller.devstack.pulsar.broker_health import is_healthy
from controller.devstack.pulsar.configuration import (
    BOOKIE,
    BROKER,
    delete_data,
    kept_ports,
    loopback_interface,
    write_properties,
)
from controller.devstack.pulsar.jars import PULSAR_4, PULSAR_5, pulsar_jars
from controller.devstack.pulsar.java_server import TUNED, JavaProgram, JavaServer, Jvm
from controller.devstack.pulsar.tokens import TokenAuthentication

CLUSTER_NAME = "standalone"
_MAIN = "org.apache.pulsar.PulsarStandaloneStarter"


class PulsarStandalone(JavaServer):
    """One broker with all its dependencies; `properties` adds to or overrides its configuration.

    With `authentication` every client needs one of its tokens.
    """

    def __init__(
        self,
        directory: Path,
        version: str = PULSAR_4,
        *,
        jvm: Jvm = TUNED,
        properties: Mapping[str, str] | None = None,
        authentication: TokenAuthentication | None = None,
    ) -> None:
        """Store the settings, fetch the jars of the version if necessary, choose the ports and write the configuration. The broker is not
        started. Raises the errors of `pulsar_jars` and `kept_ports`.
        """
        self.version = version
        jars, home = pulsar_jars(version), directory.resolve()
        self._ports = kept_ports(home, ("admin", "service", "bookie"))
        secured = authentication.properties if authentication else {}
        arguments = self._arguments(home, {**secured, **(properties or {})})
        token = authentication.token() if authentication else None
        program = JavaProgram(jars, _MAIN, arguments, jvm)
        super().__init__("pulsar", program, home, lambda: is_healthy(self.admin_url, token))

    @property
    def admin_url(self) -> str:
        """Address of the admin REST API and the metrics."""
        return f"http://{LOOPBACK}:{self._ports['admin']}"

    @property
    def service_url(self) -> str:
        """Address to which clients connect (binary protocol)."""
        return f"pulsar://{LOOPBACK}:{self._ports['service']}"

    def restart(self) -> None:
        """Stop regularly and start again."""
        self.stop()
        self.start()

    def destroy(self) -> None:
        """Kill the broker, release its ports and delete the data permanently; the log stays. Create another object for another start."""
        self.kill()
        delete_data(self._directory, self._ports)

    def _arguments(self, directory: Path, properties: Mapping[str, str]) -> list[str | Path]:
        """Write the configuration, and return the arguments of the program."""
        data, conf = directory / "data", directory / "standalone.conf"
        own = {
            "clusterName": CLUSTER_NAME,
            "listeningInterface": loopback_interface(),
            "webServicePort": str(self._ports["admin"]),
            "brokerServicePort": str(self._ports["service"]),
        }
        write_properties(conf, BROKER, BOOKIE, own, properties)
        arguments: list[str | Path] = [
            *("--config", conf, "--no-functions-worker", "--no-stream-storage"),
            *("--metadata-dir", data / "metadata", "--bookkeeper-dir", data / "bookkeeper"),
            *("--advertised-address", LOOPBACK),
        ]
        if self.version != PULSAR_5:  # 5.0.0-M1 finds its bookie by name and lets the kernel choose the port
            arguments += ["--bookkeeper-port", str(self._ports["bookie"])]
        return arguments
