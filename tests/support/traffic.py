"""Real producers and consumers as processes of their own, with their histories in files.

`python -m tests.support.traffic produce|consume|share|index|settle ...`, or `TrafficProcess` from a test. SIGTERM ends one in good
order; anything harsher leaves what it had written. They work on the embedded logs, or on a broker where one is named.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import itertools
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import psycopg2
from psycopg2.extras import execute_values

from controller.client.checkpoint_group import CheckpointGroupConsumer
from controller.client.history import Attachment, ConsumerHistory, Event, ProducerHistory, Readings
from controller.client.position_table import PositionTable
from controller.client.producer import Producer
from controller.client.queue_consumer import QueueConsumer, QueuedMessage
from controller.client.servers import Servers
from controller.client.stream_consumer import StreamConsumer
from controller.dataplane.base import LogClient, OutgoingMessage
from controller.dataplane.embedded import EmbeddedLogClient
from controller.devstack.process import ChildProcess
from controller.domain.errors import FencedOut
from controller.postgres_source import PostgresSource
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.bench_planes import OnPulsar

_ROOT = Path(__file__).resolve().parents[2]
KEYS = 200
ROUND_MESSAGES = 100
ROUNDS_A_SECOND = 10
"""Of a producer that keeps to a rate, where nothing holds it up."""
_INSERT_RESULTS = "INSERT INTO result (consumer, segment, bucket, attachment, key, payload) VALUES %s"
LARGEST_ROUND = 5000
"""Messages sent at once by a producer that was held up."""
PATIENCE_SECONDS = 300.0
"""A broker that is killed and started again on a busy machine is away for a minute and more."""


class TrafficProcess:
    """One of them, started; `history` is its file."""

    def __init__(
        self,
        role: str,
        name: str,
        *,
        url: str,
        topic: str,
        directory: Path,
        subscription: str = "",
        pulsar: OnPulsar | None = None,
        rate: int = 0,
        prefetch: int = 0,
        address: str = "",
        results: str = "",
    ) -> None:
        """`rate`: messages a second of a producer at most; 0 for as fast as it goes. `prefetch`: messages that wait at a broker's
        consumer, of each segment or bucket; 0 for what is usual. `address`: where a consumer asks for its
        share, or several with commas between. `results`: the application's database, of one that settles; the directory of kept
        values, of one that indexes.
        """
        # Who starts one has a worker's modules; the process itself does without, which halves what its start takes.
        from controller.devstack.serving import token_for

        self.role = role
        self.history, self._log = directory / f"{role}-{name}.history", directory / f"{role}-{name}.log"
        self._counted = Event.SENT if role == "produce" else Event.DELIVERED
        self.history.touch()
        where = ["--admin-url", pulsar.admin_url, "--service-url", pulsar.service_url] if pulsar else []
        where += ["--address", address, "--token", token_for(topic)] if address else []
        where += ["--results", results] if results else []
        command = [sys.executable, "-m", "tests.support.traffic", *where]
        command += ["--rate", str(rate), "--prefetch", str(prefetch)]
        self._child = ChildProcess(
            [*command, role, name, url, topic, self.history, subscription],
            log=self._log,
            cwd=_ROOT,
        )
        self._child.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.stop()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    @property
    def running(self) -> bool:
        """Whether it is alive; one that failed is not, and its log says why."""
        return self._child.running

    @property
    def count(self) -> int:
        """Messages that it sent or was handed so far."""
        return self.history.read_bytes().count(f"\t{self._counted}\t".encode())

    def whereabouts(self) -> str:
        """Where each of its threads is, and what it wrote before: for the message of a test that waited in vain."""
        written = self._log.stat().st_size
        if self.running:
            os.kill(self.pid, signal.SIGUSR1)
            with contextlib.suppress(AssertionError):
                wait_until(lambda: self._log.stat().st_size > written, timeout_seconds=5)
        return f"{self.history.stem}, {self.count} messages:\n{self._log.read_text(errors='replace')}"

    def stop(self) -> None:
        """End it in good order: what it has sent is flushed, what it was given is acknowledged."""
        self._child.stop()

    def kill(self) -> None:
        """End it at once."""
        self._child.kill()


def advance(*processes: TrafficProcess, by: int = 500) -> None:
    """Until each has done so much more."""
    targets = [process.count + by for process in processes]

    def there() -> bool:
        assert all(process.running for process in processes), "see the processes' logs"
        return all(process.count >= target for process, target in zip(processes, targets, strict=True))

    wait_until(there, timeout_seconds=60, message="traffic")


class _Pace:
    """How many messages are due: at a rate as many as time has come for, whatever held them up; else a round."""

    def __init__(self, rate: int) -> None:
        self._rate, self._sent, self._began = rate, 0, time.monotonic()
        self._pause = threading.Event()

    def wait_due(self) -> int:
        """Wait for the next round; its size."""
        if not self._rate:
            return ROUND_MESSAGES
        next_at = self._began + self._sent / self._rate + 1 / ROUNDS_A_SECOND
        self._pause.wait(max(0.0, next_at - time.monotonic()))
        due = min(int((time.monotonic() - self._began) * self._rate) - self._sent, LARGEST_ROUND)
        self._sent += due
        return due


def _produce(given: argparse.Namespace, logs: LogClient, history: ProducerHistory, ending: list[int]) -> None:
    """Rounds of random keys, each key numbered on its own, at the rate or as fast as it goes."""
    name, source = given.name, PostgresSource(given.url)
    chooser = random.Random(name)
    numbers = {f"key-{i}": itertools.count() for i in range(KEYS)}
    pace = _Pace(given.rate)

    def note(batch: object) -> None:
        messages: list[OutgoingMessage] = list(batch)  # type: ignore[call-overload]
        history.sent((name, (m.key or b"").decode(), int(m.payload.split(b" ")[1])) for m in messages)

    producer = Producer(
        source, logs, given.topic, name=name, on_stored=note, send_timeout_seconds=PATIENCE_SECONDS
    )
    while not ending:
        for key in chooser.choices(list(numbers), k=pace.wait_due()):
            producer.send(b"%s %d" % (name.encode(), next(numbers[key])), key)
        producer.flush()
    producer.close()
    logs.close()


def _consume(given: argparse.Namespace, logs: LogClient, history: ConsumerHistory, ending: list[int]) -> None:
    servers, readings = Servers(given.address.split(","), given.token), Readings()
    with StreamConsumer(
        servers, logs, given.topic, given.subscription, given.name, patience_seconds=PATIENCE_SECONDS
    ) as consumer:
        while not ending:
            batch = consumer.receive(0.2)
            if batch is None:
                continue
            parts = [(m.payload.split(b" "), m.key or b"") for m in batch.messages]
            messages = [(who.decode(), key.decode(), int(number)) for (who, number), key in parts]
            attachment = readings.attachment(batch.segment_id, str(batch.bucket), batch.origin)
            history.delivered(messages, attachment)
            for message in messages:
                history.begun([message], attachment)
                history.ended([message], attachment)
            if consumer.acknowledge(batch):
                history.acknowledged(messages, attachment)
    logs.close()
    servers.close()


def _share(given: argparse.Namespace, logs: LogClient, history: ConsumerHistory, ending: list[int]) -> None:
    """A consumer of a queue that always has work in hand, and gives some of it back."""
    servers, chooser = Servers(given.address.split(","), given.token), random.Random(given.name)
    attachment = Attachment("queue", given.name, os.getpid())
    with QueueConsumer(
        servers, logs, given.topic, given.subscription, given.name, patience_seconds=PATIENCE_SECONDS
    ) as consumer:
        held: list[QueuedMessage] = []
        while not ending or held:
            found = [] if ending else consumer.receive_many(50, 0.2)
            held += found
            history.delivered(map(_named, found), attachment)
            chooser.shuffle(held)
            done, held = held[20:] if found else held, held[:20] if found else []
            back = [one for one in done[:2] if one.deliveries == 1]
            for one in back:
                consumer.nack(one, 0.1)
            rest = [one for one in done if one not in back]
            if rest and consumer.acknowledge(*rest):
                history.acknowledged(map(_named, rest), attachment)
    logs.close()
    servers.close()


def _named(one: QueuedMessage) -> tuple[str, str, int]:
    who, number = one.payload.split(b" ")
    return who.decode(), (one.key or b"").decode(), int(number)


def _index(given: argparse.Namespace, logs: LogClient, history: ConsumerHistory, ending: list[int]) -> None:
    """A member of a checkpoint group. Each keeps its place in a file of its own in the directory `results`."""
    servers, readings, directory = (
        Servers(given.address.split(","), given.token),
        Readings(),
        Path(given.results),
    )
    mine = directory / f"{given.name}.kept"
    with CheckpointGroupConsumer(
        servers,
        logs,
        given.topic,
        given.subscription,
        given.name,
        lambda: [one.read_bytes() for one in directory.glob("*.kept")],
        patience_seconds=PATIENCE_SECONDS,
    ) as member:
        while not ending:
            batch = member.receive(0.2)
            messages = []
            if batch is not None:
                parts = [(m.payload.split(b" "), m.key or b"") for m in batch.messages]
                messages = [(who.decode(), key.decode(), int(number)) for (who, number), key in parts]
                attachment = readings.attachment(batch.segment_id, "whole", batch.origin)
                history.delivered(messages, attachment)
                for message in messages:
                    history.begun([message], attachment)
                    history.ended([message], attachment)
            point = member.checkpoint()
            draft = mine.with_suffix(".draft")
            draft.write_bytes(point.to_bytes())
            draft.replace(mine)
            member.kept(point)
            if messages:
                history.acknowledged(messages, attachment)
    logs.close()
    servers.close()


def _settle(given: argparse.Namespace, logs: LogClient, ending: list[int]) -> None:
    """An application that writes what it read into table `result`, each message in the transaction that says so. What happened to a
    message is in the table alone.
    """
    application = psycopg2.connect(given.results)
    table = PositionTable(lambda: psycopg2.connect(given.results))
    servers, readings = Servers(given.address.split(","), given.token), Readings()
    with StreamConsumer(
        servers,
        logs,
        given.topic,
        given.subscription,
        given.name,
        patience_seconds=PATIENCE_SECONDS,
        positions=table,
    ) as consumer:
        while not ending:
            batch = consumer.receive(0.2)
            if batch is None:
                continue
            owner = (
                given.name,
                *map(str, readings.attachment(batch.segment_id, str(batch.bucket), batch.origin)),
            )
            rows = [(*owner, (m.key or b"").decode(), m.payload.decode()) for m in batch.messages]
            try:
                with application, application.cursor() as cursor:
                    execute_values(cursor, _INSERT_RESULTS, rows)
                    consumer.commit(batch, application)
            except FencedOut:
                continue
            consumer.acknowledge(batch)
    logs.close()
    servers.close()


def main() -> None:
    """The process: see the module."""
    parser = argparse.ArgumentParser()
    for argument in ("role", "name", "url", "topic", "history", "subscription"):
        parser.add_argument(argument)
    parser.add_argument("--admin-url")
    parser.add_argument("--service-url")
    parser.add_argument("--address")
    parser.add_argument("--token")
    parser.add_argument("--results")
    parser.add_argument("--rate", type=int, default=0)
    parser.add_argument("--prefetch", type=int, default=0)
    given = parser.parse_args()
    faulthandler.register(signal.SIGUSR1)
    ending: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: ending.append(number))
    logs: LogClient
    if given.admin_url:
        from controller.dataplane.pulsar.log_client import PulsarLogClient
        from tests.support.bench_planes import OnPulsar

        sizes = (
            {"prefetch_messages": given.prefetch, "bucket_prefetch_messages": given.prefetch}
            if given.prefetch
            else {}
        )
        logs = PulsarLogClient(OnPulsar(given.admin_url, given.service_url, given.topic).access, **sizes)
    else:
        logs = EmbeddedLogClient(given.url)
    path = Path(given.history)
    if given.role == "settle":
        _settle(given, logs, ending)
    elif given.role == "produce":
        with ProducerHistory(path) as sent:
            _produce(given, logs, sent, ending)
    else:
        with ConsumerHistory(path, given.name) as consumed:
            work = {"share": _share, "index": _index}.get(given.role, _consume)
            work(given, logs, consumed, ending)


if __name__ == "__main__":
    main()
