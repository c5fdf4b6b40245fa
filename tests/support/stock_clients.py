"""Processes on the standard Java, Go and Python clients: Cleave's producers for Java and Go, and pattern consumers without Cleave.

The programs are in `tests/support/stock`, the Java consumer in `controller/devstack/pulsar/java`. Each writes a history
that `cleave check-history` reads, ends in good order at SIGTERM, and keeps what it had written when it is killed.
`tests.support.traffic` has the same on Cleave's Python client.
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from controller.client.history import Event, Record, history_files, read_history
from controller.client.history_check import Verdict, check
from controller.devstack.failure import DevstackFailed
from controller.devstack.process import ChildProcess
from controller.devstack.pulsar.jars import PULSAR_4
from controller.devstack.pulsar.standard_client import CONSUMER, compile_programs, java_compiler
from controller.devstack.serving import token_for
from tests.support.brokers import demand_jars
from tests.support.missing import demand_command, skip_without
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
JAVA, GO, PYTHON = "java", "go", "python"
LANGUAGES = (JAVA, GO)
"""Languages of producers. Consumers are written in Python, too."""
_PRODUCE, _CONSUME = "produce", "consume"
_SOURCES = Path(__file__).parent / "stock"
_CLASSES: Mapping[str, str] = {_PRODUCE: "StockProducer", _CONSUME: CONSUMER}
_END_SECONDS = 60.0
"""Of a process; less than `Ending.java` waits for its main thread."""
_BUILD_SECONDS = 600
"""The first build of the Go programs downloads and compiles the Pulsar client."""


@dataclass(frozen=True)
class Programs:
    """The compiled programs. `commands` maps (language, role) to the command of a program, without its arguments."""

    commands: Mapping[tuple[str, str], Sequence[str | Path]]

    @classmethod
    def build(cls, directory: Path) -> Programs:
        """Compile the programs of all languages into a directory."""
        python = {(PYTHON, _CONSUME): [sys.executable, _SOURCES / PYTHON / "consume.py"]}
        return cls({**_java(directory / JAVA), **_go(directory / GO), **python})


def build(command: Sequence[str | Path], directory: Path) -> str:
    """Run a build tool and return its output. Fails with the output if the tool fails."""
    done = subprocess.run(
        command,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_BUILD_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def demand_go() -> str:
    """Return the path of `go`, or skip the test."""
    return demand_command("go", "install Go 1.25 or newer (https://go.dev/dl) and put go on PATH")


def demand_javac() -> Path:
    """Return the path of `javac`, or skip the test."""
    try:
        return java_compiler()
    except DevstackFailed as missing:
        skip_without(str(missing))


def _java(classes: Path) -> dict[tuple[str, str], Sequence[str | Path]]:
    demand_javac()
    demand_jars(PULSAR_4)
    sources = [*(ROOT / "clients/java/src/main").rglob("*.java"), *(_SOURCES / JAVA).glob("*.java")]
    run = compile_programs(classes, sources)
    return {(JAVA, role): [*run, name] for role, name in _CLASSES.items()}


def _go(directory: Path) -> dict[tuple[str, str], Sequence[str | Path]]:
    directory.mkdir(parents=True)
    build([demand_go(), "build", "-o", f"{directory}/", "./produce", "./consume"], _SOURCES / GO)
    return {(GO, role): [directory / role] for role in (_PRODUCE, _CONSUME)}


class StockProcess:
    """One started program."""

    def __init__(self, role: str, command: Sequence[str | Path], history: Path) -> None:
        """`role` is `produce` or `consume`."""
        self.role, self.history = role, history
        self._counted = Event.SENT if role == _PRODUCE else Event.DELIVERED
        self._log = history.with_suffix(".log")
        history.touch()
        self._child = ChildProcess(command, log=self._log, cwd=ROOT)
        self._child.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._child.pid

    @property
    def count(self) -> int:
        """Return the number of messages that the process has stored or received so far. Fails with the end of its log if it is not
        running.
        """
        assert self._child.running, self.whereabouts()
        return self.history.read_bytes().count(f"\t{self._counted}\t".encode())

    def whereabouts(self) -> str:
        """Return the end of the process's log, for the message of a test whose wait has failed."""
        return f"{self.history.stem}:\n{self._log.read_text(errors='replace')[-4000:]}"

    def stop(self) -> None:
        """Stop the process in good order. Fails if the process must be killed: a producer that waits for an answer that never comes, or
        whose message failed.
        """
        self._child.ask_to_end()
        wait_until(
            lambda: not self._child.running,
            timeout_seconds=_END_SECONDS,
            message=f"the end of {self.whereabouts()}",
        )
        self._child.stop()

    def kill(self) -> None:
        """End the process at once."""
        self._child.kill()


