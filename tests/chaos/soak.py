"""Rounds of real producers and consumers beside a busy machine, for as long as asked: `python -m tests.chaos.soak --minutes 60`.

Each round is a topic of its own on a Pulsar 4.2.4: traffic flows, a segment is split and two are merged under it, the backlog is read,
and the histories are compared. Some rounds go on side by side, and some processes do nothing but keep the processors busy. What does
not come within `ENDS_WITHIN_SECONDS` is a stall: it is written down with where every process stood, and the next round begins. A line
a round, and a summary at the end; the exit code is 1 after a stall, or a message that was lost or out of order.
"""

from __future__ import annotations

import argparse
import multiprocessing
import secrets
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from controller.devstack.postgres import EmbeddedPostgres
from controller.devstack.pulsar.java_server import QUICK
from controller.devstack.pulsar.standalone import PulsarStandalone
from controller.services.segment_admin import merging, splitting
from controller.store.postgres.migrations import migrate
from tests.chaos.scene import ENDS_WITHIN_SECONDS, Scene
from tests.support.bench import Bench
from tests.support.bench_planes import OnPulsar

RATE = 300
"""Messages a second of each producer."""


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


@dataclass
class Ground:
    """The servers, and what came of the rounds so far."""

    postgres: EmbeddedPostgres
    broker: PulsarStandalone
    directory: Path
    until: float
    rounds: int
    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    begun: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self) -> int | None:
        """The number of a round that is still to begin."""
        with self.lock:
            if time.monotonic() >= self.until or self.begun >= self.rounds:
                return None
            self.begun += 1
            return self.begun

    def conclude(self, number: int, seconds: float, failure: str | None) -> None:
        """Note and print what came of a round."""
        with self.lock:
            self.seconds.append(seconds)
            if failure is not None:
                self.failures.append(f"round {number}: {failure}")
                (self.directory / f"failed-{number}.txt").write_text(failure)
            told = "clean" if failure is None else failure.splitlines()[0]
            print(f"round {number}: {seconds:.1f} s, {told}", flush=True)


def play(ground: Ground, number: int) -> None:
    """One round. Raises AssertionError for what does not come, and for what is lost or out of order."""
    name = f"soak_{secrets.token_hex(4)}"
    directory = ground.directory / f"round-{number}"
    directory.mkdir()
    url = ground.postgres.create_database(name, template="soaked")
    try:
        bench = Bench(url, OnPulsar.fresh(ground.broker.admin_url, ground.broker.service_url, "soak"))
        with closing(bench), ExitStack() as running:
            if bench.pulsar is not None:
                running.callback(bench.pulsar.remove, bench.plane)
            scene = Scene(bench, directory, running, rate=RATE)
            scene.begin(1, consumers=2)
            bench.reshape(splitting(0))
            scene.advance()
            bench.reshape(merging(1, 2))
            scene.advance()
            verdict = scene.judge()
            assert verdict.in_order_and_complete, verdict
    finally:
        ground.postgres.drop_database(name)


def lane(ground: Ground) -> None:
    """One round after the other."""
    while (number := ground.next()) is not None:
        began, failure = time.monotonic(), None
        try:
            play(ground, number)
        except Exception as error:  # noqa: BLE001 - the next round is to begin all the same
            failure = f"{type(error).__name__}: {error}"
        ground.conclude(number, time.monotonic() - began, failure)


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
        ground = Ground(postgres, broker, directory, until, given.rounds)
        lanes = [threading.Thread(target=lane, args=(ground,)) for _ in range(given.lanes)]
        for one in lanes:
            one.start()
        for one in lanes:
            one.join()
    clean = len(ground.seconds) - len(ground.failures)
    print(
        f"{len(ground.seconds)} rounds, {clean} clean, {len(ground.failures)} failed; a round took "
        f"{statistics.median(ground.seconds or [0.0]):.1f} s in the middle, {max(ground.seconds, default=0.0):.1f} s at most; "
        f"a stall is {ENDS_WITHIN_SECONDS:g} s"
    )
    sys.exit(bool(ground.failures))


if __name__ == "__main__":
    main()
