"""A Spark Connect server as a child process, from the pyspark wheel.

A server that stays warm computes an aggregation in two seconds instead of fifteen. Clients use `url`, which contains
the server's token. Without a token every process that reaches the port could run code as this user.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from controller.devstack.failure import DevstackFailed
from controller.devstack.java import java_home
from controller.devstack.ports import LOOPBACK, free_port, is_listening, release_port
from controller.devstack.process import ChildProcess
from controller.devstack.running import ChildServer

_SERVER: Final = (
    "org.apache.spark.sql.connect.service.SparkConnectServer"  # the name of the class for SparkSubmit
)
_DEFAULTS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.connect.grpc.binding.address": LOOPBACK,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",  # for two cores: the default of 200 would create 200 tiny tasks
    "spark.sql.catalogImplementation": "in-memory",
}


class SparkConnectServer(ChildServer):
    """A server on loopback; ready in about five seconds, 350 MiB after the start, up to `driver_memory` of heap."""

    name = "Spark Connect"

    def __init__(
        self,
        directory: Path,
        *,
        driver_memory: str = "1g",
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self._directory = directory.resolve()
        self._driver_memory = driver_memory
        self._conf = dict(conf or {})
        self._port = 0
        self._token = secrets.token_urlsafe(24)

    @property
    def url(self) -> str:
        """URL for `SparkSession.builder.remote`, valid after `start`; add `;session_id=<uuid>` to share one session."""
        # Without TLS the client sends a token only to the name localhost, not to its address.
        return f"sc://localhost:{self._port}/;token={self._token}"

    def start(self) -> None:
        """Start the server and wait until the port answers, at most two minutes. Does nothing while the server runs. Raises DevstackFailed
        if there is no Spark or Java, the server ends, or the port does not answer in time.
        """
        if self._child is not None:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        self._port = self._port or free_port()
        self._child = ChildProcess(
            self._command(spark_home()),
            log=self._directory / "spark-connect.log",
            cwd=self._directory,
            env=self._environment(spark_home()),
        )
        self._child.start()
        self._wait_until(lambda: is_listening(self._port), timeout_seconds=120)

    def stop(self) -> None:
        """End the server and all its sessions; do nothing if it is not running."""
        if self._child is not None:
            super().stop()
            release_port(self._port)

    def _command(self, home: Path) -> list[str | Path]:
        conf = {
            **_DEFAULTS,
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.local.dir": str(self._directory / "local"),
            "spark.sql.warehouse.dir": str(self._directory / "warehouse"),
            **self._conf,
        }
        return [
            home / "bin" / "spark-class",
            "org.apache.spark.deploy.SparkSubmit",
            *("--class", _SERVER, "--name", "cleave", "--master", "local[2]"),
            *("--driver-memory", self._driver_memory),
            *(part for key, value in conf.items() for part in ("--conf", f"{key}={value}")),
        ]

    def _environment(self, home: Path) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("SPARK_")}
        return inherited | {
            "SPARK_HOME": str(home),
            "SPARK_CONF_DIR": str(self._directory / "conf"),
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_CONNECT_AUTHENTICATE_TOKEN": self._token,
            "JAVA_HOME": str(java_home(self._directory)),
            "PYSPARK_PYTHON": sys.executable,
        }


def spark_home() -> Path:
    """Return the directory of the installed pyspark, which is a complete Spark distribution. Raises DevstackFailed if there is none."""
    spec = importlib.util.find_spec("pyspark")
    home = Path(spec.origin).parent if spec is not None and spec.origin is not None else None
    if home is None or not (home / "jars").is_dir():
        raise DevstackFailed(
            "this Python has no Spark; run 'pip install pyspark' (pyspark-client alone has no server) or 'make setup'"
        )
    return home
