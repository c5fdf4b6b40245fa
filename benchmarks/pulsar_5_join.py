"""Measures a second stream consumer that joins a topic of one segment under load, on Pulsar 5.0.0-M1 with its own controller and Java
client.

The counterpart of `bench_sessions.joins`: the same rate, the first consumer at work, and from the second consumer's `subscribe` its first
message and the time for which the first consumer had none. All parameters have their defaults, except the split's cooldown, which is 0.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.pulsar_systems import SUBSCRIPTION, NativeSystem, scalable_plane
from benchmarks.talking_process import TalkingProcess
from controller.devstack.pulsar.jars import PULSAR_5
from controller.devstack.pulsar.standalone import PulsarStandalone

PATIENCE_SECONDS = 120.0
LOOK_SECONDS = 0.05
AFTERWARDS_SECONDS = 0.5
MESSAGES_BEFORE = 2_000
"""What the first one has read when the second comes."""


def join(system: NativeSystem, topic: str, rate: float) -> dict[str, float | None]:
    """Run one round and return its times in milliseconds; the first message is None if none came within PATIENCE_SECONDS."""
    client = system.client
    system.create(topic, {"split_cooldown_seconds": 0})
    client.ask("read", topic=topic, subscription=SUBSCRIPTION, name="one")
    client.ask("produce", topic=topic, rate=rate, note_every=100)
    while len(_instants(client, "one", 0.0)) < MESSAGES_BEFORE:
        time.sleep(LOOK_SECONDS)
    joined = client.ask("read", topic=topic, subscription=SUBSCRIPTION, name="two")["began"]
    ends_at = joined + PATIENCE_SECONDS
    while not (received := _instants(client, "two", joined)) and time.monotonic() < ends_at:
        time.sleep(LOOK_SECONDS)
    time.sleep(AFTERWARDS_SECONDS)
    instants = [joined, *_instants(client, "one", joined), time.monotonic()]
    client.ask("stop")
    client.ask("leave")
    return {
        "first_message_ms": (received[0] - joined) * 1000 if received else None,
        "first_consumer_silence_ms": max(later - earlier for earlier, later in pairwise(instants)) * 1000,
    }


def _instants(client: TalkingProcess, name: str, since: float) -> list[float]:
    instants: list[float] = client.ask("instants", name=name, since=since)["instants"]
    return instants


def joins_on_pulsar_5(directory: Path, rounds: int, rate: float) -> dict[str, Any]:
    """Run the rounds on a private broker and return the figures."""
    directory.mkdir()
    with ExitStack() as running:
        broker = PulsarStandalone(directory / "pulsar", PULSAR_5)
        running.callback(broker.destroy)
        broker.start()
        arguments = [broker.service_url, str(directory)]
        log = directory / "client.log"
        client = running.enter_context(TalkingProcess("benchmarks.v5_reading", arguments, log))
        system = NativeSystem(client, scalable_plane(running, broker))
        results = [
            join(system, f"topic://{system.namespace}/join-{number}", rate) for number in range(rounds)
        ]
    first = [result["first_message_ms"] for result in results]
    arrivals = [time for time in first if time is not None]
    silences = [result["first_consumer_silence_ms"] or 0.0 for result in results]
    return {
        "rounds": rounds,
        "messages_per_second": rate,
        "first_message_p50_ms": round(statistics.median(arrivals), 1) if arrivals else None,
        "first_message_worst_ms": round(max(arrivals), 1) if arrivals else None,
        f"rounds_without_one_in_{PATIENCE_SECONDS:.0f}_seconds": first.count(None),
        "first_consumer_silence_p50_ms": round(statistics.median(silences), 1),
        "first_consumer_silence_worst_ms": round(max(silences), 1),
    }
