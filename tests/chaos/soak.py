"""Rounds of real producers and consumers beside a busy machine, for as long as asked: `python -m tests.chaos.soak --minutes 60`.

Each round is a topic of its own on a Pulsar 4.2.4: traffic flows, a segment is split and two are merged under it, the backlog is read,
and the histories are compared. Some rounds go on side by side, and some processes do nothing but keep the processors busy. What does
not come within `ENDS_WITHIN_SECONDS` is a stall: it is written down with where every process stood, and the next round begins. A round
that ended well is *slow* where a message waited for longer than `SLOW_SECONDS` between being stored and being delivered. What goes
wrong when a round's processes, topic and database are taken away is told apart. A line a round, and a summary at the end, of which
`--figures` keeps the figures for RESULTS.md; the exit code is 1 after a stall, or a message that was lost or out of order.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import secrets
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.kept import keep
from benchmarks.machine import machine
from controller.client.history import Event, Message, Record, history_files, read_history
from controller.devstack.postgres import EmbeddedPostgres
from controller.devstack.pulsar.java_server import QUICK
from controller.devstack.pulsar.standalone import PulsarStandalone
from controller.services.segment_admin import merging, splitting
from controller.store.postgres.migrations import migrate
from tests.chaos.scene import ENDS_WITHIN_SECONDS, Scene
from tests.support.bench import Bench
from tests.support.bench_planes import PulsarTopic

RATE = 300
"""Messages a second of each producer."""
SLOW_SECONDS = 10.0


def _keep_busy() -> None:
    while True:
        pass


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that never rest meanwhile."""
    started = [multiprocessing.Process(target=_keep_busy, daemon=True) for _ in range(processes)]
    for one in started:
        one.start()
    try:
        yield
    finally:
        for one in started:
            one.kill()
            one.join()


@dataclass(frozen=True)
class Round:
    """What came of one. `failure`: a stall, or a message lost or out of order; `trouble`: of taking it away afterwards."""

    number: int
    seconds: float
    waited_seconds: float = 0.0
    """The longest that a message waited."""
    failure: str | None = None
    trouble: str | None = None

    @property
    def is_slow(self) -> bool:
        """It ended well, and not soon."""
        return self.failure is None and self.waited_seconds > SLOW_SECONDS

    def __str__(self) -> str:
        said = f"slow: a message waited {self.waited_seconds:.1f} s" if self.is_slow else "clean"
        told = [said if self.failure is None else self.failure.splitlines()[0]]
        told += [] if self.trouble is None else [f"taken away with trouble: {self.trouble.splitlines()[0]}"]
        return f"round {self.number}: {self.seconds:.1f} s, {'; '.join(told)}"


@dataclass
class SoakRun:
    """The servers, and what came of the rounds so far."""

    postgres: EmbeddedPostgres
    broker: PulsarStandalone
    directory: Path
    until: float
    rounds: int
    ended: list[Round] = field(default_factory=list)
    begun: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self) -> int | None:
        """The number of a round that is still to begin."""
        with self.lock:
            if time.monotonic() >= self.until or self.begun >= self.rounds:
                return None
            self.begun += 1
            return self.begun

    def conclude(self, one: Round) -> None:
        """Note and print what came of a round."""
        with self.lock:
            self.ended.append(one)
            for name, text in (("failed", one.failure), ("trouble", one.trouble)):
                if text is not None:
                    (self.directory / f"{name}-{one.number}.txt").write_text(text)
            print(one, flush=True)

    def figures(self) -> dict[str, object]:
        """Of all rounds."""
        seconds = [one.seconds for one in self.ended] or [0.0]
        waited = [one.waited_seconds for one in self.ended if one.failure is None] or [0.0]
        return {
            "rounds": len(self.ended),
            "failed": sum(one.failure is not None for one in self.ended),
            "slow": sum(one.is_slow for one in self.ended),
            "taken_away_with_trouble": sum(one.trouble is not None for one in self.ended),
            "slow_is_longer_than_seconds": SLOW_SECONDS,
            "a_stall_is_longer_than_seconds": ENDS_WITHIN_SECONDS,
            "round_p50_seconds": round(statistics.median(seconds), 1),
            "round_worst_seconds": round(max(seconds), 1),
            "longest_wait_of_a_message_p50_seconds": round(statistics.median(waited), 1),
            "longest_wait_of_a_message_worst_seconds": round(max(waited), 1),
        }


