"""A standalone Spark cluster on loopback: one master and two workers, each a separate JVM."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

from controller.devstack.java import java_home
from controller.devstack.ports import LOOPBACK, free_port
from controller.devstack.process import ChildProcess, run_checked
from controller.devstack.spark_connect import spark_home
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]


class Cluster:
    """A standalone master and two workers on loopback."""

    def __init__(self, directory: Path, running: ExitStack) -> None:
        self.directory = directory
        self.port, self.status_port = free_port(), free_port()
        self.url = f"spark://{LOOPBACK}:{self.port}"
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("SPARK_")},
            "SPARK_HOME": str(spark_home()),
            "SPARK_CONF_DIR": str(directory / "conf"),
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_DIRS": str(directory / "local"),
            "JAVA_HOME": str(java_home(directory)),
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
        }
        master = ["--host", LOOPBACK, "--port", str(self.port), "--webui-port", str(self.status_port)]
        self._start(running, "master", "org.apache.spark.deploy.master.Master", *master)
        for name in ("worker-1", "worker-2"):
            work = ["--host", LOOPBACK, "--cores", "1", "--memory", "512m", "--webui-port", str(free_port())]
            self._start(
                running,
                name,
                "org.apache.spark.deploy.worker.Worker",
                *work,
                "-d",
                str(directory / name),
                self.url,
            )
        wait_until(lambda: self._alive() == 2, timeout_seconds=90, message="two workers at the master")

    def _start(self, running: ExitStack, name: str, main_class: str, *arguments: str) -> None:
        child = ChildProcess(
            [spark_home() / "bin" / "spark-class", main_class, *arguments],
            log=self.directory / f"{name}.log",
            cwd=self.directory,
            env=self.environment,
        )
        child.start()
        running.callback(child.stop)

    def _alive(self) -> int:
        try:
            with urlopen(f"http://{LOOPBACK}:{self.status_port}/json/", timeout=5) as answer:
                return int(json.load(answer)["aliveworkers"])
        except (OSError, ValueError):  # while it starts, it answers with less than a page
            return 0

    def submit(self, *arguments: str) -> None:
        """Run the job with spark-submit, the driver in a child of this process, executors on the workers."""
        settings = {"spark.driver.host": LOOPBACK, "spark.executor.memory": "512m", "spark.cores.max": "2"}
        run_checked(
            [
                spark_home() / "bin" / "spark-submit",
                *("--master", self.url, "--driver-memory", "512m"),
                *(part for key, value in settings.items() for part in ("--conf", f"{key}={value}")),
                ROOT / "spark_jobs" / "run_load_aggregation.py",
                *("--master", self.url, *arguments),
            ],
            env=self.environment,
            cwd=self.directory,
        )

    def workers_that_ran_it(self) -> int:
        """Return the number of workers that have had an executor."""
        return sum(any((self.directory / name).glob("app-*/*/stderr")) for name in ("worker-1", "worker-2"))
