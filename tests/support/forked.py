"""A process that creates objects of the client or the store, one after another: uses the object, forks, and uses the object again.

`python -m tests.support.forked KIND...`, with a `Place` as JSON on its standard input. The child calls everything public of the object, or
what a child may do with the object, and ends as any Python process does. The parent then continues with the object. The kind and the
result of both are printed, a line of JSON for each.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from inspect import isfunction
from typing import Any

import requests
from sqlalchemy import text

from controller.client.checkpoint_consumer import CheckpointConsumer, Start
from controller.client.checkpoint_group import CheckpointGroupConsumer
from controller.client.http_source import HttpSource
from controller.client.keyed_work import KeyedWork
from controller.client.producer import Producer
from controller.client.queue_consumer import QueueConsumer
from controller.client.servers import Servers
from controller.client.stream_consumer import StreamConsumer
from controller.client.topic_watch import TopicWatch
from controller.dataplane.embedded import EmbeddedDataPlane
from controller.dataplane.log_client import LogClient, OutgoingMessage
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.registry import PlaneSettings, build_log_client
from controller.domain.errors import Terminal
from controller.postgres.listener import Listener
from controller.postgres_source import PostgresSource
from controller.store.postgres.engine import Store
from pulsar_cleave import AsyncCheckpointConsumer, AsyncProducer, AsyncQueueConsumer, AsyncStreamConsumer
from pulsar_cleave._asynchronous import AsyncClient

STREAM, QUEUE, GROUP = "billing", "jobs", "index"
"""Subscriptions of the topic, one of each kind."""
SECONDS = 60.0
"""For one message to come, on a busy machine."""
Use = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Place:
    """Addresses of a topic of one segment."""

    address: str
    token: str
    database: str
    topic: str
    plane: str = "embedded"
    admin_url: str = ""
    service_url: str = ""

    def servers(self) -> Servers:
        """Return a client of the workers."""
        return Servers([self.address], self.token, call_timeout_seconds=25.0)

    def logs(self) -> LogClient:
        """Return a client of the topic's data plane."""
        access = None
        if self.service_url:
            access = PulsarAccess(admin_url=self.admin_url, service_url=self.service_url)
        settings = PlaneSettings(embedded_url=self.database, pulsar=access, call_timeout_seconds=25.0)
        return build_log_client(self.plane, settings)

    def connections(self) -> object:
        """Return the broker's producers and consumers of the topic, each with log, time of connection and address. None on the embedded
        plane.
        """
        if not self.admin_url:
            return None
        connected = []
        tenant_and_namespace = self.topic.removeprefix("topic://").rpartition("/")[0]
        base = f"{self.admin_url}/admin/v2/persistent"
        for log in requests.get(f"{base}/{tenant_and_namespace}", timeout=SECONDS).json():
            stats = requests.get(f"{base}/{log.removeprefix('persistent://')}/stats", timeout=SECONDS).json()
            users = [*stats["publishers"]]
            for client in stats["subscriptions"].values():
                users += client["consumers"]
            connected += [(log, client["connectedSince"], client["address"]) for client in users]
        return sorted(connected)


class Scene:
    """The parent's objects. `feed` appends a message as another program would."""

    def __init__(self, place: Place, stack: ExitStack) -> None:
        self.place = place
        self.servers = stack.enter_context(closing(place.servers()))
        self.logs = stack.enter_context(closing(place.logs()))
        self.log = HttpSource(self.servers).topic(place.topic).backing_topics[0]
        self._producer, self._sent = f"feed-{secrets.token_hex(4)}", 0

    def feed(self) -> None:
        """Append one more message."""
        self._sent += 1
        message = [OutgoingMessage(b"%d" % self._sent, b"key")]
        assert self.logs.append(self.log, message, producer=self._producer, sequence=self._sent) == 1

    def producer(self) -> Producer:
        return Producer(HttpSource(self.servers), self.logs, self.place.topic)

    def stream(self) -> StreamConsumer:
        return StreamConsumer(self.servers, self.logs, self.place.topic, STREAM, "one")

    def queue(self) -> QueueConsumer:
        return QueueConsumer(self.servers, self.logs, self.place.topic, QUEUE, "one")

    def checkpoint(self) -> CheckpointConsumer:
        return CheckpointConsumer(self.servers, self.logs, self.place.topic, Start.LATEST)

    def group(self) -> CheckpointGroupConsumer:
        return CheckpointGroupConsumer(self.servers, self.logs, self.place.topic, GROUP, "one", list)


