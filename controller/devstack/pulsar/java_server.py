"""One JVM of a Pulsar installation: its command line, and its life cycle of start, stop, kill and restart.

The JVM runs as a `ChildProcess`, so it ends with the process that started it. `standalone` and `cluster` define its
configuration and the check whether it is ready, for a broker that of `broker_health`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from controller.devstack.control_group import ControlGroup
from controller.devstack.java import java_home
from controller.devstack.process import ChildProcess
from controller.devstack.running import ChildServer

START_TIMEOUT_SECONDS: Final = 300.0
"""Timeout of a start, which takes ten seconds on an idle machine with two cores, and a minute or more if several start
at once.
"""
_OPENED: Final = (  # packages whose internals Pulsar, Netty and BookKeeper use
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
    """Limits of one JVM, in Java's notation (`512m`, `2g`), and its tuning."""

    heap: str = "512m"
    direct: str = "512m"
    quick_start: bool = False
    """True to compile lightly and skip the verification of the jars' bytecode: a third of the work of a start, and less
    throughput.
    """

    @property
    def options(self) -> tuple[str, ...]:
        """The limits as command-line options."""
        limits = f"-Xmx{self.heap}", f"-XX:MaxDirectMemorySize={self.direct}"
        quick = (
            *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote"),
        )
        return limits + (quick if self.quick_start else ())


TUNED: Final = Jvm()
"""JVM for measurements, and for servers that run for a long time."""
QUICK: Final = Jvm(quick_start=True)
"""JVM for tests."""


@dataclass(frozen=True, slots=True)
class JavaProgram:
    """A program: the jars, the class with `main`, its arguments and the settings of its JVM."""

    jars: Path
    main_class: str
    arguments: Sequence[str | Path]
    jvm: Jvm = TUNED
    defines: Mapping[str, str] | None = None
    """System properties (`-D`)."""
    group: ControlGroup | None = None
    """Control group that counts the program's processor time; None: the group of the process that starts it."""

    def command(self, directory: Path) -> list[str | Path]:
        """Return the command line; the small files that it needs are written to `directory`. Raises DevstackFailed if there is no Java."""
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


class JavaServer(ChildServer):
    """A program that serves until it is stopped; the same object may start it again after its end."""

    grace_seconds = 30.0

    def __init__(
        self, name: str, program: JavaProgram, directory: Path, is_ready: Callable[[], bool]
    ) -> None:
        """Store the settings. `is_ready` is polled after a start; log and files go to `directory`."""
        self.name = name
        self._program, self._directory, self._is_ready = program, directory, is_ready

    @property
    def log(self) -> Path:
        """The file to which all starts of the program have written."""
        return self._directory / f"{self.name}.log"

    def start(self) -> None:
        """Start the program and wait until it serves; do nothing while it runs. A restart uses the same data and ports. Raises the errors
        of `launch` and `wait_ready`.
        """
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start the program without waiting, so that several can start at the same time; do nothing while it runs. Raises DevstackFailed if
        there is no Java.
        """
        if self.running:
            return
        self.stop()  # clean up after a program that ended unexpectedly
        command = self._program.command(self._directory)
        self._child = ChildProcess(command, log=self.log, cwd=self._directory)
        self._child.start()

    def wait_ready(self) -> None:
        """Wait until the program serves. If the program ends, or does not serve within START_TIMEOUT_SECONDS, stop it and raise
        DevstackFailed with the end of its log. Raises DevstackFailed also if the program was not started.
        """
        self._wait_until(self._is_ready, timeout_seconds=START_TIMEOUT_SECONDS)
