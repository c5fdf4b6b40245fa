"""Pulsar's own Java v5 client in a separate process: a producer with keys and a stream consumer on one topic.

`python -m tests.support.v5_client SERVICE_URL TOPIC SUBSCRIPTION DIRECTORY RATE`. It records sent and delivered messages as
`controller.client.history` does, prints `ready` when both ends are open, stops producing when its input has the line `quiet`, and ends
when its input is closed. A process can start a JVM only once, hence the separate process.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jpype

from controller.client.history import Attachment, ConsumerHistory, ProducerHistory
from controller.devstack.pulsar.v5_client import open_v5_client

KEYS = 10
PRODUCER = "v5"
ACKNOWLEDGE_EVERY = 200


def main(service_url: str, topic: str, subscription: str, directory: str, rate: str) -> None:
    """Run the process that the module describes. Ends the process by `os._exit`, because the client's threads are no daemons."""
    home = Path(directory)
    words = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # Java's logging goes to the first stream it finds
    v5, client = open_v5_client(service_url, home)
    schema = v5.schema.Schema.bytes()  # another one may be refused on a segment that was just made (5.0.0-M1)
    earliest = v5.config.SubscriptionInitialPosition.EARLIEST
    consumer = (
        client.newStreamConsumer(schema)
        .topic(topic)
        .subscriptionName(subscription)
        .consumerName("one")
        .subscriptionInitialPosition(earliest)
        .subscribe()
    )
    producer = client.newProducer(schema).topic(topic).create()
    quiet = threading.Event()
    threads = [
        threading.Thread(target=produce, args=(producer, home / "sent", float(rate), quiet), daemon=True),
        threading.Thread(target=consume, args=(consumer, home / "delivered"), daemon=True),
    ]
    for thread in threads:
        thread.start()
    words.write("ready\n")
    for line in sys.stdin:
        if line.strip() == "quiet":
            quiet.set()
            threads[0].join()
            words.write("quiet\n")
    os._exit(0)


def produce(producer: Any, path: Path, rate: float, quiet: threading.Event) -> None:
    """Send to the keys in turn, each message after the acknowledgement of the previous one, at about `rate` per second."""
    to_java = jpype.JArray(jpype.JByte)  # left to itself, the bridge makes a string of bytes
    with ProducerHistory(path) as sent:
        count, began = 0, time.monotonic()
        while not quiet.is_set():
            number, key = divmod(count, KEYS)
            producer.newMessage().key(f"k{key}").value(to_java(str(number).encode())).send()
            sent.sent([(PRODUCER, f"k{key}", number)])
            count += 1
            time.sleep(max(0.0, began + count / rate - time.monotonic()))


def consume(consumer: Any, path: Path) -> None:
    """Record deliveries in order, without end. Acknowledge cumulatively after ACKNOWLEDGE_EVERY messages, and whenever none arrives
    within half a second.
    """
    wait = jpype.JPackage("java").time.Duration.ofMillis(500)
    last, pending = None, 0
    everything = Attachment("", "", os.getpid())  # this client does not say which segment a message is from
    with ConsumerHistory(path, "one") as history:
        while True:
            message = consumer.receive(wait)
            if message is not None:
                received = (PRODUCER, str(message.key().get()), int(bytes(message.value())))
                history.delivered([received], everything)
                last, pending = message.id(), pending + 1
            if last is not None and (message is None or pending >= ACKNOWLEDGE_EVERY):
                consumer.acknowledgeCumulative(last)
                last, pending = None, 0


if __name__ == "__main__":
    main(*sys.argv[1:])
