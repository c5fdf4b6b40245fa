"""Producers and consumers of one topic as threads of this process, which record acknowledged and received messages.

They use `controller.client` as applications do. Each writes a history file for the order certificate (`controller.client.history_check`),
and keeps the instants in memory. A thread that fails keeps its error and ends.
"""

from __future__ import annotations

import itertools
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from controller.client.history import ConsumerHistory, Message, ProducerHistory, Readings
from controller.client.producer import Producer
from controller.client.servers import Servers
from controller.client.stream_consumer import Batch, StreamConsumer
from controller.dataplane.log_client import LogClient, OutgoingMessage
from controller.devstack.serving import token_for
from controller.postgres_source import PostgresSource
from tests.support.work_history import named, write_processed

KEYS = tuple(f"key-{number}" for number in range(32))
PATIENCE_SECONDS = 600.0
"""Clients outlast every outage of a scene: what ends them is a defect."""
ROUND_SECONDS = 0.1
ENDS_WITHIN_SECONDS = 8.0


@dataclass(frozen=True, slots=True)
class Place:
    """Addresses for the clients of one topic. `logs` opens a client of the data plane."""

    topic: str
    database_url: str
    workers: Sequence[str]
    logs: Callable[[], LogClient]
    directory: Path


class Client(threading.Thread):
    """One producer or consumer. `times` has the instant (monotonic, ns) of each message's first acknowledgement to a producer, or first
    receipt by a consumer.
    """

    def __init__(self, place: Place, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.place = place
        self.history = place.directory / f"{name}.history"
        self.history.touch()
        self.times: dict[Message, int] = {}
        self.last_ns = 0
        """Of the latest acknowledgement or receipt."""
        self.longest_pause_ns = 0
        self.error: Exception | None = None
        self.ending = threading.Event()

    def run(self) -> None:
        """Work until `ending` is set. An error is kept in `error`."""
        try:
            self.work()
        except Exception as error:  # noqa: BLE001 - the scene reports it
            self.error = error

    def end(self) -> None:
        """Stop in good order; a client that does not end in time gets a TimeoutError as its error."""
        self.ending.set()
        self.join(ENDS_WITHIN_SECONDS)
        if self.is_alive():
            self.error = TimeoutError(f"{self.name} does not end within {ENDS_WITHIN_SECONDS:g} s")

    @abstractmethod
    def work(self) -> None:
        """Produce or consume until `ending` is set."""

    def note(self, messages: Sequence[Message]) -> None:
        """Record these messages as acknowledged or received at the present instant."""
        now = time.monotonic_ns()
        for message in messages:
            self.times.setdefault(message, now)
        if self.last_ns:
            self.longest_pause_ns = max(self.longest_pause_ns, now - self.last_ns)
        self.last_ns = now


class ProducingClient(Client):
    """Sends one message of each key after the other in rounds, and waits for the acknowledgements of each round.

    A blocked range therefore blocks the producer, and the producer's pause is hardly shorter than the range's.
    """

    def __init__(self, place: Place, name: str, messages_a_second: int) -> None:
        super().__init__(place, name)
        self._round = max(1, round(messages_a_second * ROUND_SECONDS))
        self._latest: dict[str, int] = {}

    def note(self, messages: Sequence[Message]) -> None:
        """Record these messages as acknowledged at the present instant."""
        super().note(messages)
        self._latest |= dict.fromkeys((key for _, key, _ in messages), self.last_ns)

    def wrote_every_key_since(self, instant_ns: int) -> bool:
        """Return True if a message of every key was acknowledged later than that."""
        return all(self._latest.get(key, 0) > instant_ns for key in KEYS)

    def work(self) -> None:
        """Produce until `ending` is set."""
        logs, keys = self.place.logs(), itertools.cycle(KEYS)
        numbers = {key: itertools.count() for key in KEYS}
        source = PostgresSource(self.place.database_url)
        with ProducerHistory(self.history) as history:

            def stored(batch: Sequence[OutgoingMessage]) -> None:
                messages = [named(message) for message in batch]
                history.sent(messages)
                self.note(messages)

            producer = Producer(
                source,
                logs,
                self.place.topic,
                name=self.name,
                on_stored=stored,
                send_timeout_seconds=PATIENCE_SECONDS,
            )
            while not self.ending.wait(ROUND_SECONDS):
                for key in itertools.islice(keys, self._round):
                    producer.send(b"%s %d" % (self.name.encode(), next(numbers[key])), key)
                producer.flush()
            producer.close()
        source.close()
        logs.close()


class ConsumingClient(Client):
    """A stream consumer that acknowledges each batch at once."""

    def __init__(self, place: Place, name: str, subscription: str) -> None:
        super().__init__(place, name)
        self.subscription = subscription
        self._consumer: StreamConsumer | None = None

    @property
    def buckets(self) -> str:
        """Return the buckets that it reads now, as a text for messages of tests."""
        owned = self._consumer.buckets if self._consumer is not None else ()
        return ", ".join(f"{segment_id}/{bucket}" for segment_id, bucket in owned) or "none"

    def work(self) -> None:
        """Consume until `ending` is set."""
        place, logs, readings = self.place, self.place.logs(), Readings()
        servers = Servers(place.workers, token_for(place.topic))
        with (
            ConsumerHistory(self.history, self.name) as history,
            StreamConsumer(
                servers, logs, place.topic, self.subscription, self.name, patience_seconds=PATIENCE_SECONDS
            ) as consumer,
        ):
            self._consumer = consumer
            while not self.ending.is_set():
                batch = consumer.receive(0.2)
                if batch is not None:
                    self._handle(batch, consumer, history, readings)
        logs.close()
        servers.close()

    def _handle(
        self, batch: Batch, consumer: StreamConsumer, history: ConsumerHistory, readings: Readings
    ) -> None:
        messages = [named(message) for message in batch.messages]
        attachment = readings.attachment(batch.segment_id, str(batch.bucket), batch.origin)
        self.note(messages)
        write_processed(history, messages, attachment)
        if consumer.acknowledge(batch):
            history.acknowledged(messages, attachment)