def play(run: SoakRun, number: int, taken_away: ExitStack) -> float:
    """One round; how long a message waited at most. Raises AssertionError for what does not come, and for what is lost or out of order.
    What is to be taken away afterwards is put on the stack.
    """
    name = f"soak_{secrets.token_hex(4)}"
    directory = run.directory / f"round-{number}"
    directory.mkdir()
    url = run.postgres.create_database(name, template="soaked")
    taken_away.callback(run.postgres.drop_database, name)
    bench = Bench(url, PulsarTopic.fresh(run.broker.admin_url, run.broker.service_url, "soak"))
    taken_away.enter_context(closing(bench))
    if bench.pulsar is not None:
        taken_away.callback(bench.pulsar.remove, bench.plane)
    scene = Scene(bench, directory, taken_away, rate=RATE)
    scene.begin(1, consumers=2)
    bench.reshape(splitting(0))
    scene.advance()
    bench.reshape(merging(1, 2))
    scene.advance()
    verdict = scene.judge()
    assert verdict.in_order_and_complete, verdict
    return longest_wait_seconds(read_history(*history_files([directory])))


def longest_wait_seconds(records: Iterable[Record]) -> float:
    """Of all messages, from being stored to being delivered first."""
    stored: dict[Message, int] = {}
    came: dict[Message, int] = {}
    for record in records:
        message = (record.producer, record.key, record.number)
        if record.event is Event.SENT:
            stored[message] = record.at_ns
        elif record.event is Event.DELIVERED:
            came[message] = min(record.at_ns, came.get(message, record.at_ns))
    return max((came[one] - at for one, at in stored.items() if one in came), default=0) / 1e9


def lane(run: SoakRun) -> None:
    """One round after the other."""
    while (number := run.next()) is not None:
        run.conclude(one_round(number, partial(play, run, number)))


def one_round(number: int, act: Callable[[ExitStack], float]) -> Round:
    """What `act` comes to, and the taking away of what it has put on its stack. No error leaves, since the next round is to begin."""
    began, taken_away = time.monotonic(), ExitStack()
    waited, failure, trouble = 0.0, None, None
    try:
        waited = act(taken_away)
    except Exception as error:  # noqa: BLE001 - see above
        failure = f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - began
    try:
        taken_away.close()
    except Exception as error:  # noqa: BLE001 - see above
        trouble = f"{type(error).__name__}: {error}"
    return Round(number, seconds, waited, failure, trouble)


def main() -> None:
    """Soak, and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=sys.maxsize, help="end after so many")
    parser.add_argument("--lanes", type=int, default=2, help="rounds side by side")
    parser.add_argument("--busy", type=int, default=2, help="processes that keep the processors busy")
    parser.add_argument(
        "--keep", type=Path, help="where what failed is written down; a temporary directory otherwise"
    )
    parser.add_argument(
        "--figures", action="store_true", help="keep the figures in benchmarks/results, for RESULTS.md"
    )
    given = parser.parse_args()
    with ExitStack() as running:
        directory = given.keep or Path(running.enter_context(tempfile.TemporaryDirectory()))
        directory.mkdir(parents=True, exist_ok=True)
        postgres = EmbeddedPostgres(directory / "postgres")
        running.callback(postgres.destroy)
        postgres.start()
        migrate(postgres.create_database("soaked"))
        broker = running.enter_context(PulsarStandalone(directory / "pulsar", jvm=QUICK))
        running.enter_context(busy(given.busy))
        until = time.monotonic() + given.minutes * 60
        run = SoakRun(postgres, broker, directory, until, given.rounds)
        lanes = [threading.Thread(target=lane, args=(run,)) for _ in range(given.lanes)]
        for one in lanes:
            one.start()
        for one in lanes:
            one.join()
    figures = {
        "benchmark": "soak",
        "machine": machine(),
        "command": "make soak ARGS='--rounds N --figures'",
        "lanes": given.lanes,
        "busy_processes": given.busy,
        **run.figures(),
    }
    print(json.dumps(figures))
    if given.figures:
        keep("soak", figures)
    sys.exit(any(one.failure is not None for one in run.ended))


if __name__ == "__main__":
    main()
