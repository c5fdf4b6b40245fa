"""Measures 2,000 watches of layouts that are held open on one worker: their cost, and the delay until each receives a change.

200 topics of one segment, ten watches each, opened over HTTP by a separate process. `memory`: resident memory of the worker before and
with the watches. `latency`: from the commit of a split, by the database's clock, to each of its topic's ten watches, and from a split of
every topic at once to all 2,000. The worker serves and performs the splits; both use one clock. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx
import httpx_sse
import psutil

from benchmarks.bench_operations import application
from benchmarks.bench_sessions import wait_idle, workers
from benchmarks.machine import machine
from controller.bootstrap import Application
from controller.devstack.postgres import DURABLE, EmbeddedPostgres
from controller.devstack.serving import token_for
from controller.domain.operation import Origin
from controller.services import segment_admin, topic_admin
from controller.store.journal.operations import Request
from controller.store.postgres.migrations import migrate

TOPICS, WATCHES_EACH = 200, 10
SETTLE_SECONDS = 2.0


class Watches:
    """Streams of layouts; `told` has, for each topic and epoch, the time at which each watch received it."""

    def __init__(self, address: str) -> None:
        self._https = [
            httpx.AsyncClient(
                base_url=address,
                headers={"Authorization": f"Bearer {token_for(subject=f'application-{number}')}"},
                timeout=httpx.Timeout(30.0, read=None),
                limits=httpx.Limits(max_connections=None),
            )
            for number in range(WATCHES_EACH)
        ]
        """A client for each watch of a topic: a worker limits the streams of one token subject."""
        self.told: dict[tuple[str, int], list[float]] = {}
        self._streams: list[asyncio.Task[None]] = []

    async def open_all(self, topic: str) -> None:
        """Open the watches of the topic. Returns when their streams have begun. Raises the error of a stream that does not begin."""
        async with asyncio.TaskGroup() as opening:
            for http in self._https:
                opening.create_task(self._open(http, topic))

    async def _open(self, http: httpx.AsyncClient, topic: str) -> None:
        begun = asyncio.Event()
        stream = asyncio.create_task(self._follow(http, topic, begun))
        self._streams.append(stream)
        stream.add_done_callback(lambda _: begun.set())
        await begun.wait()
        if stream.done():
            stream.result()

    async def _follow(self, http: httpx.AsyncClient, topic: str, begun: asyncio.Event) -> None:
        path = f"/api/v1/topics/{topic.removeprefix('topic://')}/layout/watch"
        async with httpx_sse.aconnect_sse(http, "GET", path) as stream:
            async for event in stream.aiter_sse():
                if event.event == "layout":
                    epoch = json.loads(event.data)["epoch"]
                    self.told.setdefault((topic, epoch), []).append(time.time())
                    begun.set()

    async def heard(self, topic: str, epoch: int) -> list[float]:
        """Wait until every watch of the topic has received the epoch, and return the times."""
        while len(self.told.get((topic, epoch), ())) < WATCHES_EACH:
            await asyncio.sleep(0.002)
        return self.told[topic, epoch]

    async def close(self) -> None:
        """Close all streams."""
        for stream in self._streams:
            stream.cancel()
        await asyncio.gather(*self._streams, return_exceptions=True)
        for http in self._https:
            await http.aclose()


def make_topics(app: Application, names: list[str]) -> None:
    """Create topics of one segment each."""
    for name in names:
        request = Request(f"create-{name}", Origin.MANUAL, "benchmark", "benchmark")
        topic_admin.create_topic(app.store, app.planes, name, request)
    wait_idle(app)


def split(app: Application, topic: str, segment_id: int) -> None:
    """Request the split of a segment; the worker performs it."""
    request = Request(f"split-{segment_id}-{topic}", Origin.MANUAL, "benchmark", "benchmark")
    segment_admin.submit(app.store, app.planes, topic, segment_admin.splitting(segment_id), request)


def committed_at(app: Application, topic: str, epoch: int) -> float:
    """Return the seconds since the Unix epoch at which the layout epoch was written; it becomes visible with the commit."""
    statement = """
        SELECT extract(epoch FROM c.committed_at) FROM cleave.layout_change c JOIN cleave.topic t USING (topic_id)
         WHERE t.name = %s AND c.epoch = %s
    """
    with app.store.transaction() as tx:
        return float(tx.exec_driver_sql(statement, (topic, epoch)).scalar_one())


def figures_of(delays: list[float]) -> dict[str, object]:
    """Return the number of delays, and their 50th and 99th percentile and maximum in milliseconds."""
    cuts = statistics.quantiles((1000 * delay for delay in delays), n=100)
    return {
        "told": len(delays),
        "p50_ms": round(cuts[49], 1),
        "p99_ms": round(cuts[98], 1),
        "worst_ms": round(1000 * max(delays), 1),
    }


async def measure(app: Application, address: str, pid: int, rounds: int) -> dict[str, object]:
    """Open the watches, split every topic once, and return all figures. `pid` is the id of the worker's process."""
    names = [f"topic://bench/watches/t{number}" for number in range(TOPICS)]
    await asyncio.to_thread(make_topics, app, names)
    print("opening the watches", file=sys.stderr, flush=True)
    worker, watches = psutil.Process(pid), Watches(address)
    before = worker.memory_info().rss
    for name in names:
        await watches.open_all(name)
    print("watching", file=sys.stderr, flush=True)
    await asyncio.sleep(SETTLE_SECONDS)
    with_watches = worker.memory_info().rss
    busy = sum(worker.cpu_times()[:2])
    await asyncio.sleep(10.0)
    idle = (sum(worker.cpu_times()[:2]) - busy) / 10.0
    single_delays: list[float] = []
    for name in names[:rounds]:
        await asyncio.to_thread(split, app, name, 0)
        received = await watches.heard(name, 1)
        committed = await asyncio.to_thread(committed_at, app, name, 1)
        single_delays += [at - committed for at in received]
    all_delays: list[float] = []
    for name in names[rounds:]:
        await asyncio.to_thread(split, app, name, 0)
    for name in names[rounds:]:
        received = await watches.heard(name, 1)
        committed = await asyncio.to_thread(committed_at, app, name, 1)
        all_delays += [at - committed for at in received]
    await watches.close()
    return {
        "watches": TOPICS * WATCHES_EACH,
        "memory": {
            "worker_before_mib": round(before / 2**20, 1),
            "worker_with_them_mib": round(with_watches / 2**20, 1),
            "each_kib": round((with_watches - before) / 1024 / (TOPICS * WATCHES_EACH), 1),
            "processor_share_while_nothing_changes": round(idle, 3),
        },
        "latency": {
            "one topic after the other": figures_of(single_delays),
            f"{TOPICS - rounds} topics as fast as they split": figures_of(all_delays),
        },
    }


def main() -> None:
    """Measure on a private server and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="topics that are split one after the other")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        server = EmbeddedPostgres(Path(directory) / "postgres", settings=DURABLE)
        try:
            server.start()
            url = server.create_database("bench")
            migrate(url)
            with application(url) as app, workers(url, Path(directory), 1) as [(child, _, address)]:
                print("making the topics", file=sys.stderr, flush=True)
                figures = asyncio.run(measure(app, address, child.pid, options.rounds))
        finally:
            server.destroy()
    print(json.dumps({"benchmark": "watches", "machine": machine(), **figures}))


if __name__ == "__main__":
    main()
