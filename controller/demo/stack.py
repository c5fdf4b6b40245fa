"""All servers and processes of the demo, started in the required order and stopped in the reverse order.

The parts are one embedded PostgreSQL with two databases (Cleave's and Airflow's), logins with the least rights, the
servers of the data plane (`planes`), a Spark Connect server if Java is available, Airflow and one worker.
They use loopback only; passwords and the secret of clients' tokens are generated at each start.
"""

from __future__ import annotations

import os
import secrets
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from controller.demo.logins import LOGINS, close_to_everybody, make_login
from controller.demo.planes import EMBEDDED, NAMESPACE, Plane
from controller.devstack.airflow import AirflowStandalone
from controller.devstack.failure import DevstackFailed
from controller.devstack.ports import LOOPBACK, free_port, release_port
from controller.devstack.postgres import EmbeddedPostgres
from controller.devstack.postgres_home import wheel_binaries
from controller.devstack.private_file import write_private
from controller.devstack.process import ChildProcess
from controller.devstack.spark_connect import SparkConnectServer
from controller.postgres.address import DatabaseAddress
from controller.postgres.connection import connect
from controller.settings import PROJECT_ROOT
from controller.store.postgres.migrations import migrate
from controller.web import access

DATABASE, METADATA = "cleave", "airflow"
TOKEN_SECONDS = 7 * 24 * 3600.0
"""Lifetime of the token of producers and consumers; KEEP=1 may leave the demo running for days."""
MOST_RESTARTS = 5
"""Maximum number of restarts of one process; a further restart would not repair the cause."""
CADENCE = {
    "CLEAVE_COLLECT_INTERVAL_SECONDS": "2.5",
    "CLEAVE_RATE_WINDOW_SECONDS": "10",
    "CLEAVE_AGGREGATION_SECONDS": "15",
    "CLEAVE_MERGE_PASS_SECONDS": "30",
    "CLEAVE_WORKER_LEASE_SECONDS": "10",
}


