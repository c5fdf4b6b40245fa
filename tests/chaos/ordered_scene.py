"""A topic that is reshaped all the time while its workers, producers and consumers, each a process, are killed and stopped.

Everything is chosen by one seeded generator, but for what the processes do with their time. A process that was killed is started
again: consumers and workers under their name, producers under a new one, since their messages are numbered.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from controller.client.history import Event, Record, SeekHistory, read_history
from controller.client.history_check import Example, Kind, Verdict, check
from controller.devstack.ports import free_port, is_listening, release_port
from controller.devstack.process import ChildProcess
from controller.devstack.pulsar.standalone import PulsarStandalone
from controller.devstack.serving import SECRET
from controller.domain.errors import Conflict, DataPlaneUnavailable, InvalidLayoutChange, Retryable
from controller.domain.layout import SegmentLayout
from controller.domain.operation import OperationState
from controller.domain.seek_target import EARLIEST
from controller.services import deletion_sweeper, garbage_collector, subscription_admin
from controller.services.segment_admin import Planner, merging, rebucketing, splitting
from controller.settings import PROJECT_ROOT
from tests.support.bench import Bench
from tests.support.stock_clients import StockProcess
from tests.support.traffic import TrafficProcess
from tests.support.waiting import wait_until

GRACE_SECONDS, LEASE_SECONDS = 4.0, 2.0
FEWEST, MOST = 2, 8
"""Active segments."""
BUCKETS = (1, 2, 4)
REFUSED = (Conflict, InvalidLayoutChange, Retryable)
ENDS_WITHIN_SECONDS = 240.0
SILENT_SECONDS = GRACE_SECONDS / 2
"""Who was not heard for so long, others may read what is in its hands, and nothing takes that out of them."""
CLIENT_KEEPS_SECONDS = 1.0
"""Acknowledgements that a client of a broker's has not sent, at most: it says 100 ms."""
BROKER_KEEPS_SECONDS = 61.0
"""Acknowledgements that a broker has not written down, at most: see `controller.dataplane.pulsar.reader`."""
UNLOADS_SECONDS = 1.0
"""From when a broker begins to unload a topic until its readers are cut off, on a busy machine."""
EVERY_EXAMPLE = 1_000_000
PROGRESS_BYTES = 200_000
"""Of histories, a thousand messages or so. Consumers that write less in `ENDS_WITHIN_SECONDS` stand still."""
DRAINED = "SELECT count(*) FROM cleave.segment_drain WHERE subscription = 'billing'"


