"""Real producers and consumers as separate processes, with their histories in files.

`python -m tests.support.traffic produce|consume|share|index|settle ...`, or `TrafficProcess` from a test. SIGTERM stops a process in good
order; a kill leaves what it had written. They work on the embedded logs, or on a broker if one is named.
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
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import psycopg2
from psycopg2.extras import execute_values

from controller.client.checkpoint_group import CheckpointGroupConsumer
from controller.client.exactly_once_table import PositionTable
from controller.client.history import Attachment, ConsumerHistory, Event, ProducerHistory, Readings
from controller.client.producer import Producer
from controller.client.queue_consumer import QueueConsumer, QueuedMessage
from controller.client.servers import Servers
from controller.client.stream_consumer import StreamConsumer
from controller.dataplane.embedded import EmbeddedLogClient
from controller.dataplane.log_client import LogClient, OutgoingMessage
from controller.devstack.process import ChildProcess
from controller.domain.errors import FencedOut
from controller.postgres_source import PostgresSource
from tests.support.waiting import wait_until
from tests.support.work_history import named, write_processed

if TYPE_CHECKING:
    from tests.support.bench_planes import PulsarTopic

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
    """One started process; `history` is its file."""

    def __init__(
        self,
        role: str,
        name: str,
        *,
        url: str,
        topic: str,
        directory: Path,
        subscription: str = "",
        pulsar: PulsarTopic | None = None,
        rate: int = 0,
        prefetch: int = 0,
        address: str = "",
        results: str = "",
    ) -> None:
        """Start the process. `rate`: maximum messages per second of a producer; 0 for full speed. `prefetch`: messages that wait at a
        broker's consumer, of each segment or bucket; 0 for the default. `address`: addresses at which a consumer requests its buckets,
        separated by commas. `results`: the application's database, for `settle`; the directory of stored positions, for `index`.
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
        """True if the process runs; the log of a failed one has the reason."""
        return self._child.running

    @property
    def count(self) -> int:
        """Return the number of messages that it has sent or received so far."""
        return self.history.read_bytes().count(f"\t{self._counted}\t".encode())

    def whereabouts(self) -> str:
        """Return its number of messages and its output, for the message of a test whose wait has failed. A running process first prints
        the stack of each of its threads, for which the call waits up to 5 seconds.
        """
        written = self._log.stat().st_size
        if self.running:
            os.kill(self.pid, signal.SIGUSR1)
            with contextlib.suppress(AssertionError):
                wait_until(lambda: self._log.stat().st_size > written, timeout_seconds=5)
        return f"{self.history.stem}, {self.count} messages:\n{self._log.read_text(errors='replace')}"

    def stop(self) -> None:
        """Stop the process in good order: sent messages are flushed, received ones acknowledged."""
        self._child.stop()

    def kill(self) -> None:
        """End the process at once."""
        self._child.kill()


def advance(*processes: TrafficProcess, by: int = 500) -> None:
    """Wait until each process has processed that many more messages."""
    targets = [process.count + by for process in processes]

    def there() -> bool:
        assert all(process.running for process in processes), "see the processes' logs"
        return all(process.count >= target for process, target in zip(processes, targets, strict=True))

    wait_until(there, timeout_seconds=60, message="traffic")


class _Pace:
    """Number of messages that are due: at a rate, those of the elapsed time, whatever the delays; otherwise one round."""

    def __init__(self, rate: int) -> None:
        self._rate, self._sent, self._began = rate, 0, time.monotonic()
        self._pause = threading.Event()

    def wait_due(self) -> int:
        """Wait for the next round, and return its size."""
        if not self._rate:
            return ROUND_MESSAGES
        next_at = self._began + self._sent / self._rate + 1 / ROUNDS_A_SECOND
        self._pause.wait(max(0.0, next_at - time.monotonic()))
        due = min(int((time.monotonic() - self._began) * self._rate) - self._sent, LARGEST_ROUND)
        self._sent += due
        return due


def _produce(
    options: argparse.Namespace, logs: LogClient, history: ProducerHistory, ending: list[int]
) -> None:
    """Send rounds of random keys, each key numbered separately, at the rate or at full speed, until `ending`."""
    name, source = options.name, PostgresSource(options.url)
    chooser = random.Random(name)
    numbers = {f"key-{i}": itertools.count() for i in range(KEYS)}
    pace = _Pace(options.rate)

    def note(batch: Sequence[OutgoingMessage]) -> None:
        history.sent(map(named, batch))

    producer = Producer(
        source, logs, options.topic, name=name, on_stored=note, send_timeout_seconds=PATIENCE_SECONDS
    )
    while not ending:
        for key in chooser.choices(list(numbers), k=pace.wait_due()):
            producer.send(b"%s %d" % (name.encode(), next(numbers[key])), key)
        producer.flush()
    producer.close()


