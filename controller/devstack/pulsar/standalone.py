"""A complete Pulsar in one process: broker, bookie and metadata, on loopback.

It is ready in about ten seconds and uses some 450 MiB of resident memory. `PulsarStandalone` owns a directory with
data, ports and log; after a kill the next start continues with this data. `cluster` provides several brokers.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from controller.devstack.ports import LOOPBACK, release_port
from controller.devstack.pulsar.configuration import (
    BOOKIE,
    BROKER,
    kept_ports,
    loopback_interface,
    write_properties,
)
from controller.devstack.pulsar.jars import PULSAR_4, PULSAR_5, pulsar_jars
from controller.devstack.pulsar.java_server import TUNED, JavaProgram, JavaServer, Jvm, is_healthy
from controller.devstack.pulsar.tokens import TokenAuthentication
from controller.devstack.running import Running

CLUSTER_NAME = "standalone"
_MAIN = "org.apache.pulsar.PulsarStandaloneStarter"


class PulsarStandalone(Running):
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
        self._directory = directory.resolve()
        self.version = version
        self._jvm = jvm
        self._properties = dict(properties or {})
        self._authentication = authentication
        self._ports: dict[str, int] = {}
        self._server: JavaServer | None = None

    @property
    def admin_url(self) -> str:
        """Address of the admin REST API and the metrics. Raises KeyError before the first `start`."""
        return f"http://{LOOPBACK}:{self._ports['admin']}"

    @property
    def service_url(self) -> str:
        """Address to which clients connect (binary protocol). Raises KeyError before the first `start`."""
        return f"pulsar://{LOOPBACK}:{self._ports['service']}"

    @property
    def pid(self) -> int:
        """Process id of the JVM. Raises DevstackFailed if the broker was not started, or was stopped."""
        return self._get_server().pid

    @property
    def running(self) -> bool:
        """True between `start` and the JVM's end."""
        return self._server is not None and self._server.running

    @property
    def log(self) -> Path:
        """The broker's log, of all its starts."""
        return self._get_server().log

    def start(self) -> None:
        """Start the broker and wait until it is healthy; do nothing while it runs. A restart uses the same data and
        ports. Raises DevstackFailed if the broker ends or is not healthy in time, and the errors of `pulsar_jars` and
        `kept_ports`.
        """
        self._get_server().start()

    def stop(self) -> None:
        """Shut down regularly; the data stays. Does nothing if the broker is not running."""
        if self._server is not None:
            self._server.stop()

    def kill(self) -> None:
        """Send SIGKILL; `start` then recovers from the written data. Does nothing if the broker is not running."""
        if self._server is not None:
            self._server.kill()

    def restart(self) -> None:
        """Stop regularly and start again."""
        self.stop()
        self.start()

    def destroy(self) -> None:
        """Kill the broker, release its ports and delete the data permanently; the log stays. The next `start` chooses ports again."""
        self.kill()
        for port in self._ports.values():
            release_port(port)
        self._ports, self._server = {}, None
        (self._directory / "ports.json").unlink(missing_ok=True)
        shutil.rmtree(self._directory / "data", ignore_errors=True)

    def _get_server(self) -> JavaServer:
        """Return the server. The first call fetches the jars if necessary, chooses the ports and writes the
        configuration; it raises the errors of `pulsar_jars` and `kept_ports`.
        """
        if self._server is None:
            jars = pulsar_jars(self.version)
            self._ports = kept_ports(self._directory, ("admin", "service", "bookie"))
            self._server = JavaServer("pulsar", self._program(jars), self._directory, self._is_healthy)
        return self._server

    def _program(self, jars: Path) -> JavaProgram:
        data = self._directory / "data"
        own = {
            "clusterName": CLUSTER_NAME,
            "listeningInterface": loopback_interface(),
            "webServicePort": str(self._ports["admin"]),
            "brokerServicePort": str(self._ports["service"]),
        }
        secured = self._authentication.properties if self._authentication else {}
        conf = self._directory / "standalone.conf"
        write_properties(conf, BROKER, BOOKIE, own, secured, self._properties)
        arguments: list[str | Path] = [
            *("--config", conf, "--no-functions-worker", "--no-stream-storage"),
            *("--metadata-dir", data / "metadata", "--bookkeeper-dir", data / "bookkeeper"),
            *("--advertised-address", LOOPBACK),
        ]
        if self.version != PULSAR_5:  # 5.0.0-M1 finds its bookie by name and lets the kernel choose the port
            arguments += ["--bookkeeper-port", str(self._ports["bookie"])]
        return JavaProgram(jars, _MAIN, arguments, self._jvm)

    def _is_healthy(self) -> bool:
        return is_healthy(self.admin_url, self._authentication.token() if self._authentication else None)