@dataclass
class Disturbances:
    """When what happened that makes a finding no fault. Instants are the machine's monotonic clock, in ns."""

    silences: list[tuple[int, int]] = field(default_factory=list)
    """Stops of a consumer, until it may have worked off what was in its hands."""
    losses: list[tuple[int, int]] = field(default_factory=list)
    """Acknowledgements of these times may not have reached the disk of a broker."""

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """A consumer stands still meanwhile, for however long."""
        began = time.monotonic_ns()
        yield
        if time.monotonic_ns() - began > SILENT_SECONDS * 1e9:
            self.silences.append((began, time.monotonic_ns() + int(SILENT_SECONDS * 1e9)))

    def lost(self, kept_seconds: float) -> None:
        """Whoever kept acknowledgements for so long is dead, or cut off."""
        now = time.monotonic_ns()
        self.losses.append((now - int(kept_seconds * 1e9), now))

    def unloaded(self, broker_log: Path) -> None:
        """A topic that its broker loads anew, as clients ask it to where nobody can subscribe any more: its readers lose their
        connections, and acknowledgements on their way.
        """
        ago = time.monotonic() - time.time()
        for line in broker_log.read_text(errors="replace").splitlines():
            if " Unloading topic " in line:
                told = datetime.fromisoformat(line.partition(" ")[0].replace(",", "."))
                at_ns = int((told.timestamp() + ago) * 1e9)
                self.losses.append(
                    (at_ns - int(CLIENT_KEEPS_SECONDS * 1e9), at_ns + int(UNLOADS_SECONDS * 1e9))
                )

    def unexplained(self, verdict: Verdict, records: Iterable[Record]) -> list[Example]:
        """Findings of two owners and of duplicates that nothing that happened accounts for."""
        told = {kind: [one for one in verdict.examples if one.kind is kind] for kind in Kind}
        found = [one for one in told[Kind.TWO_OWNERS] if not _lies_in(one.at_ns, self.silences)]
        twice = {(one.producer, one.key, one.number) for one in told[Kind.DUPLICATED]}
        taken: dict[tuple[str, str, int], list[int]] = defaultdict(list)
        for record in records if twice else ():
            if record.event is Event.ACKNOWLEDGED and record[2:5] in twice:
                taken[record[2:5]].append(record.at_ns)
        for one in told[Kind.DUPLICATED]:
            before = [at for at in taken[one.producer, one.key, one.number] if at <= (one.at_ns or 0)]
            if not (
                _lies_in(max(before), self.losses) or self._was_read_before_stop(max(before), one.at_ns or 0)
            ):
                found.append(one)
        return found

    def _was_read_before_stop(self, acknowledged_at_ns: int, delivered_at_ns: int) -> bool:
        """Return True if a stopped consumer may have read the message before its stop: another consumer acknowledged the message
        during the stop, and the delivery was recorded when the stopped consumer continued.
        """
        return any(begin <= acknowledged_at_ns <= delivered_at_ns <= end for begin, end in self.silences)


def _lies_in(at_ns: int | None, spans: Iterable[tuple[int, int]]) -> bool:
    return at_ns is not None and any(begin <= at_ns <= end for begin, end in spans)


def _name(strike: Callable[[], None]) -> str:
    return strike.__name__.strip("_")


@dataclass
class TrafficLife:
    """A process with a place in the scene, and the histories of those that had it before."""

    traffic: TrafficProcess | StockProcess
    histories: list[Path] = field(default_factory=list)
    lives: int = 1


