"""A topic on each data plane with a worker, producers and consumers, on a PostgreSQL that fails over or is restored.

    with ExitStack() as running:
        scene = OutageScene(cluster, directory, running, topics=[None, PulsarTopic.fresh(...)])
        scene.begin()
        ...                               # reshapes, a cut of the replication, a backup
        with scene.outage():
            cluster.kill_primary()
            cluster.promote()
        scene.wait_resumed()
        scene.maintain()
        outcomes = scene.judge()          # by plane: `Outcome`

All topics share the database, the worker and the outage. `None` in `topics` is the plane of embedded logs, whose logs lie
in the same database. Subscription `billing` is consumed all the time. Subscription `audit` is read at the end only, so that
until then every message is unread, and a log with messages that disappears was deleted unread.
"""

from __future__ import annotations

import io
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TypeVar

import psycopg2
import psycopg2.extensions

from controller import tasks
from controller.client.history import Message
from controller.dataplane.base import LogState
from controller.dataplane.embedded import EmbeddedLogClient
from controller.dataplane.log_client import LogClient
from controller.dataplane.pulsar.log_client import PulsarLogClient
from controller.devstack.ports import LOOPBACK, free_port, is_listening, release_port
from controller.devstack.process import ChildProcess
from controller.devstack.serving import SECRET
from controller.domain.errors import CleaveError
from controller.domain.operation import OperationState
from controller.services.segment_admin import Planner, splitting
from controller.store.journal.operations import Request
from tests.support.bench import Bench
from tests.support.bench_planes import PulsarTopic
from tests.support.cleave_process import cleave_process
from tests.support.migrated import migrate_to_pip483
from tests.support.outage_clients import Client, ConsumingClient, Place, ProducingClient
from tests.support.outage_outcome import Outcome, Reading, Window, late, reading
from tests.support.replicated_postgres import Address, ReplicatedPostgres
from tests.support.waiting import wait_until

Found = TypeVar("Found")
LIVE, AUDIT = "billing", "audit"
TEMPLATE = "cleave_scenes"
MESSAGES_A_SECOND = 40
"""Of each producer."""
ROUNDS = 3
"""Of maintenance after an outage."""
QUIET_SECONDS = 20.0
"""Operations that the worker has not ended by then are left to it."""
CONTINUES_WITHIN_SECONDS = 25.0
"""Less than a dead runner's claim lasts by default, and more than a lease: enough for a busy machine."""
STANDS_STILL_SECONDS = 30.0
"""Consumers that receive nothing for so long, with messages missing and no operation under way, receive nothing more."""
WAITS_FOR_OPERATIONS_SECONDS = 90.0
"""Consumers that receive nothing for so long while an operation is under way receive nothing more, either."""


def prepare(cluster: ReplicatedPostgres) -> None:
    """Create the template of the scenes' databases on the primary, once for each cluster."""
    migrate_to_pip483(cluster.primary.create_database(TEMPLATE))


class SceneBench(Bench):
    """A bench that shares its database with others, and whose request keys are also new to a journal that went back in time."""

    def request(self, key: str | None = None, deadline_seconds: float = 60.0) -> Request:
        """Return a manual request, with a random key unless one is given."""
        return super().request(key or secrets.token_hex(8), deadline_seconds)


