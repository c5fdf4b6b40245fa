"""Producer and consumer processes of the demo: real clients whose every message is written down.

`python -m controller.demo.traffic produce|consume ...`. They know what any application knows: where a worker serves it and
a token (CLEAVE_URL, CLEAVE_TOKEN), and where the logs are (CLEAVE_EMBEDDED_URL, a login that may do nothing but call their
functions; or CLEAVE_PULSAR_*). Records are lines of text in the demo's directory, read by the history checker at the end:
producers note what was stored, consumers what they received and when.
"""

from __future__ import annotations

import signal
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
from controller.client.patience import patiently
from controller.client.producer import Producer
from controller.client.servers import Servers
from controller.client.stream_consumer import StreamConsumer
from controller.dataplane.base import LogClient, OutgoingMessage
from controller.dataplane.registry import build_log_client
from controller.demo.day_clock import read_share
from controller.demo.load_profile import from_trace, synthetic_day
from controller.settings import load_settings

KEYS = 500
PAYLOAD_BYTES = 100
TICK_SECONDS = 0.05
JOINING_SECONDS = 60.0
"""A worker that was killed is up again by then."""

Url = Annotated[str, typer.Option(envvar="CLEAVE_URL", help="Where a worker serves applications.")]
Token = Annotated[str, typer.Option(envvar="CLEAVE_TOKEN", help="A token for the topic.")]
PlaneName = Annotated[str, typer.Option("--plane", help="Data plane of the topic, as the settings know it.")]

app = typer.Typer(pretty_exceptions_enable=False)


class _Stop:
    """Set by SIGTERM: finish the work in hand, leave."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True


def wait_file(records: Path, name: str) -> Path:
    """Return the file with the seconds that a consumer waited for its first message."""
    return records / f"{name}.waited"


def _identity(payload: bytes) -> tuple[str, str, int]:
    producer, key, number = payload.decode().split()
    return producer, key, int(number)


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
    share: Annotated[float, typer.Option(help="This producer's part of the profile's rate.")] = 1.0,
    trace: Annotated[Path | None, typer.Option()] = None,
    plane: PlaneName = "embedded",
) -> None:
    """Send the day's traffic with uniformly drawn keys; leaves when the day is over or on SIGTERM."""
    profile = from_trace(trace) if trace else synthetic_day()
    stop, random = _Stop(), Random(name)
    numbers = [0] * KEYS

    with ProducerHistory(records / f"{name}.produced{SUFFIX}") as history:

        def note(messages: Sequence[OutgoingMessage]) -> None:
            history.sent(_identity(message.payload) for message in messages)

        with (
            closing(Servers([url], token)) as servers,
            closing(_logs(plane)) as logs,
            patiently(
                lambda: Producer(
                    HttpSource(servers), logs, topic, name=name, batch_messages=200, on_stored=note
                ),
                seconds=JOINING_SECONDS,
            ) as producer,
        ):
            owed = 0.0
            last = time.monotonic()
            while not stop.asked:
                passed = read_share(clock)
                if passed >= 1.0:
                    break
                now = time.monotonic()
                owed += profile.rate_at(passed) * share * (now - last)
                last = now
                for _ in range(int(owed)):
                    key = random.randrange(KEYS)
                    payload = f"{name} order-{key} {numbers[key]}".encode().ljust(PAYLOAD_BYTES)
                    numbers[key] += 1
                    producer.send(payload, key=f"order-{key}")
                owed -= int(owed)
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
    """Read in order until SIGTERM, noting of every message what happens to it and when."""
    stop, readings = _Stop(), Readings()
    with (
        closing(Servers([url], token)) as servers,
        closing(_logs(plane)) as logs,
        ConsumerHistory(records / f"{name}.consumed{SUFFIX}", name) as history,
        patiently(
            lambda: StreamConsumer(servers, logs, topic, subscription, name), seconds=JOINING_SECONDS
        ) as consumer,
    ):
        joined, waited = time.monotonic(), wait_file(records, name)
        while not stop.asked:
            batch = consumer.receive(timeout_seconds=0.5)
            if batch is None:
                continue
            if not waited.exists():
                waited.write_text(f"{time.monotonic() - joined:.3f}", encoding="ascii")
            messages = [_identity(message.payload) for message in batch.messages]
            attachment = readings.attachment(batch.segment_id, str(batch.bucket), batch.origin)
            history.handed_out(messages, attachment)
            for message in messages:  # the work of this application is to have seen it
                history.begun([message], attachment)
                history.ended([message], attachment)
            if consumer.acknowledge(batch):
                history.acknowledged(messages, attachment)


if __name__ == "__main__":
    app()