def refusals(made: object) -> dict[str, str]:
    """Return the result or the error of each public method and property of the object, by name."""
    return {name: _attempt(made, name) for name in _public(type(made))}


def _public(kind: type) -> list[str]:
    members = {name: member for owner in kind.__mro__ for name, member in vars(owner).items()}
    is_called = {
        name
        for name, member in members.items()
        if not name.startswith("_") and (isfunction(member) or isinstance(member, property))
    }
    return sorted(is_called | (members.keys() & {"__aenter__"}))


def _attempt(made: object, name: str) -> str:
    try:
        member = getattr(made, name)
        answer = member(*([b"two"] if name == "send" else []))
        if isinstance(answer, Coroutine):
            answer.send(None)
    except Terminal as error:
        return str(error)
    except StopIteration as end:
        answer = end.value
    return f"returned {answer}"


# What a parent does with each kind.


def _made(make: Callable[[Scene], Any], use: Callable[[Scene, Any], object]) -> Callable[[Scene], Any]:
    @contextmanager
    def open_it(scene: Scene) -> Iterator[tuple[Any, Use]]:
        with closing(make(scene)) as made:
            yield made, lambda: use(scene, made)

    return open_it


def _send(_scene: Scene, producer: Producer) -> None:
    producer.send(b"one", key="key")
    producer.flush()


def _stream(scene: Scene, consumer: StreamConsumer) -> object:
    scene.feed()
    batch = consumer.receive(SECONDS)
    assert batch is not None
    assert consumer.acknowledge(batch)
    return batch.segment_id, consumer._session._incarnation  # which a goodbye would have ended


def _queue(scene: Scene, consumer: QueueConsumer) -> None:
    scene.feed()
    message = consumer.receive(SECONDS)
    assert message is not None
    assert consumer.acknowledge(message)


def _checkpoint(scene: Scene, consumer: CheckpointConsumer) -> None:
    scene.feed()
    assert consumer.receive(SECONDS) is not None


def _group(scene: Scene, consumer: CheckpointGroupConsumer) -> object:
    scene.feed()
    assert consumer.receive(SECONDS) is not None
    consumer.kept(consumer.checkpoint())
    return consumer._session._incarnation


@contextmanager
def _keyed(scene: Scene) -> Iterator[tuple[Any, Use]]:
    handled: list[object] = []
    with scene.stream() as consumer, KeyedWork(consumer, handled.append) as work:

        def use() -> None:
            scene.feed()
            before, until = len(handled), time.monotonic() + SECONDS
            while (len(handled) == before or work.running) and time.monotonic() < until:
                work.turn(1.0)
            assert len(handled) > before

        yield work, use


@contextmanager
def _awaited(
    make: Callable[[Scene], AsyncClient[Any]], use: Callable[[Scene, Any], object], scene: Scene
) -> Iterator[tuple[Any, Use]]:
    with asyncio.Runner() as runner:
        client = make(scene)
        runner.run(client.__aenter__())
        parent = os.getpid()
        try:
            yield client, lambda: runner.run(client.call(lambda made: use(scene, made)))
        finally:
            if os.getpid() != parent:
                os._exit(0)  # asyncio's loop is its parent's, too: to close one closes the other
            runner.run(client.close())


def _of_async(
    kind: Callable[[Callable[[], Any]], AsyncClient[Any]],
    make: Callable[[Scene], Any],
    use: Callable[[Scene, Any], object],
) -> Callable[[Scene], AbstractContextManager[tuple[Any, Use]]]:
    return lambda scene: _awaited(lambda scene: kind(lambda: make(scene)), use, scene)


def _reader(scene: Scene) -> Any:
    return scene.logs.open_reader(
        scene.log, STREAM, owner="one", live_owners=(), on_arrival=lambda: None, bucket=None
    )


def _read(scene: Scene, reader: Any) -> None:
    scene.feed()
    until = time.monotonic() + SECONDS
    while not (messages := reader.read(10)) and time.monotonic() < until:
        time.sleep(0.01)
    assert messages
    if hasattr(reader, "give_back"):
        reader.acknowledge([message.position for message in messages])
    elif hasattr(reader, "acknowledge"):
        reader.acknowledge(messages[-1].position)


def _logs(scene: Scene, _logs: LogClient) -> None:
    scene.feed()


@contextmanager
def _in_use(scene: Scene) -> Iterator[tuple[Any, Use]]:
    yield scene.logs, scene.feed


