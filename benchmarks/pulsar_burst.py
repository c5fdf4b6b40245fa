"""A burst on a topic of one segment: a controller splits it until no segment is above the threshold.

The rate is `TIMES` times the split threshold from the first message on, with keys that load the ring evenly, so a segment is at or below
the threshold when it is no wider than a `TIMES`th of the ring; PIP-483 splits strictly above it. Every burst has a private broker, and
with Cleave a private database, worker and collector. `Pace` has the policy and its times.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.pulsar_systems import (
    NATIVE,
    PULSAR,
    CleaveSystem,
    NativeSystem,
    System,
    cleave_system,
    scalable_plane,
    v5_process,
)
from controller.bootstrap import run_aggregation
from controller.devstack.postgres import EmbeddedPostgres
from controller.devstack.pulsar.jars import PULSAR_4, PULSAR_5
from controller.devstack.pulsar.standalone import PulsarStandalone
from controller.domain.hash_range import RING_SIZE
from controller.store.postgres.migrations import migrate

TIMES = 16
LOOK_SECONDS = 0.5
NOTE_EVERY = 10
RATES = {
    "CLEAVE_COLLECT_INTERVAL_SECONDS": "2.5",
    "CLEAVE_RATE_WINDOW_SECONDS": "10",
    "CLEAVE_WORKER_LOAD_LANE": "true",
}
AGGREGATION_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Pace:
    """The cooldown of the policy of both controllers, Pulsar's settings that belong to it, and the profile by which Cleave decides."""

    split_cooldown_seconds: int
    broker_properties: Mapping[str, str]
    profile: str = "pip483"


PACES = {
    "pulsars_defaults": Pace(60, {}),
    "ten_seconds": Pace(
        10,
        {
            "scalableTopicAutoScaleIntervalSeconds": "10",
            "scalableTopicLoadReportIntervalSeconds": "10",
            "statsUpdateFrequencyInSecs": "10",
        },
    ),
}
"""Pulsar 5 reports load every 10 s by default, decides every 60 s, and counts rates every 60 s."""
ADAPTIVE = Pace(60, {}, "adaptive")
"""Pulsar with what it has by default, Cleave with the rules that new topics have."""


@contextmanager
def own_system(name: str, pace: Pace, server: EmbeddedPostgres, directory: Path) -> Iterator[System]:
    """Start the controller of that name with a new broker in `directory`, and yield it; with Cleave also a database, a worker that
    collects load, and the aggregation. All are ended at the end.
    """
    version = PULSAR_4 if name == PULSAR else PULSAR_5
    properties = pace.broker_properties if name == NATIVE else {}
    directory.mkdir(parents=True)
    with ExitStack() as running:
        broker = PulsarStandalone(directory / "broker", version, properties=properties)
        running.callback(broker.destroy)
        broker.start()
        v5 = None if name == PULSAR else v5_process(running, broker, directory)
        if name == NATIVE:
            assert v5 is not None
            yield NativeSystem(v5, scalable_plane(running, broker))
            return
        url = server.create_database(directory.name)
        migrate(url)
        system = cleave_system(running, broker, url, directory, v5=v5, collects=True, settings=RATES)
        running.enter_context(_aggregating(system))
        yield system


@contextmanager
def _aggregating(system: CleaveSystem) -> Iterator[None]:
    """Compute rates from samples every AGGREGATION_SECONDS in a thread, with SQL, as the Airflow DAG does, until the end of the block."""
    stopping = threading.Event()

    def run() -> None:
        for number in itertools.count(1):
            if stopping.wait(AGGREGATION_SECONDS):
                return
            run_aggregation(system.app.settings, f"burst-{number}")

    with ThreadPoolExecutor(1, thread_name_prefix="aggregation") as threads:
        running = threads.submit(run)
        try:
            yield
        finally:
            stopping.set()
        running.result()


def burst(system: System, pace: Pace, *, seconds: float, threshold: int) -> dict[str, Any]:
    """Send `TIMES` times the threshold and observe the layout for `seconds`. Seconds in the result count from the first message."""
    topic, rate = f"topic://{system.namespace}/burst", threshold * TIMES
    parameters: dict[str, Any] = {
        "split_msg_rate_in": threshold,
        "merge_msg_rate_in": threshold // 10,
        "split_cooldown_seconds": pace.split_cooldown_seconds,
    }
    if not isinstance(system, NativeSystem):
        parameters["profile"] = pace.profile
    system.create(topic, parameters)
    system.client.ask("produce", topic=topic, rate=rate, note_every=NOTE_EVERY)
    began = time.monotonic()
    changes: list[tuple[float, int]] = [(0.0, 1)]
    settled_seconds = None
    while (now := time.monotonic() - began) < seconds:
        active = system.layout(topic).active
        if len(active) != changes[-1][1]:
            changes.append((round(now, 1), len(active)))
        widest = max(segment.hash_range.width for segment in active)
        if settled_seconds is None and widest * TIMES <= RING_SIZE:
            settled_seconds = round(now, 1)
        time.sleep(LOOK_SECONDS)
    count = system.client.ask("count")
    system.client.ask("stop")
    return {
        "watched_seconds": seconds,
        "first_split_seconds": changes[1][0] if len(changes) > 1 else None,
        "active_at_the_end": changes[-1][1],
        "settled_seconds": settled_seconds,
        "active_over_time": [list(change) for change in changes],
        "asked_per_second": rate,
        "acknowledged_per_second": round(count["messages"] / seconds),
        "failed_sends": count["failed"],
    }
