"""Consumers that join together until each has its first message, on the embedded logs with a real worker process.

7, 50 and 200 consumers register within a second on a topic of one or four segments: as it was made, just after a segment was split
for load, and just after two were merged. Messages of many keys come meanwhile. Each consumer's time begins with its registration;
`plans` are the decisions that followed, and `acts` their reshapes. `one_split_a_minute` is the rule of PIP-483 on the same topic, for the few consumers that it can
serve within the time of the benchmark. One line of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

from benchmarks.bench_sessions import make_topic, wait_idle
from benchmarks.bench_sharing import active_segments, one_worker, set_policy
from benchmarks.machine import machine
from controller.bootstrap import Application
from controller.client.http_source import HttpSource
from controller.client.producer import Producer
from controller.client.servers import Servers
from controller.client.stream_consumer import StreamConsumer
from controller.dataplane.embedded import EmbeddedLogClient
from controller.domain.operation import Origin
from controller.services import segment_admin
from controller.store.journal.operations import Request
from controller.store.postgres import inspection

COUNTS = (7, 50, 200)
SCENES = ("1, new", "1, after a merge", "4, new", "4, after a split", "4, after a merge")
GOALS = {7: 2.0, 200: 5.0}
MESSAGES_PER_SECOND = 4_000
JOIN_SECONDS = 1.0
_ACTS = """
    SELECT kind, decision_id FROM inspect.operations WHERE topic = :topic AND operation_id > :after
       AND kind IN ('split', 'merge', 'rebucket', 'recut') ORDER BY operation_id
"""


@contextmanager
def traffic(app: Application, servers: Servers, topic: str) -> Iterator[None]:
    """Messages of many keys meanwhile."""
    ending = threading.Event()

    def send() -> None:
        with closing(EmbeddedLogClient(app.settings.embedded_dsn)) as logs:
            producer = Producer(HttpSource(servers), logs, topic)
            number = 0
            while not ending.wait(0.05):
                for _ in range(MESSAGES_PER_SECOND // 20):
                    number += 1
                    producer.send(b"payload", f"key-{number % 20_000}")
                producer.flush()
            producer.close()

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


class Joining:
    """Consumers that register one after the other within a second; `waited` are their seconds to the first message."""

    def __init__(self, app: Application, servers: Servers, topic: str, count: int) -> None:
        self._logs = EmbeddedLogClient(app.settings.embedded_dsn)
        self._servers, self._topic, self._ending = servers, topic, threading.Event()
        self.waited: list[float | None] = [None] * count
        self._threads = [
            threading.Thread(target=self._read, args=(number, number * JOIN_SECONDS / count), daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, number: int, after_seconds: float) -> None:
        self._ending.wait(after_seconds)
        begun = time.perf_counter()
        with StreamConsumer(self._servers, self._logs, self._topic, "s", f"c{number:03}") as consumer:
            while not self._ending.is_set():
                batch = consumer.receive(0.2)
                if batch is not None:
                    self.waited[number] = self.waited[number] or time.perf_counter() - begun
                    consumer.acknowledge(batch)

    def finish(self, within_seconds: float) -> None:
        """Wait until each has had a message, then leave."""
        ends = time.perf_counter() + within_seconds
        while None in self.waited and time.perf_counter() < ends:
            time.sleep(0.01)
        self._ending.set()
        for thread in self._threads:
            thread.join()
        self._logs.close()


def make_scene(app: Application, topic: str, scene: str) -> None:
    """The topic of the scene, whose last act has just ended."""
    segments, _, history = scene.partition(", ")
    before = int(segments) + {"new": 0, "after a split": -1, "after a merge": 1}[history]
    make_topic(app, topic, segments=before)
    if history == "new":
        return
    act = segment_admin.splitting(0) if history == "after a split" else segment_admin.merging(0, 1)
    request = Request(f"act-{topic}", Origin.AUTO, "benchmark", "msgRateIn")
    segment_admin.submit(app.store, app.planes, topic, act, request)
    wait_idle(app)


def join(
    app: Application,
    servers: Servers,
    scene: str,
    count: int,
    *,
    within_seconds: float,
    name: str = "adaptive",
) -> dict[str, object]:
    """One scene."""
    topic = f"topic://bench/joins/{name}-{scene.replace(', ', '-').replace(' ', '-')}-{count}"
    make_scene(app, topic, scene)
    with app.store.transaction() as tx:
        [last] = inspection.rows(
            tx, "SELECT coalesce(max(operation_id), 0) AS operation_id FROM inspect.operations"
        )
    with traffic(app, servers, topic):
        joining = Joining(app, servers, topic, count)
        joining.finish(within_seconds)
    with app.store.transaction() as tx:
        rows = inspection.rows(tx, _ACTS, topic=topic, after=last["operation_id"])
    waited = [seconds for seconds in joining.waited if seconds is not None]
    return {
        "median_seconds": round(statistics.median(waited), 2),
        "worst_seconds": round(max(waited), 2),
        "without_a_message": count - len(waited),
        "plans": len({row["decision_id"] for row in rows}),
        "acts": ", ".join(row["kind"] for row in rows),
        "segments": len(active_segments(app, topic)),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure on a private server and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", type=int, nargs="*", default=COUNTS)
    parser.add_argument("--rival-seconds", type=float, default=200.0)
    options = parser.parse_args(arguments)
    with one_worker() as (app, servers):
        figures: dict[str, dict[str, object]] = {}
        for count in options.counts:
            for scene in SCENES:
                found = join(app, servers, scene, count, within_seconds=60.0)
                figures[f"{count} consumers, {scene}"] = found
                print(f"{count} consumers, {scene}: {found}", file=sys.stderr, flush=True)
        set_policy(
            app, lambda policy: replace(policy, profile="pip483", split_vs_rebucket_min_msg_rate_in=0.0)
        )
        rival = join(app, servers, "4, new", 7, within_seconds=options.rival_seconds, name="pip483")
    worst = {
        count: max(
            float(str(found["worst_seconds"]))
            for name, found in figures.items()
            if name.startswith(f"{count} ")
        )
        for count in GOALS
    }
    goals = {
        f"goal_of_{count}": f"{goal:g} s at worst: {'met' if worst[count] <= goal else 'missed'}"
        for count, goal in GOALS.items()
        if count in options.counts
    }
    print(
        json.dumps(
            {
                "benchmark": "joins",
                "machine": machine(),
                **goals,
                "joins": figures,
                "one_split_a_minute": {"7 consumers, 4, new": rival},
            }
        )
    )


if __name__ == "__main__":
    main()
