"""Pulsar's own Java client on scalable topics of a 5.0.0-M1 broker, as a measured application.

`python -m benchmarks.v5_side SERVICE_URL DIRECTORY`, with the requests of `paced_client`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.paced_client import PAYLOAD, Acknowledgements, ClientSide, random_key
from benchmarks.talking_process import answer_requests
from controller.devstack.pulsar.v5_client import open_v5_client


class V5Side(ClientSide):
    """Sends one message after the other without waiting, with the client's own batching and queue, which may block."""

    def __init__(self, service_url: str, directory: Path) -> None:
        super().__init__()
        self._v5, self._client = open_v5_client(service_url, directory, heap="512m")
        self._schema = self._v5.schema.Schema.string()
        self._consumers: list[Any] = []

    def open_producer(
        self, topic: str, acknowledgements: Acknowledgements, note_every: int
    ) -> tuple[Callable[[int], None], Callable[[], None]]:
        """Open a producer as `ClientSide` requires. One of `note_every` messages is recorded, for all of them."""
        import jpype

        producer = self._client.newProducer(self._schema).topic(topic).blockIfQueueFull(True).create()
        sending, payload, sent = producer.async_(), jpype.JString(PAYLOAD), 0

        def note(_message_id: object, error: object) -> None:
            if error is None:
                acknowledgements.note(note_every)
            else:
                acknowledgements.note_failure(note_every, str(error))

        noting = jpype.JProxy("java.util.function.BiConsumer", dict={"accept": note})

        def send(count: int) -> None:
            nonlocal sent
            for _ in range(count):
                future = sending.newMessage().key(random_key()).value(payload).send()
                if sent % note_every == 0:
                    future.whenComplete(noting)
                sent += 1

        return send, producer.close

    def open_consumer(self, topic: str, subscription: str, name: str) -> None:
        """Open a stream consumer; it counts with the broker's controller as soon as it is subscribed."""
        self._consumers.append(
            self._client.newStreamConsumer(self._schema)
            .topic(topic)
            .subscriptionName(subscription)
            .consumerName(name)
            .subscribe()
        )

    def leave(self) -> Mapping[str, Any]:
        """Close all consumers."""
        while self._consumers:
            self._consumers.pop().close()
        return {}


if __name__ == "__main__":
    answer_requests(lambda: V5Side(sys.argv[1], Path(sys.argv[2])).handlers())
