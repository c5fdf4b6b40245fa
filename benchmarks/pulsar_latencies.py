"""Latencies of a controller: from a second consumer to two segments, from the request of a split to its end, and the publish gap of a
split.

The systems take turns, each with a new topic; `bench_pulsar_controllers` defines the begin and end of each time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text

from benchmarks.pulsar_systems import NATIVE, PULSAR, SCALABLE, SUBSCRIPTION, CleaveSystem, System
from controller.dataplane.base import SetWiseDataPlane, Successor

WARM_UP_ROUNDS = 3
WARM_UP_SPLITS = 90
"""Number of splits of each system before anything is timed: a JVM compiles what it has done often, and on two cores the
medians of both brokers fall until about the sixtieth split."""
PATIENCE_SECONDS = 30.0
SETTLE_SECONDS = 1.5
GAP_SECONDS = 1.5
SECOND_CONSUMER_GOALS = {PULSAR: 90, SCALABLE: 200}
"""Medians, in milliseconds."""
SPLIT_GOAL_RATIO = 1.3
"""Median time of a split under traffic by Cleave on ordinary topics, divided by that of Pulsar's own controller."""
GAP_GOALS = {"p50": 50, "worst": 150}
"""Longest pause in sending during a split, in milliseconds, for Cleave on ordinary topics."""


