"""One JVM of a Pulsar stack: its command line, and a life cycle of start, stop, kill and start again.

It runs as a `ChildProcess`, so it dies with the process that started it. `standalone` and `cluster` know its
configuration and when it is ready.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import requests

from controller.devstack.control_group import ControlGroup
from controller.devstack.failure import DevstackFailed
from controller.devstack.java import java_home
from controller.devstack.process import ChildProcess

START_TIMEOUT_SECONDS: Final = 300.0
"""Ten seconds on a quiet machine of two cores, a minute and more where several start at once."""
_HEALTH_TIMEOUT_SECONDS: Final = 5.0
_OPENED: Final = (  # packages Pulsar, Netty and BookKeeper reach into
    "java.base/java.lang",
    "java.base/java.nio",
    "java.base/java.util.zip",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform",
    "java.base/sun.net",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)
_LOGGING: Final = """\
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} [%t] %-5level %logger{1} - %msg%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""


@dataclass(frozen=True, slots=True)
class Jvm:
    """Limits of one JVM, in Java's notation (`512m`, `2g`), and what it is tuned for."""

    heap: str = "512m"
    direct: str = "512m"
    quick_start: bool = False
    """Compile lightly and trust the jars' bytecode: a third of the work of a start, less throughput."""

    @property
    def options(self) -> tuple[str, ...]:
        """As command-line options."""
        limits = f"-Xmx{self.heap}", f"-XX:MaxDirectMemorySize={self.direct}"
        quick = (
            *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote"),
        )
        return limits + (quick if self.quick_start else ())


TUNED: Final = Jvm()
"""For measurements, and for servers that run for long."""
QUICK: Final = Jvm(quick_start=True)
"""For tests."""


@dataclass(frozen=True, slots=True)
class JavaProgram:
    """What to run: the jars, the class with `main`, its arguments and how its JVM is run."""

    jars: Path
    main_class: str
    arguments: Sequence[str | Path]
    jvm: Jvm = TUNED
    defines: Mapping[str, str] | None = None
    """System properties (`-D`)."""
    group: ControlGroup | None = None
    """What its processor time is counted in, where not in that of whoever starts it."""

    def command(self, directory: Path) -> list[str | Path]:
        """The command line; small files it needs are written to `directory`."""
        directory.mkdir(parents=True, exist_ok=True)
        logging = directory / "log4j2.properties"
        logging.write_text(_LOGGING)
        defines = {
            "log4j2.configurationFile": str(logging),
            "io.netty.tryReflectionSetAccessible": "true",
            **(self.defines or {}),
        }
        return [
            *(self.group.prefix if self.group else ()),
            java_home(directory) / "bin" / "java",
            *self.jvm.options,
            *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
            *(f"-D{key}={value}" for key, value in defines.items()),
            *("-cp", f"{self.jars}/*", self.main_class, *self.arguments),
        ]


class JavaServer:
    """A program that serves until told to end; the same one may be started again after its end."""

    def __init__(
        self, name: str, program: JavaProgram, directory: Path, is_ready: Callable[[], bool]
    ) -> None:
        """`is_ready` is polled after a start; log and files go to `directory`."""
        self.name = name
        self._program, self._directory, self._is_ready = program, directory, is_ready
        self._child: ChildProcess | None = None

    @property
    def pid(self) -> int:
        """Process id of the JVM."""
        if self._child is None:
            raise DevstackFailed(f"{self.name} is not running: call start() first")
        return self._child.pid

    @property
    def running(self) -> bool:
        """True between `start` and the JVM's end."""
        return self._child is not None and self._child.running

    @property
    def log(self) -> Path:
        """The file all its starts have written to."""
        return self._directory / f"{self.name}.log"

    def start(self) -> None:
        """Launch and wait until it serves; no-op while running. Its data and ports are those of before."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start without waiting, so that several come up side by side; no-op while running."""
        if self.running:
            return
        self.stop()  # clean up after one that ended by itself
        command = self._program.command(self._directory)
        self._child = ChildProcess(command, log=self.log, cwd=self._directory)
        self._child.start()

    def wait_ready(self, *, timeout_seconds: float = START_TIMEOUT_SECONDS) -> None:
        """Wait until it serves; raises DevstackFailed with the end of its log if that does not happen."""
        if self._child is None:
            raise DevstackFailed(f"{self.name} is not running: call start() first")
        try:
            self._child.wait_ready(self._is_ready, timeout_seconds=timeout_seconds)
        except DevstackFailed:
            self._child = None
            raise

    def ask_to_end(self) -> None:
        """Send the stop signal and return at once; `stop` then waits."""
        if self._child is not None:
            self._child.ask_to_end()

    def stop(self, *, grace_seconds: float = 30.0) -> None:
        """Shut down in good order, by force after the grace; no-op when not running."""
        child, self._child = self._child, None
        if child is not None:
            child.stop(grace_seconds=grace_seconds)

    def kill(self) -> None:
        """SIGKILL: what it had only in memory is lost, as in a crash. No-op when not running."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()


def is_healthy(admin_url: str, token: str | None = None) -> bool:
    """True when the broker has passed its own check (a message written and read) and has `public/default`.

    A standalone broker answers a moment before it has made its cluster, tenant and namespace, in this order.
    """
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with requests.Session() as session:
            session.trust_env = False  # loopback never goes through a proxy
            return all(
                session.get(f"{admin_url}{path}", headers=headers, timeout=_HEALTH_TIMEOUT_SECONDS).ok
                for path in ("/admin/v2/brokers/health", "/admin/v2/namespaces/public/default")
            )
    except requests.RequestException:
        return False