class OrderedScene:
    """`run`, then `judge`. Whatever is started ends with `running`."""

    def __init__(
        self,
        bench: Bench,
        directory: Path,
        running: ExitStack,
        *,
        seed: int,
        rate: int,
        consumers: int,
        broker: PulsarStandalone | None = None,
        prefetch: int = 0,
        look_every: int = 20,
        most_unread: int = 20_000,
    ) -> None:
        """`rate`: messages a second, all producers together. `broker` is killed now and then, where one is given. `prefetch`: messages
        that wait at a consumer of a broker's, of each bucket; 0 for what is usual. After every `look_every` reshapes consumers have the
        time to come down to `most_unread` messages: each sealed segment is read to its end before its children, and on a broker that
        takes longer than a reshape.
        """
        self._look_every, self._most_unread = look_every, most_unread
        self.bench, self._directory, self._running = bench, directory, running
        self._broker, self._prefetch = broker, prefetch
        self._chooser, self._rate = random.Random(seed), rate
        self.acts: Counter[str] = Counter()
        self._excuses = Disturbances()
        self._seeks = running.enter_context(SeekHistory(directory / "seeks.history"))
        self._number = 0
        self._to_come: list[Callable[[], None]] = []
        bench.execute(
            "UPDATE cleave.cluster_policy SET policy = '{\"enabled\": false}', row_version = row_version + 1"
        )
        self._make_topic()
        self._ports = {name: free_port() for name in ("w1", "w2")}
        for port in self._ports.values():
            running.callback(release_port, port)
        self._workers = {name: self._start_worker(name) for name in self._ports}
        self._producers = {name: self._start("produce", name) for name in ("p1", "p2")}
        self._consumers = {f"c{i + 1}": self._start("consume", f"c{i + 1}") for i in range(consumers)}
        self._audits = 0
        self._wait("traffic flows", self._flows)

    def _flows(self) -> bool:
        return all(one.traffic.count for one in self._everybody)

    def _make_topic(self) -> None:
        self.bench.topic_with(FEWEST)

    @property
    def paths(self) -> list[Path]:
        """The histories of all who took part."""
        found = [path for one in self._everybody for path in one.histories]
        return [*dict.fromkeys(found), self._directory / "seeks.history"]

    @property
    def _addresses(self) -> str:
        return ",".join(f"http://127.0.0.1:{port}" for port in self._ports.values())

    @property
    def _everybody(self) -> list[TrafficLife]:
        return [*self._producers.values(), *self._consumers.values()]

    @property
    def sent(self) -> int:
        """Messages that producers know to be stored."""
        return sum(
            path.read_bytes().count(b"\n") for one in self._producers.values() for path in one.histories
        )

    @property
    def strikes(self) -> tuple[Callable[[], None], ...]:
        """All that befalls those who take part."""
        strikes: tuple[Callable[[], None], ...] = (
            self._kill_consumer, self._pause_consumer, self._outlast_grace, self._kill_producer, self._pause_producer,
            self._kill_worker, self._pause_worker, self._change_subscriptions, self._collect, self._seek,
        )  # fmt: skip
        return strikes if self._broker is None else (*strikes, self._kill_broker)

    def run(self, operations: int, *, strike_every: int) -> None:
        """So many reshapes more, each waited for; a strike after each `strike_every` since the scene began."""
        for _ in range(operations):
            self._reshape()
            self._number += 1
            if self._number % self._look_every == 0:
                # a layout is not changed for ever under consumers that are far behind
                self._read_down_to(self._most_unread, "the consumers catch up")
            if self._number % strike_every == 0:
                self._strike()

    def _strike(self) -> None:
        """Each in its turn, so that a short run has seen all of them."""
        if not self._to_come:
            self._to_come = self._chooser.sample(self.strikes, len(self.strikes))
        strike = self._to_come.pop()
        self.acts[_name(strike)] += 1
        strike()

    @property
    def strike_names(self) -> set[str]:
        """As `acts` counts them."""
        return {_name(one) for one in self.strikes}

    @property
    def unseen(self) -> set[str]:
        """Strikes that have not come yet."""
        return self.strike_names - self.acts.keys()

    def judge(self) -> tuple[Verdict, list[Example]]:
        """End the producers, let the consumers finish, and compare. Beside the verdict those of its findings of two owners and of
        duplicates that the strikes do not account for.
        """
        for one in self._producers.values():
            one.traffic.stop()
        self._read_down_to(0, "the backlog is read")
        for one in self._consumers.values():
            one.traffic.stop()
        verdict = check(read_history(*self.paths), examples=EVERY_EXAMPLE)
        if self._broker is not None:
            self._excuses.unloaded(self._broker.log)
        return verdict, self._excuses.unexplained(verdict, read_history(*self.paths))

    def _reshape(self) -> None:
        """One of the layout as it is; the workers run it. What cannot be just now is replaced by another."""

        def intended() -> Any:
            try:
                return self.bench.intend(self._planner(self.bench.layout))
            except REFUSED:
                return None

        intent = self._wait("a reshape is taken", intended)

        def ended() -> bool:
            return not self.bench.operation(intent.operation.operation_id).state.is_live

        self._wait(f"operation {intent.operation.operation_id} ends", ended)
        done = self.bench.operation(intent.operation.operation_id)
        self.acts[done.kind.value if done.state is OperationState.DONE else "aborted"] += 1

    def _planner(self, layout: SegmentLayout) -> Planner:
        active = layout.active
        at = self._chooser.randrange(len(active) - 1)
        merge = merging(active[at].segment_id, active[at + 1].segment_id)
        if len(active) >= MOST:
            return merge
        wide = [one for one in active if one.hash_range.end > one.hash_range.start + 256]
        split = splitting(self._chooser.choice(wide).segment_id)
        if len(active) <= FEWEST:
            return split
        other = self._chooser.choice([count for count in BUCKETS if count != active[at].bucket_count])
        return self._chooser.choice([split, merge, rebucketing(active[at].segment_id, other)])

    def _kill_consumer(self) -> None:
        self._kill_and_start(self._consumers, self._consumers_name)
        self._clients_forget()

    def _clients_forget(self) -> None:
        """The embedded logs have an acknowledgement before the consumer knows of it."""
        if self.bench.pulsar is not None:
            self._excuses.lost(CLIENT_KEEPS_SECONDS)

    def _kill_producer(self) -> None:
        self._kill_and_start(self._producers, lambda name, lives: f"{name}-{lives}")

    @staticmethod
    def _consumers_name(name: str, _lives: int) -> str:
        return name

    def _kill_and_start(self, among: dict[str, TrafficLife], named: Callable[[str, int], str]) -> None:
        place = self._chooser.choice(sorted(among))
        one = among[place]
        one.traffic.kill()
        one.lives += 1
        again = self._start(one.traffic.role, named(place, one.lives), life=one.lives)
        one.traffic = again.traffic
        one.histories += again.histories

    def _pause_consumer(self) -> None:
        with self._stopped_consumer():
            self._reshape()

    @contextmanager
    def _stopped_consumer(self) -> Iterator[None]:
        with self._excuses.stopped(), self._stopped(self._any(self._consumers).pid):
            self._clients_forget()
            yield

    def _outlast_grace(self) -> None:
        """Its buckets are with others when it wakes."""
        with self._stopped_consumer():
            began = time.monotonic()
            while time.monotonic() < began + 2 * GRACE_SECONDS:
                self._reshape()

    def _pause_producer(self) -> None:
        with self._stopped(self._any(self._producers).pid):
            self._reshape()

    def _kill_worker(self) -> None:
        name = self._chooser.choice(sorted(self._workers))
        self._workers[name].kill()
        self._reshape()
        self._workers[name] = self._start_worker(name)

    def _pause_worker(self) -> None:
        """For longer than its leases hold."""
        worker = self._workers[self._chooser.choice(sorted(self._workers))]
        with self._stopped(worker.pid):
            began = time.monotonic()
            while time.monotonic() < began + 2 * LEASE_SECONDS:
                self._reshape()

    def _kill_broker(self) -> None:
        """By SIGKILL, right after a segment was read to its end: what it forgets of the acknowledgements must cost nothing."""
        broker, before = self._broker, self.bench.scalar(DRAINED)
        assert broker is not None
        self._reshape()
        self._wait("a segment is drained", lambda: self.bench.scalar(DRAINED) > before)
        broker.kill()
        self._excuses.lost(BROKER_KEEPS_SECONDS)
        broker.start()

    def _change_subscriptions(self) -> None:
        """One that nobody reads comes, and goes."""
        self._audits += 1
        name, request = f"audit-{self._audits}", self.bench.request
        for change in (subscription_admin.create_subscription, subscription_admin.delete_subscription):

            def asked(change: Any = change) -> Any:
                try:
                    return change(self.bench.store, self.bench.topic_name, name, request())
                except REFUSED:
                    return None

            def done(asked: Any = asked, what: str = f"{change.__name__} is taken") -> bool:
                """A change that could not be made within its deadline, on a machine that is busy or a broker that is away, is asked again."""
                intent = self._wait(what, asked)
                operation_id = intent.operation.operation_id
                self._wait("the change ends", lambda: not self.bench.operation(operation_id).state.is_live)
                return self.bench.operation(operation_id).state is OperationState.DONE

            self._wait("the subscription changes", done)

    def _seek(self) -> None:
        with self._seeks.seek():
            self._seek_back()

    def _seek_back(self) -> None:
        """Back to what is left, while the topic is reshaped and a worker dies. An instant could lie ahead of somebody's backlog, and
        a seek there would pass it over.
        """

        def asked() -> Any:
            try:
                return subscription_admin.seek_subscription(
                    self.bench.store,
                    self.bench.topic_name,
                    "billing",
                    EARLIEST,
                    self.bench.request(),
                    release_seconds=GRACE_SECONDS,
                )
            except REFUSED:
                return None

        intent = self._wait("a seek is taken", asked)
        self._kill_worker()
        self._wait(
            "the seek is done", lambda: not self.bench.operation(intent.operation.operation_id).state.is_live
        )

    def _collect(self) -> None:
        """What everybody has read to its end goes."""
        garbage_collector.collect(self.bench.store, self.bench.planes, retention_minutes=0)
        deletion_sweeper.sweep(self.bench.store, self.bench.planes)

    @contextmanager
    def _stopped(self, pid: int) -> Any:
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def _any(self, among: dict[str, TrafficLife]) -> TrafficProcess | StockProcess:
        return among[self._chooser.choice(sorted(among))].traffic

    def _unread_at_most(self, most: int) -> bool:
        try:
            return self.bench.unread("billing") <= most
        except DataPlaneUnavailable:  # nobody can count just now
            return False

    def _read_down_to(self, most: int, what: str) -> None:
        """While consumers write down what they do it may take as long as it takes: what a seek brings again may be all there is."""

        def there_or_further() -> str:
            return "there" if self._unread_at_most(most) else "further" if self._written > enough else ""

        reached = ""
        while reached != "there":
            enough = self._written + PROGRESS_BYTES
            reached = self._wait(what, there_or_further)

    @property
    def _written(self) -> int:
        """Bytes of the consumers' histories."""
        return sum(path.stat().st_size for one in self._consumers.values() for path in one.histories)

    def _wait(self, what: str, predicate: Callable[[], Any]) -> Any:
        """What never comes is told with where everybody stands."""
        try:
            return wait_until(predicate, timeout_seconds=ENDS_WITHIN_SECONDS, message=what)
        except AssertionError as late:
            told = [one.traffic.whereabouts() for one in self._everybody]
            raise AssertionError("\n\n".join([str(late), repr(self.acts), *told])) from late

    def _start(self, role: str, name: str, *, life: int = 1) -> TrafficLife:
        directory = self._directory / f"{name}-{life}"
        directory.mkdir()
        traffic = self._running.enter_context(
            TrafficProcess(
                role,
                name,
                url=self.bench.url,
                topic=self.bench.topic_name,
                directory=directory,
                subscription="billing",
                pulsar=self.bench.pulsar,
                rate=self._rate // 2,
                prefetch=self._prefetch,
                address=self._addresses,
            )
        )
        return TrafficLife(traffic, [traffic.history])

    def _start_worker(self, name: str) -> ChildProcess:
        given = {
            "DATABASE_URL": self.bench.url,
            "API_SECRET": SECRET,
            "SERVE_PORT": self._ports[name],
            "WORKER_LEASE_SECONDS": LEASE_SECONDS,
            "CONSUMER_GRACE_SECONDS": GRACE_SECONDS,
        }
        if self.bench.pulsar is not None:
            given |= {
                "PULSAR_ADMIN_URL": self.bench.pulsar.admin_url,
                "PULSAR_SERVICE_URL": self.bench.pulsar.service_url,
            }
        env = {key: value for key, value in os.environ.items() if not key.startswith("CLEAVE_")}
        env |= {f"CLEAVE_{key}": str(value) for key, value in given.items()}
        worker = ChildProcess(
            [sys.executable, "-m", "controller.commands.cli", "worker", "--no-collect", "--name", name],
            log=self._directory / f"{name}.log",
            cwd=PROJECT_ROOT,
            env=env,
        )
        self._running.callback(worker.stop)
        worker.start()
        # An application that finds no worker at its first call ends; whoever runs it starts it again, and nobody does here.
        wait_until(
            lambda: is_listening(self._ports[name]),
            timeout_seconds=ENDS_WITHIN_SECONDS,
            message=f"{name} serves",
        )
        return worker