def wait_active(system: System, topic: str, wanted: int) -> float:
    """Wait until that many segments are active, and return the instant (monotonic seconds). Raises RuntimeError after PATIENCE_SECONDS."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(system.layout(topic).active) < wanted:
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"{system.name}: {topic} has no {wanted} active segments after {PATIENCE_SECONDS:g} s"
            )
        system.wait_change()
    return time.monotonic()


def warm_up(system: System) -> None:
    """Perform `WARM_UP_SPLITS` splits that are not measured, each of a topic that is retired afterwards."""
    for number in range(WARM_UP_SPLITS):
        topic = f"topic://{system.namespace}/warm-{system.name}-{number}"
        system.create(topic)
        [segment] = system.layout(topic).active
        system.split(topic, segment.segment_id)
        wait_active(system, topic, 2)
        system.retire(topic)


def join(system: System, topic: str) -> dict[str, float]:
    """Create a topic, subscribe a second consumer, and wait until the topic has two active segments. Return the times in milliseconds,
    and retire the topic.
    """
    system.create(topic)
    system.client.ask("subscribe", topic=topic, subscription=SUBSCRIPTION, name="first")
    time.sleep(SETTLE_SECONDS)  # the first one is counted by now
    system.client.tell("subscribe", topic=topic, subscription=SUBSCRIPTION, name="second")
    active_at, active_at_wall = wait_active(system, topic, 2), time.time()
    answer = system.client.hear()
    took = {"active_ms": (active_at - answer["began"]) * 1000, "subscribe_ms": answer["took_ms"]}
    if isinstance(system, CleaveSystem):
        took["counted_ms"] = (active_at_wall - counted_at(system, topic)) * 1000
    system.client.ask("leave")
    system.retire(topic)
    return took


def counted_at(system: CleaveSystem, topic: str) -> float:
    """Return the time at which the second consumer was in the database, in seconds since the Unix epoch by the clock of this machine."""
    statement = text(
        "SELECT extract(epoch FROM greatest((SELECT max(registered_at) FROM cleave.consumer c WHERE c.topic_id = t.topic_id),"
        " (SELECT max(changed_at) FROM cleave.observed_subscription o WHERE o.topic_id = t.topic_id)))"
        " FROM cleave.topic t WHERE t.name = :topic AND t.state = 'live'"
    )
    with system.app.store.transaction() as tx:
        return float(tx.execute(statement, {"topic": topic}).scalar_one())


def split(system: System, topic: str, rate: float) -> dict[str, float]:
    """Create a topic, split its segment once while messages arrive at `rate` per second, and retire it. Return the times in milliseconds.

    With a `rate` also return the longest times between two acknowledgements before the split and during it, and the number of failed sends.
    """
    system.create(topic)
    if rate:
        system.client.ask("produce", topic=topic, rate=rate)
        time.sleep(GAP_SECONDS)
    time.sleep(SETTLE_SECONDS)  # what follows the making of one topic and the deletion of another
    [segment] = system.layout(topic).active
    with ThreadPoolExecutor(1) as asking:
        began = time.monotonic()
        answered = asking.submit(lambda: (system.split(topic, segment.segment_id), time.monotonic())[1])
        active_at = wait_active(system, topic, 2)
        took = {"active_ms": (active_at - began) * 1000, "answered_ms": (answered.result() - began) * 1000}
    if rate:
        time.sleep(max(0.0, began + GAP_SECONDS - time.monotonic()))
        windows = [(began - GAP_SECONDS, began), (began, began + GAP_SECONDS)]
        took["quiet_gap_ms"], took["gap_ms"] = system.client.ask("gaps", windows=windows)["worst_ms"]
        took["failed_sends"] = system.client.ask("stop")["failed"]
    system.retire(topic)
    return took


def calls_alone(system: System, topic: str, rate: float) -> dict[str, float]:
    """Make the calls of a split to the broker as the worker makes them, but without the journal and the worker, on logs that belong to no
    topic, while `topic` receives `rate` messages per second. Return the time in milliseconds. Afterwards, delete the logs and retire the
    topic.
    """
    plane = system.app.planes[system.name] if isinstance(system, CleaveSystem) else None
    if not isinstance(plane, SetWiseDataPlane):
        raise TypeError(f"{system.name} does not create logs")
    parent, *children = (
        plane.backing_topic(f"{topic}-calls", descriptor)
        for descriptor in ("0000-ffff-0", "0000-7fff-1", "8000-ffff-2")
    )
    system.create(topic)
    plane.create_segment(parent, [SUBSCRIPTION])
    system.client.ask("produce", topic=topic, rate=rate)
    time.sleep(GAP_SECONDS + SETTLE_SECONDS)
    began = time.monotonic()
    plane.create_successors([Successor(child, (parent,), (SUBSCRIPTION,)) for child in children])
    plane.terminate_segments([parent])
    took_ms = (time.monotonic() - began) * 1000
    system.client.ask("stop")
    for log in (parent, *children):
        plane.delete_segment(log)
    system.retire(topic)
    return {"calls_ms": took_ms}


@dataclass(frozen=True, slots=True)
class MeasuredRounds:
    """Figures of each system, a dictionary for each round."""

    by_system: dict[str, list[dict[str, float]]]

    def summary(self, figure: str) -> dict[str, dict[str, float]]:
        """Return the summary of one figure, by system; systems without the figure are left out."""
        return {
            name: _summary([round_figures[figure] for round_figures in rounds if figure in round_figures])
            for name, rounds in self.by_system.items()
            if any(figure in round_figures for round_figures in rounds)
        }

    def total(self, figure: str) -> dict[str, int]:
        """Return the sum of one figure, by system."""
        return {
            name: round(sum(round_figures[figure] for round_figures in rounds))
            for name, rounds in self.by_system.items()
        }


def _summary(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "least": round(ordered[0], 1),
        "p50": round(statistics.median(ordered), 1),
        "p99": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], 1),
        "worst": round(ordered[-1], 1),
    }


def latencies(systems: Sequence[System], rounds: int, rate: float) -> dict[str, Any]:
    """Return all figures except the burst; the systems take turns."""
    acts: dict[str, Callable[[System, str], dict[str, float]]] = {
        "join": join,
        "split": lambda system, topic: split(system, topic, 0),
        "traffic": lambda system, topic: split(system, topic, rate),
        "calls": lambda system, topic: calls_alone(system, topic, rate),
    }
    measured = {}
    for system in systems:
        warm_up(system)
    for name, act in acts.items():
        measured[name] = MeasuredRounds({system.name: [] for system in systems})
        for number in range(WARM_UP_ROUNDS + rounds):
            # the brokers of the other systems make these calls themselves
            for system in (s for s in systems if name != "calls" or s.name == PULSAR):
                took = act(system, f"topic://{system.namespace}/{name}-{system.name}-{number}")
                if number >= WARM_UP_ROUNDS:
                    measured[name].by_system[system.name].append(took)
    traffic_split = measured["traffic"].summary("active_ms")
    return {
        "second_consumer": {
            "active_ms": measured["join"].summary("active_ms"),
            "counted_ms": measured["join"].summary("counted_ms"),
            "subscribe_ms": measured["join"].summary("subscribe_ms"),
            "goal_p50_ms": SECOND_CONSUMER_GOALS,
        },
        "split": {
            "idle_active_ms": measured["split"].summary("active_ms"),
            "traffic_active_ms": traffic_split,
            "traffic_ratio_to_native": {
                name: round(times["p50"] / traffic_split[NATIVE]["p50"], 2)
                for name, times in traffic_split.items()
                if name != NATIVE
            },
            "answered_ms": {NATIVE: measured["split"].summary("answered_ms")[NATIVE]},
            "traffic_calls_ms": {PULSAR: measured["calls"].summary("calls_ms")[PULSAR]},
            "goal_ratio": {PULSAR: SPLIT_GOAL_RATIO},
        },
        "publish_gap": {
            "ms": measured["traffic"].summary("gap_ms"),
            "quiet_ms": measured["traffic"].summary("quiet_gap_ms"),
            "failed_sends": measured["traffic"].total("failed_sends"),
            "goal_ms": {PULSAR: GAP_GOALS},
        },
    }