class TopicScene:
    """One topic on one data plane with its clients. `pulsar` None: on the logs of the database."""

    def __init__(self, bench: Bench, directory: Path, url: str) -> None:
        self.bench, self.url = bench, url
        self.plane = bench.plane.name
        self._directory = directory / self.plane
        self._directory.mkdir(parents=True)
        self.producers: list[ProducingClient] = []
        self.consumers: list[ConsumingClient] = []
        self.auditors: list[ConsumingClient] = []
        self.notes: list[str] = []
        self.failures: list[str] = []
        self.probe: int | None = None
        """Id of the operation requested after the outage."""
        self._unread: dict[str, int] = {}
        self._deleted: dict[str, int] = {}

    @property
    def clients(self) -> list[Client]:
        """All started clients."""
        return [*self.producers, *self.consumers, *self.auditors]

    def start(self, workers: Sequence[str], consumers: int, messages_a_second: int) -> None:
        """Start two producers, and the consumers of the live subscription."""
        self.place = Place(self.bench.topic_name, self.url, workers, self._logs, self._directory)
        self.producers = [ProducingClient(self.place, name, messages_a_second) for name in ("p1", "p2")]
        self.consumers = [ConsumingClient(self.place, f"c{i + 1}", LIVE) for i in range(consumers)]
        for client in self.clients:
            client.start()

    def start_audit(self) -> None:
        """Start the consumer that reads all messages of the audit subscription."""
        self.auditors = [ConsumingClient(self.place, "auditor", AUDIT)]
        self.auditors[0].start()

    def _logs(self) -> LogClient:
        pulsar = self.bench.pulsar
        return EmbeddedLogClient(self.url) if pulsar is None else PulsarLogClient(pulsar.access)

    # Logs that disappear.

    def note_logs(self) -> None:
        """Record the present logs with the messages that the audit has not read, and the logs that disappeared."""
        present = _patiently(lambda: self.bench.plane.list_segments(self.bench.topic_name))
        for log in self._unread.keys() - present:
            self._deleted[log] = self._unread.pop(log)
        for log in present:
            backlog = _patiently(lambda log=log: self.bench.plane.backlog(log, AUDIT))  # type: ignore[misc]
            self._unread[log] = max(backlog or 0, self._unread.get(log, 0))

    def forget_logs(self) -> None:
        """Forget the recorded logs after an outage of the server that holds them: a log that is missing then was lost, not deleted."""
        if self.bench.pulsar is None:
            self._unread.clear()

    def deleted_logs(self) -> dict[str, int]:
        """Return the logs that disappeared, with the number of their unread messages."""
        self.note_logs()
        return dict(sorted(self._deleted.items()))

    # Requests.

    def request(self, planner: Planner) -> int | None:
        """Request a reshape; the worker runs it. Return the operation's id, or None and a note if it is refused."""
        try:
            return self.bench.intend(planner).operation.operation_id
        except CleaveError as refusal:
            self.notes.append(f"refused: {type(refusal).__name__}: {refusal}")
            return None

    def is_fenced(self, operation_id: int | None) -> bool:
        """Return True if the operation is live and every parent is closed."""
        if operation_id is None:
            return False
        try:
            operation = self.bench.operation(operation_id)
            states = {self.bench.plane.segment_state(log) for log in operation.parent_topics}
            return operation.state.is_live and states == {LogState.TERMINATED}
        except CleaveError:
            return False

    def leave_in(self, state: OperationState, planner: Planner) -> None:
        """Request a reshape and run it until it is in that state, with the workers paused."""
        operation_id = self.request(planner)
        if operation_id is not None and state is not OperationState.INTENDED:
            self.bench.run_until(operation_id, state)

    def probe_ended(self) -> bool:
        """Request a split of the widest segment if none is requested. Return True if the worker has ended it."""
        try:
            if self.probe is None:
                widest = max(self.bench.layout.active, key=lambda segment: segment.hash_range.width)
                self.probe = self.bench.intend(splitting(widest.segment_id)).operation.operation_id
            return not self.bench.operation(self.probe).state.is_live
        except CleaveError:
            return False

    # The verdict.

    @property
    def acknowledged(self) -> dict[Message, int]:
        """The instant of each message's acknowledgement."""
        return dict(chain.from_iterable(dict(producer.times).items() for producer in self.producers))

    def _window(self, window: Window) -> Window:
        """Return the window; on a broker without losses, because an outage of the database does not affect the broker's messages."""
        return window if self.bench.pulsar is None else replace(window, losing_since_ns=None)

    def missing(self, window: Window) -> int:
        """Return the number of messages that may not be lost and that a subscription has not received yet."""
        window = self._window(window)
        expected = {message for message, at in self.acknowledged.items() if not window.had_alone(at)}
        return sum(len(expected - _received(clients).keys()) for clients in (self.consumers, self.auditors))

    def outcome(self, window: Window, resumed: Mapping[str, float | None]) -> Outcome:
        """Compare the acknowledged messages with those that each subscription received."""
        errors = [
            f"{client.name}: {type(client.error).__name__}: {client.error}"
            for client in self.clients
            if client.error
        ]
        return Outcome(
            plane=self.plane,
            acknowledged=len(self.acknowledged),
            late=late(self.acknowledged, _received(self.consumers)),
            live=self._reading(self.consumers, window),
            audit=self._reading(self.auditors, window),
            deleted_logs=self.deleted_logs(),
            outage_seconds=window.seconds,
            producer_seconds={client.name: resumed.get(_name(self, client)) for client in self.producers},
            every_key_seconds={
                client.name: resumed.get(f"{_name(self, client)}, every key,") for client in self.producers
            },
            consumer_seconds={client.name: resumed.get(_name(self, client)) for client in self.consumers},
            reshape_seconds=resumed.get(f"{self.plane}/reshape"),
            longest_pause_seconds={
                client.name: round(client.longest_pause_ns / 1e9, 2) for client in self.producers
            },
            errors=(*self.failures, *errors),
            notes=tuple(self.notes),
        )

    def _reading(self, clients: Sequence[ConsumingClient], window: Window) -> Reading:
        histories = [client.history for client in (*self.producers, *clients)]
        return reading(self.acknowledged, _received(clients), histories, self._window(window))