Kind = Callable[[Scene], AbstractContextManager[tuple[Any, Use]]]
REFUSED: Mapping[str, Kind] = {
    "Producer": _made(Scene.producer, _send),
    "StreamConsumer": _made(Scene.stream, _stream),
    "QueueConsumer": _made(Scene.queue, _queue),
    "CheckpointConsumer": _made(Scene.checkpoint, _checkpoint),
    "CheckpointGroupConsumer": _made(Scene.group, _group),
    "KeyedWork": _keyed,
    "AsyncProducer": _of_async(AsyncProducer, Scene.producer, _send),
    "AsyncStreamConsumer": _of_async(AsyncStreamConsumer, Scene.stream, _stream),
    "AsyncQueueConsumer": _of_async(AsyncQueueConsumer, Scene.queue, _queue),
    "AsyncCheckpointConsumer": _of_async(AsyncCheckpointConsumer, Scene.checkpoint, _checkpoint),
    "LogClient": _made(lambda scene: scene.place.logs(), _logs),
    "LogClient in use": _in_use,
    "LogReader": _made(_reader, _read),
    "PositionReader": _made(
        lambda scene: scene.logs.open_reader_at(scene.log, None, on_arrival=lambda: None), _read
    ),
    "QueueReader": _made(
        lambda scene: scene.logs.open_queue_reader(scene.log, QUEUE, owner="one", on_arrival=lambda: None),
        _read,
    ),
    "TopicWatch": _made(
        lambda scene: TopicWatch(
            scene.servers, scene.place.topic.removeprefix("topic://").rpartition("/")[0]
        ),
        lambda scene, watch: scene.place.topic in watch.topics,
    ),
}
"""Kinds of objects that a child may not use."""


# What a child may use.


@contextmanager
def _servers(scene: Scene) -> Iterator[tuple[Use, Use]]:
    def ask() -> object:
        return scene.servers.ask(
            "GET", "/api/v1/topics/" + scene.place.topic.removeprefix("topic://") + "/layout"
        )["topic"]

    with scene.servers._lock:  # as if another thread had it when the process forks
        yield ask, ask


@contextmanager
def _source(source: HttpSource | PostgresSource, topic: str) -> Iterator[tuple[Use, Use]]:
    topic_id = source.topic(topic).topic_id
    parents_watch = source.watch(topic_id, lambda: None)

    def look() -> object:
        changed = threading.Event()
        watch = source.watch(topic_id, changed.set)
        try:
            assert changed.wait(SECONDS)  # each watch begins with a change
        finally:
            watch.close()
        return source.topic(topic).name

    def look_in_child() -> object:
        parents_watch.close()
        return look()

    yield look_in_child, lambda: source.topic(topic).name
    parents_watch.close()


@contextmanager
def _postgres_source(scene: Scene) -> Iterator[tuple[Use, Use]]:
    with closing(PostgresSource(scene.place.database)) as source, _source(source, scene.place.topic) as uses:
        yield uses


@contextmanager
def _plane(scene: Scene) -> Iterator[tuple[Use, Use]]:
    plane = EmbeddedDataPlane(scene.place.database)

    def look() -> object:
        return sorted(plane.list_subscriptions(scene.log))

    def look_in_child() -> object:
        result = look()
        plane.close()
        return result

    assert look()
    with closing(plane):
        yield look_in_child, look


@contextmanager
def _store(scene: Scene) -> Iterator[tuple[Use, Use]]:
    """Yield the child's and the parent's use of a store. At the fork another thread uses one of its two connections, and the other one is
    idle.
    """
    store = Store(scene.place.database, pool_size=2, application_name="forked")
    is_taken, may_end, ended = threading.Event(), threading.Event(), threading.Event()
    servers: list[object] = []

    def ask() -> object:
        with store.transaction() as tx:
            return tx.execute(text("SELECT pg_backend_pid()")).scalar_one()

    def hold() -> None:
        with store.transaction() as tx:
            servers.append(tx.execute(text("SELECT pg_backend_pid()")).scalar_one())
            is_taken.set()
            may_end.wait()
            servers.append(tx.execute(text("SELECT pg_backend_pid()")).scalar_one())
        ended.set()

    threading.Thread(target=hold).start()
    assert is_taken.wait(SECONDS)
    idle = ask()

    def look_in_child() -> object:
        mine = ask()
        gc.collect()
        store.dispose()
        return mine not in (idle, *servers)

    def look() -> object:
        is_same = ask() == idle
        may_end.set()
        assert ended.wait(SECONDS)
        return is_same and len(set(servers)) == 1

    try:
        yield look_in_child, look
    finally:
        may_end.set()
        store.dispose()


