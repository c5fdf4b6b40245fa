"""Measures consumers that join at the same time until each has its first message, with a real worker process: on the embedded logs and on
Pulsar 4.2.4.

7, 50 and 200 consumers register within a second on a topic of one or four segments: unchanged since its creation, just
after a segment was split for load, and just after two were merged. Messages of many keys are sent meanwhile, so few
that 200 consumers, which get them one by one, leave processor time for the joins: at 4,000 a second in twenty
transactions, they alone need more than one core of this machine. Each consumer's time begins with its registration;
`plans` are the decisions that followed, and `acts` their reshapes. The consumers are threads of `--processes`
processes; `processor_seconds` is the processor time of these processes together, and of the servers, until the last
consumer had its message and the processes had ended. `one_split_a_minute` is the rule of PIP-483 on the same topic, for
the few consumers that it can serve within the time of the benchmark. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.sharedctypes import SynchronizedArray
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

import psutil

from benchmarks.bench_consumption_on_pulsar import Place, ground
from benchmarks.bench_sessions import make_topic, wait_idle
from benchmarks.bench_sharing import active_segments, set_policy, worker_at
from benchmarks.machine import machine
from controller.bootstrap import Application
from controller.client.http_source import HttpSource
from controller.client.producer import Producer
from controller.client.servers import Servers
from controller.client.stream_consumer import StreamConsumer
from controller.dataplane.embedded import EmbeddedLogClient
from controller.dataplane.log_client import LogClient
from controller.demo.planes import NAMESPACE
from controller.devstack.serving import token_for
from controller.domain.operation import Origin
from controller.services import segment_admin
from controller.store.journal.operations import Request
from controller.store.postgres import inspection

COUNTS = (7, 50, 200)
SCENES = ("1, new", "1, after a merge", "4, new", "4, after a split", "4, after a merge")
GOALS = {"embedded": {7: 2.0, 200: 5.0}, "pulsar": {7: 3.0, 200: 10.0}}
"""Seconds at worst, by data plane and number of consumers."""
MESSAGES_PER_SECOND = 1_000
TRANSACTIONS_PER_SECOND = 4
KEYS = 10_000
JOIN_SECONDS = 1.0
_ACTS = """
    SELECT kind, decision_id FROM inspect.operations WHERE topic = :topic AND operation_id > :after
       AND kind IN ('split', 'merge', 'rebucket', 'recut') ORDER BY operation_id