class OutageScene:
    """A scene: `begin`, an event on the servers within `outage`, and `judge`. `running` stops everything that is started."""

    def __init__(
        self,
        cluster: ReplicatedPostgres,
        directory: Path,
        running: ExitStack,
        *,
        topics: Sequence[PulsarTopic | None],
        address: Address = Address.PROXY,
        workers: int = 1,
        segments: int = 2,
        consumers: int = 2,
        messages_a_second: int = MESSAGES_A_SECOND,
    ) -> None:
        """`address`: the way by which the worker and the clients reach the database."""
        self.cluster, self.directory, self._running = cluster, directory, running
        self.database = f"outage_{secrets.token_hex(4)}"
        cluster.primary.create_database(self.database, template=TEMPLATE)
        running.callback(self._drop)
        self.url = cluster.url(self.database, address)
        proxied = cluster.url(self.database)
        self.topics = [self._topic(pulsar, proxied) for pulsar in topics]
        self._pulsar = next((pulsar for pulsar in topics if pulsar is not None), None)
        self._segments, self._consumers, self._rate = segments, consumers, messages_a_second
        self._ports = {f"w{i + 1}": free_port() for i in range(workers)}
        self.workers: dict[str, ChildProcess] = {}
        self.window = Window(0, 0)
        self._losing_since_ns: int | None = None
        self._resumed: dict[str, float | None] = {}

    def begin(self) -> None:
        """Create the topics with their subscriptions, start the workers and the clients, and wait until messages flow."""
        self.topics[0].bench.execute(
            "UPDATE cleave.cluster_policy SET policy = '{\"enabled\": false}', row_version = row_version + 1"
        )
        for topic in self.topics:
            topic.bench.topic_with(self._segments, (LIVE, AUDIT))
        for name in self._ports:
            self.start_worker(name)
        for port in self._ports.values():
            wait_until(lambda port=port: is_listening(port), timeout_seconds=60, message="a worker serves")  # type: ignore[misc]
        addresses = [f"http://{LOOPBACK}:{port}" for port in self._ports.values()]
        for topic in self.topics:
            topic.start(addresses, self._consumers, self._rate)
            self._running.callback(_end_all, topic)
        self.advance()

    def start_worker(self, name: str) -> None:
        """Start the worker of that name; its log is `<name>.log` in the scene's directory."""
        pulsar = self._pulsar
        where = (
            {"pulsar_admin_url": pulsar.admin_url, "pulsar_service_url": pulsar.service_url} if pulsar else {}
        )
        worker = cleave_process(
            "worker",
            "--name",
            name,
            log=self.directory / f"{name}.log",
            database_url=self.url,
            api_secret=SECRET,
            serve_port=self._ports[name],
            **where,
        )
        self._running.callback(release_port, self._ports[name])
        self._running.callback(worker.kill)
        worker.start()
        self.workers[name] = worker

    @contextmanager
    def workers_paused(self) -> Iterator[None]:
        """Stop the workers' processes during the block, so that intents stay as they are."""
        for worker in self.workers.values():
            os.kill(worker.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for worker in self.workers.values():
                os.kill(worker.pid, signal.SIGCONT)

    # Traffic.

    def advance(self, by: int = 20, *, timeout_seconds: float = 60.0) -> None:
        """Wait until every client has processed `by` more messages. Raises AssertionError, with the state of each client, if one fails or
        does not in time.
        """
        clients = [client for topic in self.topics for client in topic.clients]
        targets = [len(client.times) + by for client in clients]

        def there() -> bool:
            failed = [client for client in clients if client.error]
            assert not failed, f"{failed[0].name}: {failed[0].error!r}; see also {self.directory}"
            return all(len(client.times) >= target for client, target in zip(clients, targets, strict=True))

        try:
            wait_until(there, timeout_seconds=timeout_seconds, message="traffic flows")
        except AssertionError as late:
            raise AssertionError("\n".join([str(late), *self._whereabouts()])) from late

    def _whereabouts(self) -> list[str]:
        """Return the state of each client, the live operations, and the workers' last warnings."""
        now = time.monotonic_ns()
        clients = [
            f"{_name(topic, item)}: {len(item.times)} messages, the last {(now - item.last_ns) / 1e9:.1f} s ago"
            for topic in self.topics
            for item in topic.clients
        ]
        clients += [
            f"{_name(topic, item)} reads {item.buckets}" for topic in self.topics for item in topic.consumers
        ]
        clients += [f"{topic.plane}: {topic.bench.layout.active}" for topic in self.topics]
        operations = [str(item) for item in _patiently(self.topics[0].bench.live_operations)]
        return [*clients, *operations, *(line for name in self.workers for line in self._worst_words(name))]

    def reshape(self, planner: Planner) -> None:
        """Request the reshape of every topic, and wait until the workers have ended it."""
        for topic in self.topics:
            topic.request(planner)
        self.wait_quiet()

    def fence(self, planner: Planner) -> None:
        """Request the reshape of every topic, and wait until the workers have closed its parents and cannot continue.

        A row that the commit needs is locked here until the primary dies.
        """
        holder = psycopg2.connect(self.cluster.primary_url(self.database))
        self._running.callback(holder.close)
        for topic in self.topics:
            operation_id = wait_until(
                lambda topic=topic: self._request_locked(topic, planner, holder),  # type: ignore[misc]
                message=f"the split on {topic.plane} is requested",
            )
            wait_until(
                lambda topic=topic, operation_id=operation_id: topic.is_fenced(operation_id),  # type: ignore[misc]
                message=f"the parents of operation {operation_id} are closed",
            )

    def _request_locked(
        self, topic: TopicScene, planner: Planner, holder: psycopg2.extensions.connection
    ) -> int | None:
        """Request the reshape while the workers are stopped, lock the topic's row in `holder`, and return the operation's id. None if the
        request is refused, for example because a stopped worker holds a lock.
        """
        with self.workers_paused():
            operation_id = topic.request(planner)
            if operation_id is not None:
                lock = "SELECT FROM cleave.topic WHERE topic_id = %s FOR UPDATE"
                holder.cursor().execute(lock, (topic.bench.topic_id,))
        return operation_id

    def wait_quiet(self, seconds: float = QUIET_SECONDS) -> bool:
        """Wait until no operation is live, at most `seconds`. Return True if none is."""
        with suppress(AssertionError):
            wait_until(lambda: not self._live_operations(), timeout_seconds=seconds)
            return True
        return False

    def _live_operations(self) -> int:
        return len(_patiently(self.topics[0].bench.live_operations))

    # The outage.

    def lose_from_now(self) -> None:
        """Record that messages acknowledged from now on may be lost with their server."""
        self._losing_since_ns = time.monotonic_ns()

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Record the block as the outage: from the first fault until the promoted or restored server answers."""
        self._resumed = {}
        for topic in self.topics:
            topic.note_logs()
            topic.probe = None
        began = time.monotonic_ns()
        yield
        self.window = Window(began, time.monotonic_ns(), self._losing_since_ns)
        for topic in self.topics:
            topic.bench.store.dispose()  # this process looks on by new connections, whatever the old ones lead to
            topic.forget_logs()

    def wait_resumed(self, *, limit_seconds: float = 60.0, reshapes: bool = True) -> bool:
        """Wait until every client continues, at most `limit_seconds`. Return True if all do. The scene keeps the seconds of each.

        `reshapes`: also request a split of each topic, and wait until the workers have ended it.
        """
        ended, give_up_at = self.window.ended_ns, time.monotonic() + limit_seconds
        waiting: dict[str, Callable[[], bool]] = {
            _name(topic, client): lambda client=client: client.last_ns > ended  # type: ignore[misc]
            for topic in self.topics
            for client in topic.clients
        }
        waiting |= {
            f"{_name(topic, client)}, every key,": lambda client=client: client.wrote_every_key_since(ended)  # type: ignore[misc]
            for topic in self.topics
            for client in topic.producers
        }
        if reshapes:
            waiting |= {f"{topic.plane}/reshape": topic.probe_ended for topic in self.topics}
        self._resumed = {**dict.fromkeys(waiting), **self._resumed}
        waiting = {name: resumed for name, resumed in waiting.items() if self._resumed[name] is None}
        while waiting and time.monotonic() < give_up_at:
            for name, resumed in list(waiting.items()):
                if resumed():
                    self._resumed[name] = round((time.monotonic_ns() - ended) / 1e9, 2)
                    del waiting[name]
            time.sleep(0.01)
        return not waiting

    def demand_resumed(self, *, reshapes: bool = True) -> None:
        """Wait until every client continues. A client that does not within `CONTINUES_WITHIN_SECONDS` is a failure of the scene, and is
        waited for a while longer.
        """
        if not self.wait_resumed(limit_seconds=CONTINUES_WITHIN_SECONDS, reshapes=reshapes):
            late = [name for name, seconds in self._resumed.items() if seconds is None]
            for topic in self.topics:
                topic.failures += [
                    f"{name} does not continue within {CONTINUES_WITHIN_SECONDS:g} s of the outage"
                    for name in late
                    if name.startswith(topic.plane)
                ]
            self.cluster.kill_frozen()
            self.wait_resumed(reshapes=reshapes)

    # Afterwards.

    def maintain(self, rounds: int = ROUNDS) -> None:
        """Run rounds of the maintenance as Airflow does: reconcile, collect with retention 0, sweep."""
        extras: dict[str, object] = {"retention_minutes": 0}
        if self._pulsar is not None:
            extras |= {
                "pulsar_admin_url": self._pulsar.admin_url,
                "pulsar_service_url": self._pulsar.service_url,
            }
        share = {"share": 0, "of": 1}
        for number in range(rounds):
            self.note_logs()
            for task in (
                lambda: tasks.reconcile_share(dsn=self.url, extras=extras, share=share),
                lambda: tasks.collect_garbage(dsn=self.url, extras=extras, share=share),
                lambda: tasks.sweep_deletion_entries(dsn=self.url, extras=extras),
            ):
                self._run_task(number + 1, task)
                self.wait_quiet()

    def _run_task(self, number: int, task: Callable[[], Mapping[str, object]]) -> None:
        try:
            with redirect_stdout(io.StringIO()):
                result = task()
        except CleaveError as error:
            self._note(f"maintenance {number}: {type(error).__name__}: {error}")
            return
        for shown in result.get("shown", ()):  # type: ignore[attr-defined]
            summary = ", ".join(f"{key} {value}" for key, value in shown.items() if value is not None)
            self._note(f"maintenance {number}: {summary}")

    def note_logs(self) -> None:
        """Record the present logs."""
        for topic in self.topics:
            topic.note_logs()

    def judge(self) -> dict[str, Outcome]:
        """Stop the producers, read everything to the end by both subscriptions, and return the outcomes by plane."""
        for client in [client for topic in self.topics for client in topic.producers]:
            client.ending.set()
        for topic in self.topics:
            for producer in topic.producers:
                producer.end()
            topic.note_logs()
            topic.start_audit()
        self._read_to_the_end()
        for topic in self.topics:
            _end_all(topic)
        self.topics[0].notes += [line for name in self.workers for line in self._worst_words(name)]
        return {topic.plane: topic.outcome(self.window, self._resumed) for topic in self.topics}

    def _read_to_the_end(self) -> None:
        """Wait until no message is missing, or until no further message arrives."""
        last_missing, since = -1, time.monotonic()
        while True:
            missing = sum(topic.missing(self.window) for topic in self.topics)
            if missing != last_missing:
                last_missing, since = missing, time.monotonic()
            still_seconds = time.monotonic() - since
            limit_seconds = STANDS_STILL_SECONDS
            if still_seconds > STANDS_STILL_SECONDS and self._live_operations():
                limit_seconds = WAITS_FOR_OPERATIONS_SECONDS
            if not missing or still_seconds > limit_seconds:
                return
            time.sleep(0.05)

    def _worst_words(self, worker: str) -> list[str]:
        """Return the last warnings and errors in a worker's log."""
        lines = (self.directory / f"{worker}.log").read_text(errors="replace").splitlines()
        bad = [line for line in lines if "[warning" in line or "[error" in line or "Traceback" in line]
        return [f"{worker}: {' '.join(line.split())[:300]}" for line in bad[-5:]]

    def _note(self, note: str) -> None:
        for topic in self.topics:
            if topic.bench.topic_name in note or len(self.topics) == 1:
                topic.notes.append(note)

    def _topic(self, pulsar: PulsarTopic | None, url: str) -> TopicScene:
        """Return the topic's scene. Its bench connects through the proxy, whatever the product's processes use."""
        bench = SceneBench(url, pulsar)
        self._running.callback(bench.close)
        if pulsar is not None:
            self._running.callback(pulsar.remove, bench.plane)
        return TopicScene(bench, self.directory, self.url)

    def _drop(self) -> None:
        self.cluster.kill_frozen()
        self.cluster.primary.drop_database(self.database)


def _name(topic: TopicScene, client: Client) -> str:
    return f"{topic.plane}/{client.name}"


def _received(clients: Sequence[Client]) -> dict[Message, int]:
    """Return the first receipt of each message by any of the clients."""
    first_receipts: dict[Message, int] = {}
    for message, at in chain.from_iterable(dict(client.times).items() for client in clients):
        first_receipts[message] = min(at, first_receipts.get(message, at))
    return first_receipts


def _end_all(topic: TopicScene) -> None:
    for client in topic.clients:
        client.ending.set()
    for client in topic.clients:
        if client.is_alive():
            client.end()


def _patiently(look: Callable[[], Found]) -> Found:
    """Return the result of a read of a server that a busy machine may delay, with retries."""
    give_up_at = time.monotonic() + 30.0
    while True:
        try:
            return look()
        except CleaveError:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.1)