class Stack:
    """The running parts; `env` is the environment of every process of Cleave, `client_env` that of every application."""

    def __init__(self, directory: Path, say: Callable[[str], None], plane: Plane = EMBEDDED) -> None:
        """Store the arguments, and generate passwords and the secret. `with` starts the parts. `say` shows a line of
        progress.
        """
        self.directory = directory.resolve()
        self.plane = plane
        self._say = say
        self._running = ExitStack()
        self._passwords = {login: secrets.token_urlsafe(18) for login in LOGINS}
        self._secret = secrets.token_hex(32)
        self.env: dict[str, str] = {}
        self.client_env: dict[str, str] = {}
        self.plane_settings: Mapping[str, str] = {}
        """Addresses of the data plane, by the names of Cleave's settings."""
        self.airflow: AirflowStandalone | None = None
        self.reader_url = ""
        self.client_url = ""
        """URL of the embedded logs with the login of an application, which may only call their functions."""
        self.worker_url = ""
        """Address at which the worker serves applications; the same after a restart."""
        self._supervised: dict[str, ChildProcess] = {}
        self._restarts: Counter[str] = Counter()
        self._servers: dict[str, int] = {}

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._running.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()

    def _start(self) -> None:
        """Start all parts in order, and write the file `env_file` at the end. `__exit__` stops what was started."""
        postgres = self._running.enter_context(EmbeddedPostgres(self.directory / "postgres"))
        self._servers["PostgreSQL"] = postgres.pid
        self._say(f"PostgreSQL runs on port {postgres.port}")
        owner_url = self._databases(postgres)
        self.plane_settings = self.plane.start(self._running, self.directory)
        for setting, address in self.plane_settings.items():
            self._say(f"data plane {self.plane.name}: {setting}={address}")
        self.env = {**_inherited(), **CADENCE, **self._addresses(postgres), **self.plane_settings}
        self.airflow = self._airflow(postgres, self._spark())
        self._say(f"Airflow is healthy at {self.airflow.url}")
        self.env |= {"CLEAVE_AIRFLOW_URL": self.airflow.url, "CLEAVE_AIRFLOW_TOKEN": self.airflow.api.token()}
        serving = self._serve_applications()
        command = [sys.executable, "-m", "controller.commands.cli", "worker"]
        self._running.callback(self.spawn("worker", command, kept=True, env=self.env | serving).stop)
        self._say(f"the worker is up; schema of {owner_url.rsplit('/', 1)[-1]} is current")
        self._say(f"the worker serves producers and consumers at {self.worker_url}")
        self._write_env_file()

    def _serve_applications(self) -> dict[str, str]:
        """Choose the worker's port and sign the applications' token. Return the settings that only the worker gets; store those of
        applications in `client_env`.
        """
        port = free_port()
        self._running.callback(release_port, port)
        self.worker_url = f"http://{LOOPBACK}:{port}"
        token = access.sign(self._secret, [f"topic://{NAMESPACE}/*"], TOKEN_SECONDS)
        self.client_env = {**_inherited(), "CLEAVE_URL": self.worker_url, "CLEAVE_TOKEN": token}
        if self.plane is EMBEDDED:
            self.client_env["CLEAVE_EMBEDDED_URL"] = self.client_url
        self.client_env |= self.plane_settings
        return {"CLEAVE_API_SECRET": self._secret, "CLEAVE_SERVE_PORT": str(port)}

    def _databases(self, postgres: EmbeddedPostgres) -> str:
        """Create both databases again, without the data of an earlier run: Cleave's with its schema, and the logins.
        Return the URL of Cleave's database with the owner's login.
        """
        for name in (DATABASE, METADATA):
            postgres.drop_database(name)
            postgres.create_database(name)
        owner_url = postgres.url(DATABASE)
        migrate(owner_url)
        with (
            closing(
                connect(DatabaseAddress.of(owner_url), application_name="cleave-demo", statement_seconds=60.0)
            ) as connection,
            connection,
            connection.cursor() as cursor,
        ):
            for name, login in LOGINS.items():
                make_login(cursor, name, self._passwords[name], login)
            close_to_everybody(cursor, DATABASE, *(login.role for login in LOGINS.values()))
            for unused_database in (METADATA, "postgres", "template1"):
                close_to_everybody(cursor, unused_database)
        return owner_url

    def _addresses(self, postgres: EmbeddedPostgres) -> dict[str, str]:
        """Return the settings with the addresses of Cleave's database and of the landing area. Store the URLs for
        readers and for applications.
        """

        def url(login: str) -> str:
            return postgres.url(DATABASE, user=login, password=self._passwords[login])

        self.reader_url, self.client_url = url("cleave_reader"), url("shop")
        return {
            "CLEAVE_DATABASE_URL": url("cleave_app"),
            "CLEAVE_LOADER_URL": url("cleave_load"),
            "CLEAVE_LANDING_URL": str(self.directory / "landing"),
        }

    @property
    def env_file(self) -> Path:
        """File that a shell sources to query, act and consume while the demo runs.

        It contains `CLEAVE_*` for the commands, including CLEAVE_API_SECRET for `cleave token`; CLEAVE_URL,
        CLEAVE_TOKEN and CLIENT_URL for an application; READER_URL and PSQL for queries.
        """
        return self.directory / "env"

    def _write_env_file(self) -> None:
        settings = {name: value for name, value in self.env.items() if name.startswith(("CLEAVE_", "SPARK_"))}
        settings["CLEAVE_API_SECRET"] = self._secret
        settings |= {
            name: self.client_env[name] for name in ("CLEAVE_URL", "CLEAVE_TOKEN") if name in self.client_env
        }
        settings |= {
            "READER_URL": DatabaseAddress.of(self.reader_url).uri,
            "CLIENT_URL": DatabaseAddress.of(self.client_url).uri,
            "PSQL": str(wheel_binaries() / "psql"),
        }
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in sorted(settings.items())]
        write_private(self.env_file, "".join(lines))

    def watch_over(self) -> None:
        """Restart the processes that ended unexpectedly, and report each restart.

        Raises DevstackFailed for a server that has ended, and for a process that has ended more than `MOST_RESTARTS` times.
        """
        for name, pid in self._servers.items():
            if not _runs(pid):
                raise DevstackFailed(
                    f"{name} (process {pid}) ended unexpectedly; see its log in {self.directory}"
                )
        for component in self.airflow.revive() if self.airflow is not None else ():
            self._note_restart(f"Airflow's {component}", self.directory / "airflow" / f"{component}.log")
        for name, child in self._supervised.items():
            if child.ended_by_itself:
                self._note_restart(f"{name} (exit code {child.exit_code})", self.directory / f"{name}.log")
                child.restart()

    def _note_restart(self, process: str, log: Path) -> None:
        """Count and report a restart of the process. Raises DevstackFailed after MOST_RESTARTS restarts."""
        self._restarts[process] += 1
        if self._restarts[process] > MOST_RESTARTS:
            raise DevstackFailed(f"{process} ended {MOST_RESTARTS + 1} times; see its log {log}")
        self._say(f"{process} ended unexpectedly and is restarted; see its log {log}")

    def _spark(self) -> SparkConnectServer | None:
        """Start Spark Connect, and return the server. None, with a report, if the server cannot run here; PostgreSQL
        then aggregates the load.
        """
        try:
            spark = self._running.enter_context(SparkConnectServer(self.directory / "spark"))
            self._servers["Spark Connect"] = spark.pid
            return spark
        except DevstackFailed as error:
            self._say(f"no Spark ({error}), so PostgreSQL aggregates the load")
            return None

    def _airflow(self, postgres: EmbeddedPostgres, spark: SparkConnectServer | None) -> AirflowStandalone:
        """Start Airflow with Cleave's DAGs and pages, and return it when it is healthy. The DAGs use the Spark server
        if there is one.
        """
        if spark is not None:
            self.env["SPARK_MASTER"] = spark.url
            self._say("Spark Connect is running")
        connections = {
            "cleave": DatabaseAddress.of(self.env["CLEAVE_DATABASE_URL"]).uri,
            "cleave_loader": DatabaseAddress.of(self.env["CLEAVE_LOADER_URL"]).uri,
        }
        settings = {key: value for key, value in self.env.items() if key.startswith(("CLEAVE_", "SPARK_"))}
        return self._running.enter_context(
            AirflowStandalone(
                self.directory / "airflow",
                dags_folder=PROJECT_ROOT / "dags",
                plugins_folder=PROJECT_ROOT / "plugins",
                metadata_url=postgres.url(METADATA),
                connections=connections,
                env=settings,
            )
        )

    def spawn(
        self, name: str, command: list[str], *, kept: bool = False, env: Mapping[str, str] | None = None
    ) -> ChildProcess:
        """Start a process of the demo with the log `<name>.log`. The caller stops it; with `kept`, `watch_over` restarts
        it.

        `env` is the complete environment of the process; default: `self.env`.
        """
        child = ChildProcess(
            command,
            log=self.directory / f"{name}.log",
            cwd=PROJECT_ROOT,
            env=dict(self.env if env is None else env),
        )
        child.start()
        if kept:
            self._supervised[name] = child
        return child


def _runs(pid: int) -> bool:
    """Return True if the process exists and has not ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _inherited() -> dict[str, str]:
    """Return this shell's variables without the settings of another Cleave or Airflow."""
    return {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("CLEAVE_", "AIRFLOW_", "SPARK_"))
    }