@dataclass
class StockScene:
    """Standard clients on one topic. The histories of each subscription's consumers are in a separate directory."""

    programs: Programs
    topic: str
    service_url: str
    address: str
    """Addresses of workers, with commas between."""
    directory: Path
    keys: int = 200
    _running: list[StockProcess] = field(default_factory=list)

    @property
    def pattern(self) -> str:
        """Pattern to which a standard consumer subscribes."""
        return f"{self.topic.replace('topic://', 'persistent://')}-segment-.*"

    def produce(self, language: str, name: str, *, rate: int = 300) -> StockProcess:
        """Start a producer of `rate` messages per second."""
        arguments = [self.address, token_for(self.topic), str(self.keys), str(rate)]
        return self._start((language, _PRODUCE), self.topic, name, "sent", arguments)

    def consume(
        self,
        language: str,
        name: str,
        subscription: str,
        *,
        kind: str = "Failover",
        acknowledgement: str = "individual",
        work_ms: int = 0,
    ) -> StockProcess:
        """Start a consumer. `kind`: Failover or Exclusive; `acknowledgement`: individual or cumulative; `work_ms`: milliseconds of work
        on each message.
        """
        arguments = [subscription, kind, acknowledgement, str(work_ms)]
        return self._start((language, _CONSUME), self.pattern, name, subscription, arguments)

    def _start(
        self, program: tuple[str, str], read_or_written: str, name: str, of: str, arguments: Sequence[str]
    ) -> StockProcess:
        histories = self.directory / of
        histories.mkdir(parents=True, exist_ok=True)
        history = histories / f"{name}-{program[0]}.history"
        command = [*self.programs.commands[program], self.service_url, read_or_written, name, history]
        started = StockProcess(program[1], [*command, *arguments], history)
        self._running.append(started)
        return started

    def records(self, subscription: str) -> Iterable[Record]:
        """Return the records of the producers and the subscription's consumers."""
        directories = (self.directory / "sent", self.directory / subscription)
        return read_history(*history_files(directories))

    def judge(self, subscription: str) -> Verdict:
        """Return the verdict on the deliveries to the subscription's consumers."""
        return check(self.records(subscription))

    def close(self) -> None:
        """Kill the processes that still run."""
        for process in self._running:
            process.kill()


def unsent(records: Iterable[Record]) -> int:
    """Return the number of messages that no producer recorded as stored although a later message of the same producer and key was."""
    sent: dict[tuple[str, str], set[int]] = defaultdict(set)
    for record in records:
        if record.event is Event.SENT:
            sent[record.producer, record.key].add(record.number)
    return sum(max(numbers) + 1 - len(numbers) for numbers in sent.values())


class Break(NamedTuple):
    """A message that was delivered for the first time before its predecessor: the first deliveries of both."""

    message: Record
    predecessor: Record


def breaks(records: Iterable[Record]) -> list[Break]:
    """Return the messages that were delivered for the first time before their predecessor of the same producer and key."""
    first: dict[tuple[str, str], dict[int, Record]] = defaultdict(dict)
    for record in records:
        if record.event is Event.DELIVERED:
            known = first[record.producer, record.key].setdefault(record.number, record)
            if record.at_ns < known.at_ns:
                first[record.producer, record.key][record.number] = record
    return [
        Break(message, by_number[number - 1])
        for by_number in first.values()
        for number, message in by_number.items()
        if number - 1 in by_number and message.at_ns < by_number[number - 1].at_ns
    ]