@contextmanager
def _transaction(scene: Scene) -> Iterator[tuple[Use, Use]]:
    """Yield the child's and the parent's use of a transaction that is open at the fork."""
    store = Store(scene.place.database, application_name="forked")
    with store.transaction() as tx:
        tx.execute(text("CREATE TABLE kept (number integer)"))

        def write() -> object:
            try:
                with tx.begin_nested():
                    return tx.execute(text("INSERT INTO kept VALUES (1)")).rowcount
            except Terminal as error:
                return str(error)

        yield write, write
    with store.transaction() as tx:
        assert tx.execute(text("SELECT count(*) FROM kept")).scalar_one() == 1
    store.dispose()


@contextmanager
def _listener(scene: Scene) -> Iterator[tuple[Use, Use]]:
    with Listener(scene.place.database, ["cleave_layout"]) as listener:
        listener.wait(SECONDS)

        def look_in_child() -> object:
            channels = [notification.channel for notification in listener.wait(SECONDS)]
            listener.interrupt()
            listener.close()
            return channels

        yield look_in_child, lambda: [notification.channel for notification in listener.wait(0.1)]


SHARED: Mapping[str, Callable[[Scene], AbstractContextManager[tuple[Use, Use]]]] = {
    "Servers": _servers,
    "HttpSource": lambda scene: _source(HttpSource(scene.servers), scene.place.topic),
    "PostgresSource": _postgres_source,
    "DataPlane": _plane,
    "Store": _store,
    "Transaction": _transaction,
    "Listener": _listener,
}
"""What a child does with each kind of object that it may use, and its parent afterwards."""


def in_child(kind: str, act: Callable[[], object]) -> int:
    """Fork. Return the child's id in the parent; the child prints the result of `act`, and ends as any process does."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(int(SECONDS))  # what hangs in a child ends
        _say(kind, act())
        sys.exit(0)
    return pid


def _say(kind: str, result: object) -> None:
    line = f"{json.dumps([kind, result])}\n"
    os.write(sys.stdout.fileno(), line.encode())  # at once, since children may speak together


def demand_ended(pid: int) -> None:
    """Wait for the child, and assert that it ended with exit code 0."""
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status


def _go_on(kind: str, scene: Scene, use: Use, act: Callable[[], object], before: object) -> None:
    """Fork, and assert that the parent's objects work as before."""
    connections = scene.place.connections()
    demand_ended(in_child(kind, act))
    assert scene.place.connections() == connections, (connections, scene.place.connections())
    after = use()
    assert before in (after, None), (kind, before, after)
    assert scene.place.connections() == connections, (connections, scene.place.connections())
    _say(kind, after)


def send_from_children(kind: str, place: Place) -> None:
    """Let two children send 100 messages each: by their parent's producer, or each by its own, as in a preforking server."""
    servers = place.servers()
    with ExitStack() as stack:

        def open_producer() -> Producer:
            logs = stack.enter_context(closing(place.logs()))
            return stack.enter_context(closing(Producer(HttpSource(servers), logs, place.topic, name="web")))

        shared = open_producer() if kind == "made before" else None
        if shared is not None:
            _send(None, shared)  # type: ignore[arg-type]

        def send() -> object:
            try:
                producer = shared or open_producer()
                for number in range(100):
                    producer.send(b"%d" % number, key=f"key-{number % 10}")
                producer.flush()
            except Terminal as error:
                return str(error)
            return "stored"

        for pid in [in_child(kind, send) for _ in range(2)]:
            demand_ended(pid)


def _use_over_fork(kind: str, place: Place) -> None:
    with ExitStack() as stack:
        scene = Scene(place, stack)
        if kind in REFUSED:
            made, use = stack.enter_context(REFUSED[kind](scene))
            before = use()
            _go_on(kind, scene, use, lambda: refusals(made), before)
        else:
            child, parent = stack.enter_context(SHARED[kind](scene))
            _go_on(kind, scene, parent, child, None)


def main() -> None:
    """Run the process that this module describes."""
    place = Place(**json.load(sys.stdin))
    for kind in sys.argv[1:]:
        if kind in ("made before", "made after"):
            send_from_children(kind, place)
        else:
            _use_over_fork(kind, place)


if __name__ == "__main__":
    main()
