"""A complete Airflow on loopback: scheduler, DAG processor, API server and triggerer as child processes.

It runs the components of `airflow standalone`, without its parent process and without the two log servers, which
listen on every interface; the API server reads the logs from disk instead. The settings were measured on a machine
with two cores. Airflow itself is never imported here. `AirflowApi` is the REST client.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil

from controller.devstack.airflow_api import AirflowApi
from controller.devstack.failure import DevstackFailed
from controller.devstack.ports import LOOPBACK, free_port, release_port
from controller.devstack.process import ChildProcess, run_checked
from controller.devstack.running import Running

_SETTINGS: Final[Mapping[str, str]] = {
    "AIRFLOW__API__HOST": LOOPBACK,
    "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
    "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    # With fewer than 8 slots, deferred tasks leave no slot for other tasks. Each idle slot is a forked process.
    "AIRFLOW__CORE__PARALLELISM": "8",
    # No password is required. This is safe only because Airflow listens on loopback only.
    "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
    # A run of three tasks takes 0.8 s instead of 3.6 s, for an eighth of a core.
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
    # The API server's first answer to a task takes 6 s, and 13 s on a busy machine. With Airflow's default of 5 s
    # the task repeats the request, and on a busier machine the attempt fails before it has begun.
    "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
}
_COMPONENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "api-server": ("api-server",),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}


class AirflowStandalone(Running):
    """One Airflow with its own metadata database; healthy 10 to 20 s after `start`, about 1 GiB of memory.

    `metadata_url` names an existing database (`postgresql+psycopg2://`). `connections` maps a connection id to
    Airflow's URI or JSON for it; `env` adds to or overrides the settings.
    """

    def __init__(
        self,
        directory: Path,
        *,
        dags_folder: Path,
        metadata_url: str,
        plugins_folder: Path | None = None,
        connections: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._directory = directory.resolve()
        self._dags = dags_folder.resolve()
        self._plugins = plugins_folder.resolve() if plugins_folder else self._directory / "plugins"
        self._metadata_url = metadata_url
        self._port = free_port()
        self._connections = dict(connections or {})
        self._extra = dict(env or {})
        self._children: dict[str, ChildProcess] = {}
        self.api = AirflowApi(f"http://{LOOPBACK}:{self._port}")

    @property
    def url(self) -> str:
        """Address of the UI and the REST API."""
        return self.api.url

    @property
    def pids(self) -> dict[str, int]:
        """Process id of each component, by Airflow's name for it."""
        return {name: child.pid for name, child in self._children.items()}

    def start(self, *, timeout_seconds: float = 180) -> None:
        """Migrate the metadata database, start all components, and wait until all report healthy. Does nothing if they were started.

        If a component ends, or is not healthy within `timeout_seconds`, stop all components and raise DevstackFailed. Also raises
        DevstackFailed if this Python has no Airflow, or if the migration fails.
        """
        if self._children:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        home = self._directory / "home"
        home.mkdir(mode=0o700, exist_ok=True)  # airflow.cfg contains the keys that Airflow generates
        env = self.environment()
        run_checked(_airflow("db", "migrate"), cwd=home, env=env)
        self._children = {
            name: ChildProcess(_airflow(*arguments), log=self._directory / f"{name}.log", cwd=home, env=env)
            for name, arguments in _COMPONENTS.items()
        }
        try:
            for child in self._children.values():
                child.start()
            self._children["api-server"].wait_ready(self._is_healthy, timeout_seconds=timeout_seconds)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all components and their tasks, and release the port; may be repeated."""
        children, self._children = self._children, {}
        for child in children.values():
            child.ask_to_end()
        for child in children.values():
            child.stop()
        _end_tasks_of(self._directory / "home")
        release_port(self._port)

    def revive(self) -> list[str]:
        """Restart the components that have ended unexpectedly. Return their names."""
        failed = [name for name, child in self._children.items() if child.ended_by_itself]
        for name in failed:
            self._children[name].restart()
        return failed

    def kill(self, component: str) -> None:
        """Kill one of api-server, scheduler, dag-processor, triggerer without warning. `revive` does not restart the
        component.
        """
        self._children[component].kill()

    def restart(self, component: str) -> None:
        """Start a component again after `kill`; does not wait until it is ready."""
        self._children[component].start()

    def environment(self) -> dict[str, str]:
        """Return the environment of the components, also for `airflow` commands on the same installation."""
        excluded = (
            "AIRFLOW",
            "PYTHONDONTWRITEBYTECODE",
        )  # without bytecode every process compiles all modules
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(excluded)}
        base = {
            "AIRFLOW_HOME": str(self._directory / "home"),
            "AIRFLOW__API__PORT": str(self._port),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__CORE__DAGS_FOLDER": str(self._dags),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(self._plugins),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self._metadata_url,
            "NO_PROXY": f"{LOOPBACK},localhost",  # loopback never goes through a proxy
            "no_proxy": f"{LOOPBACK},localhost",
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))),
        }
        connections = {f"AIRFLOW_CONN_{name.upper()}": value for name, value in self._connections.items()}
        return inherited | dict(_SETTINGS) | base | connections | self._extra

    def _is_healthy(self) -> bool:
        """Return True if all components report healthy. Raises DevstackFailed if a component has ended."""
        for child in self._children.values():
            child.demand_running()
        return self.api.is_healthy()


def _end_tasks_of(home: Path) -> None:
    """Kill every process whose `AIRFLOW_HOME` is `home`: the tasks of this Airflow run in their own sessions, and outlive a scheduler that
    was killed.
    """
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("AIRFLOW_HOME") == str(home):
                process.kill()


def _airflow(*arguments: str) -> list[str]:
    """Return the command line of `airflow` with these arguments. Raises DevstackFailed if this Python has no Airflow."""
    command = Path(sys.executable).with_name("airflow")
    if not command.exists():
        raise DevstackFailed("this Python has no Airflow; run 'pip install apache-airflow' or 'make setup'")
    return [str(command), *arguments]
