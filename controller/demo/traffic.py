"""Producer and consumer processes of the demo: real clients that record every message.

`python -m controller.demo.traffic produce|consume ...`. The processes have the same information as any application:
the address of a worker and a token (CLEAVE_URL, CLEAVE_TOKEN), and the address of the logs (CLEAVE_EMBEDDED_URL, a
login that may only call their functions; or CLEAVE_PULSAR_*). Records are lines of text in the demo's directory,
which the history checker reads at the end: producers record the stored messages, consumers the received messages with
their times.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Annotated

import typer

from controller.bootstrap import plane_settings
from controller.client.history import SUFFIX, ConsumerHistory, ProducerHistory, Readings
from controller.client.http_source import HttpSource
from controller.client.producer import Producer
from controller.client.retry import retry_for
from controller.client.servers import Servers
from controller.client.stream_consumer import StreamConsumer
from controller.commands.stop_signals import on_stop_signals
from controller.dataplane.log_client import LogClient, OutgoingMessage
from controller.dataplane.registry import build_log_client
from controller.demo.day_clock import read_share
from controller.demo.load_profile import from_trace, synthetic_day
from controller.settings import load_settings

KEYS = 500
PAYLOAD_BYTES = 100
TICK_SECONDS = 0.05
JOINING_SECONDS = 60.0
"""Seconds after which a worker that was killed is running again."""

Url = Annotated[str, typer.Option(envvar="CLEAVE_URL", help="Address at which a worker serves applications.")]
Token = Annotated[str, typer.Option(envvar="CLEAVE_TOKEN", help="Token for the topic.")]
PlaneName = Annotated[
    str,
    typer.Option("--plane", help="Data plane of the topic, by its name in the settings. Default: embedded."),
]

app = typer.Typer(pretty_exceptions_enable=False)


def wait_file(records: Path, name: str) -> Path:
    """Return the path of the file with the seconds that the consumer `name` waited for its first message. The file exists once the message
    has arrived.
    """
    return records / f"{name}.waited"


def _identity(payload: bytes, key: bytes | None) -> tuple[str, str, int]:
    """Return the producer, the key and the number (within producer and key) of a message that `produce` has sent."""
    producer, number = payload.decode().split()
    return producer, (key or b"").decode(), int(number)


def _logs(plane: str) -> LogClient:
    return build_log_client(plane, plane_settings(load_settings()))


@app.command()
def produce(
    topic: str,
    name: str,
    records: Path,
    clock: Annotated[Path, typer.Option(help="File with the share of the day that has passed.")],
    url: Url,
    token: Token,
    share: Annotated[
        float, typer.Option(help="This producer's part of the profile's rate. Default: 1.")
    ] = 1.0,
    trace: Annotated[Path | None, typer.Option()] = None,
    plane: PlaneName = "embedded",
) -> None:
    """Send the day's traffic with uniformly drawn keys until the day is over or SIGTERM, and record each message that is stored."""
    profile = from_trace(trace) if trace else synthetic_day()
    stop, random = threading.Event(), Random(name)
    on_stop_signals(stop.set)
    numbers = [0] * KEYS

    with ProducerHistory(records / f"{name}.produced{SUFFIX}") as history:

        def note(messages: Sequence[OutgoingMessage]) -> None:
            history.sent(_identity(message.payload, message.key) for message in messages)

        with (
            closing(Servers([url], token)) as servers,
            closing(_logs(plane)) as logs,
            retry_for(
                lambda: Producer(
                    HttpSource(servers), logs, topic, name=name, batch_messages=200, on_stored=note
                ),
                seconds=JOINING_SECONDS,
            ) as producer,
        ):
            pending = 0.0
            last = time.monotonic()
            while not stop.is_set():
                day_share = read_share(clock)
                if day_share >= 1.0:
                    break
                now = time.monotonic()
                pending += profile.rate_at(day_share) * share * (now - last)
                last = now
                for _ in range(int(pending)):
                    key = random.randrange(KEYS)
                    payload = f"{name} {numbers[key]}".encode().ljust(PAYLOAD_BYTES)
                    numbers[key] += 1
                    producer.send(payload, key=f"order-{key}")
                pending -= int(pending)
                producer.flush()
                time.sleep(TICK_SECONDS)


@app.command()
def consume(
    topic: str,
    subscription: str,
    name: str,
    records: Path,
    url: Url,
    token: Token,
    plane: PlaneName = "embedded",
) -> None:
    """Read in order until SIGTERM, and record what happens to every message and when. Write the seconds until the first message to
    `wait_file`.
    """
    stop, readings = threading.Event(), Readings()
    on_stop_signals(stop.set)
    with (
        closing(Servers([url], token)) as servers,
        closing(_logs(plane)) as logs,
        ConsumerHistory(records / f"{name}.consumed{SUFFIX}", name) as history,
        retry_for(
            lambda: StreamConsumer(servers, logs, topic, subscription, name), seconds=JOINING_SECONDS
        ) as consumer,
    ):
        joined, waited = time.monotonic(), wait_file(records, name)
        while not stop.is_set():
            batch = consumer.receive(timeout_seconds=0.5)
            if batch is None:
                continue
            if not waited.exists():
                waited.write_text(f"{time.monotonic() - joined:.3f}", encoding="ascii")
            messages = [_identity(message.payload, message.key) for message in batch.messages]
            attachment = readings.attachment(batch.segment_id, str(batch.bucket), batch.origin)
            history.delivered(messages, attachment)
            for message in messages:  # this application only records the message
                history.begun([message], attachment)
                history.ended([message], attachment)
            if consumer.acknowledge(batch):
                history.acknowledged(messages, attachment)


if __name__ == "__main__":
    app()