"""


@dataclass(frozen=True)
class EmbeddedPlace:
    """Addresses and token of the servers; it is passed to other processes."""

    dsn: str
    address: str
    token: str

    @contextmanager
    def clients(self) -> Iterator[tuple[Servers, LogClient]]:
        """Open the clients of an application: workers and logs."""
        with (
            closing(Servers([self.address], self.token, call_timeout_seconds=10.0)) as servers,
            closing(EmbeddedLogClient(self.dsn)) as logs,
        ):
            yield servers, logs


@dataclass(frozen=True)
class Stage:
    """One data plane with a worker on it."""

    app: Application
    place: EmbeddedPlace | Place
    data_plane: str
    namespace: str


@contextmanager
def stage(data_plane: str) -> Iterator[Stage]:
    """Start private servers of the data plane with a worker, and yield them."""
    if data_plane == "pulsar":
        with tempfile.TemporaryDirectory() as directory, ground(Path(directory)) as (place, app):
            yield Stage(app, place, data_plane, NAMESPACE)
    else:
        with worker_at() as (app, address):
            embedded = EmbeddedPlace(app.settings.embedded_dsn, address, token_for())
            yield Stage(app, embedded, data_plane, "bench/joins")


@contextmanager
def traffic(place: EmbeddedPlace | Place, topic: str) -> Iterator[None]:
    """Send messages of many keys in a thread until the end of the block."""
    ending = threading.Event()

    def send() -> None:
        with place.clients() as (servers, logs):
            producer = Producer(HttpSource(servers), logs, topic)
            number = 0
            while not ending.wait(1 / TRANSACTIONS_PER_SECOND):
                for _ in range(MESSAGES_PER_SECOND // TRANSACTIONS_PER_SECOND):
                    number += 1
                    producer.send(b"payload", f"key-{number % KEYS}")
                producer.flush()
            producer.close()

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


@dataclass(frozen=True)
class Group:
    """Shared state of the processes of consumers. `waited`: seconds of each consumer until its first message, 0 before; `took`: processor
    seconds of each process until the last message had arrived.
    """

    waited: SynchronizedArray[float]
    took: SynchronizedArray[float]
    ready: Barrier
    ended: Event


def consume(place: EmbeddedPlace | Place, topic: str, group: Group, process: int) -> None:
    """Run the consumers of one process, every n-th of n processes, until the group has ended."""
    count, processes = len(group.waited), len(group.took)
    with place.clients() as (servers, logs):

        def read(number: int) -> None:
            time.sleep(number * JOIN_SECONDS / count)
            begun = time.perf_counter()
            with StreamConsumer(servers, logs, topic, "s", f"c{number:03}") as consumer:
                while not group.ended.is_set():
                    batch = consumer.receive(1.0)
                    if batch is not None:
                        group.waited[number] = group.waited[number] or time.perf_counter() - begun
                        consumer.acknowledge(batch)

        group.ready.wait()
        before = time.process_time()
        with ThreadPoolExecutor(count) as threads:
            threads.map(read, range(process, count, processes))
            group.ended.wait()
            group.took[process] = time.process_time() - before


def join_together(stage: Stage, topic: str, count: int, processes: int, within_seconds: float) -> Group:
    """Start the processes, in which the consumers register one after the other within a second, and wait until each has had a message, at
    most `within_seconds`.
    """
    spawn = multiprocessing.get_context("spawn")
    processes = min(processes, count)
    waited, took = spawn.Array("d", count), spawn.Array("d", processes)
    group = Group(waited, took, spawn.Barrier(processes + 1), spawn.Event())
    running = [
        spawn.Process(target=consume, args=(stage.place, topic, group, number), daemon=True)
        for number in range(processes)
    ]
    for process in running:
        process.start()
    group.ready.wait()
    ends = time.perf_counter() + within_seconds
    while not all(waited[:]) and time.perf_counter() < ends:
        time.sleep(0.01)
    group.ended.set()
    for process in running:
        process.join()
    return group


def server_seconds() -> dict[str, float]:
    """Return the processor seconds so far of the worker, the broker and the database, with their processes that have ended."""
    seconds: dict[str, float] = defaultdict(float)
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            server = {"java": "broker", "postgres": "database"}.get(process.name())
            if server or "worker" in process.cmdline():
                seconds[server or "worker"] += sum(process.cpu_times()[:4])
    return seconds


def make_scene(stage: Stage, topic: str, scene: str) -> None:
    """Create the topic of the scene, and wait until the action of its history has ended."""
    segments, _, history = scene.partition(", ")
    before = int(segments) + {"new": 0, "after a split": -1, "after a merge": 1}[history]
    make_topic(stage.app, topic, stage.data_plane, segments=before)
    if history == "new":
        return
    act = segment_admin.splitting(0) if history == "after a split" else segment_admin.merging(0, 1)
    request = Request(f"act-{topic}", Origin.AUTO, "benchmark", "msgRateIn")
    segment_admin.submit(stage.app.store, stage.app.planes, topic, act, request)
    wait_idle(stage.app)


def join(
    stage: Stage, scene: str, count: int, *, processes: int, within_seconds: float, name: str = "adaptive"
) -> dict[str, object]:
    """Run one scene and return its figures."""
    topic = f"topic://{stage.namespace}/{name}-{scene.replace(', ', '-').replace(' ', '-')}-{count}"
    make_scene(stage, topic, scene)
    with stage.app.store.transaction() as tx:
        [last] = inspection.rows(
            tx, "SELECT coalesce(max(operation_id), 0) AS operation_id FROM inspect.operations"
        )
    with traffic(stage.place, topic):
        before = server_seconds()
        group = join_together(stage, topic, count, processes, within_seconds)
        seconds = {name: after - before[name] for name, after in server_seconds().items()}
    with stage.app.store.transaction() as tx:
        rows = inspection.rows(tx, _ACTS, topic=topic, after=last["operation_id"])
    waited = [seconds for seconds in group.waited[:] if seconds]
    return {
        "median_seconds": round(statistics.median(waited), 2),
        "worst_seconds": round(max(waited), 2),
        "without_a_message": count - len(waited),
        "plans": len({row["decision_id"] for row in rows}),
        "acts": ", ".join(row["kind"] for row in rows),
        "segments": len(active_segments(stage.app, topic)),
        "processor_seconds": f"consumers {sum(group.took[:]):.1f}, "
        + ", ".join(f"{name} {took:.1f}" for name, took in sorted(seconds.items())),
    }


def measure(
    data_plane: str, counts: Sequence[int], scenes: Sequence[str], processes: int, rival_seconds: float
) -> dict[str, object]:
    """Run all scenes on one data plane, and print and return the figures."""
    figures: dict[str, dict[str, object]] = {}
    with stage(data_plane) as running_stage:
        for count in counts:
            for scene in scenes:
                scene_figures = join(running_stage, scene, count, processes=processes, within_seconds=60.0)
                figures[f"{count} consumers, {scene}"] = scene_figures
                print(
                    f"{data_plane}, {count} consumers, {scene}: {scene_figures}", file=sys.stderr, flush=True
                )
        set_policy(
            running_stage.app,
            lambda policy: replace(policy, profile="pip483", split_vs_rebucket_min_msg_rate_in=0.0),
        )
        rival = join(
            running_stage, "4, new", 7, processes=processes, within_seconds=rival_seconds, name="pip483"
        )
    return {
        **{
            f"goal_of_{count}": _goal(figures, count, goal)
            for count, goal in GOALS[data_plane].items()
            if count in counts
        },
        "joins": figures,
        "one_split_a_minute": {"7 consumers, 4, new": rival},
    }


def _goal(figures: Mapping[str, Mapping[str, object]], count: int, goal: float) -> str:
    worst = max(
        float(str(scene_figures["worst_seconds"]))
        for name, scene_figures in figures.items()
        if name.startswith(f"{count} ")
    )
    return f"{goal:g} s at worst: {'met' if worst <= goal else 'missed'}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure on private servers and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--planes", nargs="*", default=[*GOALS], choices=[*GOALS])
    parser.add_argument("--counts", type=int, nargs="*", default=COUNTS)
    parser.add_argument("--scenes", nargs="*", default=SCENES, choices=SCENES)
    parser.add_argument(
        "--processes", type=int, default=4, help="processes that share the consumers; default: 4"
    )
    parser.add_argument("--rival-seconds", type=float, default=200.0)
    options = parser.parse_args(arguments)
    document = {
        plane: measure(plane, options.counts, options.scenes, options.processes, options.rival_seconds)
        for plane in options.planes
    }
    print(
        json.dumps({"benchmark": "joins", "machine": machine(), "processes": options.processes, **document})
    )


if __name__ == "__main__":
    main()