def _consume(
    options: argparse.Namespace,
    servers: Servers,
    logs: LogClient,
    history: ConsumerHistory,
    ending: list[int],
) -> None:
    readings = Readings()
    with StreamConsumer(
        servers, logs, options.topic, options.subscription, options.name, patience_seconds=PATIENCE_SECONDS
    ) as consumer:
        while not ending:
            batch = consumer.receive(0.2)
            if batch is None:
                continue
            messages = [named(message) for message in batch.messages]
            attachment = readings.attachment(batch.segment_id, str(batch.bucket), batch.origin)
            write_processed(history, messages, attachment)
            if consumer.acknowledge(batch):
                history.acknowledged(messages, attachment)


def _share(
    options: argparse.Namespace,
    servers: Servers,
    logs: LogClient,
    history: ConsumerHistory,
    ending: list[int],
) -> None:
    """Consume a queue with messages always in hand, and return some of them, until `ending`."""
    chooser = random.Random(options.name)
    attachment = Attachment("queue", options.name, os.getpid())
    with QueueConsumer(
        servers, logs, options.topic, options.subscription, options.name, patience_seconds=PATIENCE_SECONDS
    ) as consumer:
        in_hand: list[QueuedMessage] = []
        while not ending or in_hand:
            received = [] if ending else consumer.receive_many(50, 0.2)
            in_hand += received
            history.delivered(map(named, received), attachment)
            chooser.shuffle(in_hand)
            done, in_hand = in_hand[20:] if received else in_hand, in_hand[:20] if received else []
            returned = [message for message in done[:2] if message.deliveries == 1]
            for message in returned:
                consumer.nack(message, 0.1)
            finished = [message for message in done if message not in returned]
            if finished and consumer.acknowledge(*finished):
                history.acknowledged(map(named, finished), attachment)


def _index(
    options: argparse.Namespace,
    servers: Servers,
    logs: LogClient,
    history: ConsumerHistory,
    ending: list[int],
) -> None:
    """Consume as a member of a checkpoint group until `ending`. Each member stores its position in a file of its own in the directory
    `results`.
    """
    readings, directory = Readings(), Path(options.results)
    own_file = directory / f"{options.name}.kept"
    with CheckpointGroupConsumer(
        servers,
        logs,
        options.topic,
        options.subscription,
        options.name,
        lambda: [path.read_bytes() for path in directory.glob("*.kept")],
        patience_seconds=PATIENCE_SECONDS,
    ) as member:
        while not ending:
            batch = member.receive(0.2)
            messages = []
            if batch is not None:
                messages = [named(message) for message in batch.messages]
                attachment = readings.attachment(batch.segment_id, "whole", batch.origin)
                write_processed(history, messages, attachment)
            point = member.checkpoint()
            draft = own_file.with_suffix(".draft")
            draft.write_bytes(point.to_bytes())
            draft.replace(own_file)
            member.kept(point)
            if messages:
                history.acknowledged(messages, attachment)


def _settle(options: argparse.Namespace, servers: Servers, logs: LogClient, ending: list[int]) -> None:
    """Consume as an application that writes its messages into table `result`, each in the transaction that stores its position. Only the
    table records the messages.
    """
    application = psycopg2.connect(options.results)
    table = PositionTable(lambda: psycopg2.connect(options.results))
    readings = Readings()
    with StreamConsumer(
        servers,
        logs,
        options.topic,
        options.subscription,
        options.name,
        patience_seconds=PATIENCE_SECONDS,
        positions=table,
    ) as consumer:
        while not ending:
            batch = consumer.receive(0.2)
            if batch is None:
                continue
            owner = (
                options.name,
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


def _receive(options: argparse.Namespace, logs: LogClient, ending: list[int]) -> None:
    """Consume in the manner of the role until `ending`."""
    with contextlib.closing(Servers(options.address.split(","), options.token)) as servers:
        if options.role == "settle":
            _settle(options, servers, logs, ending)
        else:
            with ConsumerHistory(Path(options.history), options.name) as consumed:
                work = {"share": _share, "index": _index}.get(options.role, _consume)
                work(options, servers, logs, consumed, ending)


def main() -> None:
    """Run the process that the module describes."""
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
    options = parser.parse_args()
    faulthandler.register(signal.SIGUSR1)
    ending: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: ending.append(number))
    logs: LogClient
    if options.admin_url:
        from controller.dataplane.pulsar.log_client import PulsarLogClient
        from tests.support.bench_planes import PulsarTopic

        sizes = (
            {"prefetch_messages": options.prefetch, "bucket_prefetch_messages": options.prefetch}
            if options.prefetch
            else {}
        )
        logs = PulsarLogClient(
            PulsarTopic(options.admin_url, options.service_url, options.topic).access, **sizes
        )
    else:
        logs = EmbeddedLogClient(options.url)
    with contextlib.closing(logs):
        if options.role == "produce":
            with ProducerHistory(Path(options.history)) as sent:
                _produce(options, logs, sent, ending)
        else:
            _receive(options, logs, ending)


if __name__ == "__main__":
    main()
