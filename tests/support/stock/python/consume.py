"""Reads all segments of a topic by a pattern until SIGTERM, and writes down what it was handed. It knows nothing of Cleave.

Arguments: SERVICE_URL TOPICS_PATTERN NAME HISTORY SUBSCRIPTION TYPE individual|cumulative WORK_MS.
"""

from __future__ import annotations

import re
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pulsar
from tenacity import retry, retry_if_exception_type, stop_when_event_set, wait_fixed

RECEIVER_QUEUE = 100
LINGER_SECONDS = 1.0
"""The library sends acknowledgements every 100 ms, and drops the unsent ones of a client that is closed."""


class History:
    """A file that `cleave check-history` reads."""

    def __init__(self, path: str, consumer: str) -> None:
        self._file = Path(path).open("ab", buffering=0)  # noqa: SIM115 - until the process ends
        self._consumer, self._attachment = consumer, f"{time.monotonic_ns():x}"

    def note(self, event: str, message: pulsar.Message) -> None:
        """Write a line. The payload is the message's name, `PRODUCER NUMBER`."""
        producer, number = message.data().decode().split(" ")
        segment = message.topic_name().rpartition("-")[2]
        of_consumer = (self._consumer, segment, "", self._attachment)
        fields = (time.monotonic_ns(), event, producer, message.partition_key(), number, *of_consumer)
        self._file.write(("\t".join(map(str, fields)) + "\n").encode())


def main(url: str, pattern: str, name: str, path: str, subscription: str, *options: str) -> None:
    """Consume until SIGTERM."""
    kind, acknowledgement, work_ms = options
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda _signal, _frame: ending.set())
    client = pulsar.Client(url)
    subscribe = partial(
        client.subscribe,
        re.compile(pattern),
        subscription,
        consumer_type=getattr(pulsar.ConsumerType, kind),
        initial_position=pulsar.InitialPosition.Earliest,
        consumer_name=name,
        receiver_queue_size=RECEIVER_QUEUE,
    )
    # A broker that dies fails the subscriptions to all segments.
    retrying = retry(
        retry=retry_if_exception_type(pulsar.PulsarException),
        wait=wait_fixed(1),
        stop=stop_when_event_set(ending),
        reraise=True,
    )
    consumer = retrying(subscribe)()
    acknowledge = consumer.acknowledge_cumulative if acknowledgement == "cumulative" else consumer.acknowledge
    history = History(path, name)
    while not ending.is_set():
        with suppress(pulsar.Timeout):
            message = consumer.receive(100)
            for event in ("delivered", "begun"):
                history.note(event, message)
            time.sleep(int(work_ms) / 1000)
            history.note("ended", message)
            acknowledge(message)  # nothing is noted: the library tells no answer of the broker
    time.sleep(LINGER_SECONDS)
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
