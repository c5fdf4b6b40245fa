"""The stock pulsar-client on segments, routed by Cleave's layout, as a measured application of the plane `pulsar`.

`python -m benchmarks.cleave_side SERVICE_URL ADMIN_URL`, with the worker's address and a token in CLEAVE_URL and CLEAVE_TOKEN; requests
as in `paced_client`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.paced_client import PAYLOAD, Acknowledgements, ClientSide, random_key
from benchmarks.talking_process import answer_requests
from controller.client.http_source import HttpSource
from controller.client.producer import Producer
from controller.client.servers import Servers
from controller.client.stream_consumer import StreamConsumer
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.log_client import PulsarLogClient

LOOK_SECONDS = 0.2
_BYTES = PAYLOAD.encode()


class CleaveSide(ClientSide):
    """Sends the messages that are due as a batch to each segment and waits for the acknowledgements, as this client does."""

    def __init__(self, servers: Servers, access: PulsarAccess) -> None:
        super().__init__()
        self._servers, self._logs = servers, PulsarLogClient(access)
        self._consumers: list[tuple[StreamConsumer, threading.Thread]] = []
        self._leaving = threading.Event()

    def open_producer(
        self, topic: str, acknowledgements: Acknowledgements, note_every: int
    ) -> tuple[Callable[[int], None], Callable[[], None]]:
        """Open a producer as `ClientSide` requires. A batch is acknowledged as a whole, so every acknowledgement is recorded."""
        del note_every
        producer = Producer(
            HttpSource(self._servers),
            self._logs,
            topic,
            name="bench",
            on_stored=lambda messages: acknowledgements.note(len(messages)),
        )

        def send(count: int) -> None:
            for _ in range(count):
                producer.send(_BYTES, random_key())
            producer.flush()

        return send, producer.close

    def open_consumer(self, topic: str, subscription: str, name: str) -> None:
        """Open a stream consumer, which counts as soon as its leader has registered it, and reads in a thread."""
        consumer = StreamConsumer(self._servers, self._logs, topic, subscription, name)
        reading = threading.Thread(target=self._read, args=(consumer,), daemon=True)
        self._consumers.append((consumer, reading))
        reading.start()

    def _read(self, consumer: StreamConsumer) -> None:
        while not self._leaving.is_set():
            batch = consumer.receive(LOOK_SECONDS)
            if batch is not None:
                consumer.acknowledge(batch)

    def leave(self) -> Mapping[str, Any]:
        """Close all consumers."""
        self._leaving.set()
        while self._consumers:
            consumer, reading = self._consumers.pop()
            reading.join()
            consumer.close()
        self._leaving.clear()
        return {}


if __name__ == "__main__":
    SERVICE_URL, ADMIN_URL = sys.argv[1:]
    answer_requests(
        lambda: CleaveSide(
            Servers([os.environ["CLEAVE_URL"]], os.environ["CLEAVE_TOKEN"]),
            PulsarAccess(admin_url=ADMIN_URL, service_url=SERVICE_URL),
        ).handlers()
    )
