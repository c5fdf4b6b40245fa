"""Measures the cost of one decision: a topic of 64 segments in several states, decided repeatedly, by both profiles.

`adaptive` has a full memory of 45 ticks of each segment: all idle, all near their target, or every load drawn at random for each tick.
Prints one line of JSON: the median and the 99th percentile in microseconds for each state.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from random import Random

from benchmarks.machine import machine
from controller.domain.evaluation_input import TICKS_OF_MEMORY, Capabilities, EvaluationInput
from controller.domain.evaluator import decide
from controller.domain.layout import SegmentLayout
from controller.domain.load_record import LoadRecord, LoadStats
from controller.domain.policy import AutoScalePolicy

_NOW = 1_800_000_000_000
_HOUR_MS = 3_600_000


def situation(segments: int, rate: float) -> EvaluationInput:
    """Return the evaluation input of a topic whose segments all have the same rate, cold for an hour if the rate is low enough."""
    stats = LoadStats(rate, rate * 100, rate, rate * 100)
    record = LoadRecord(stats, _NOW - _HOUR_MS, _NOW - _HOUR_MS if rate < 1_000 else None, _NOW)
    layout = SegmentLayout.initial(segments, now=_NOW - _HOUR_MS)
    return EvaluationInput(
        layout=layout,
        loads=dict.fromkeys(layout.segments, record),
        stream_consumers={"billing": segments // 2},
        policy=AutoScalePolicy(max_segments=2 * segments),
        now=_NOW,
    )


def remembering(segments: int, load: Callable[[], float]) -> EvaluationInput:
    """Return an evaluation input for `adaptive`; `load` gives the load of a segment at a tick, as a share of the capacity."""
    policy = AutoScalePolicy(profile="adaptive", max_segments=2 * segments)
    layout = SegmentLayout.initial(segments, now=_NOW - _HOUR_MS)
    memory = {
        i: tuple(LoadStats(load() * policy.split_msg_rate_in) for _ in range(TICKS_OF_MEMORY))
        for i in layout.segments
    }
    return EvaluationInput(
        layout=layout,
        loads={i: LoadRecord(ticks[-1], _NOW - _HOUR_MS, None, _NOW) for i, ticks in memory.items()},
        recent_loads=memory,
        policy=policy,
        capabilities=Capabilities(max_children=64, recut=True, shared_buckets=True),
        now=_NOW,
    )


def microseconds(evaluation_input: EvaluationInput, rounds: int) -> dict[str, float]:
    """Return median and 99th percentile of one decision, in microseconds."""
    taken = []
    for _ in range(rounds):
        started = time.perf_counter_ns()
        decide(evaluation_input)
        taken.append((time.perf_counter_ns() - started) / 1_000)
    return {
        "median": round(statistics.median(taken), 1),
        "p99": round(statistics.quantiles(taken, n=100)[98], 1),
    }


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5_000)
    options = parser.parse_args()
    figures = {
        state: microseconds(situation(options.segments, rate), options.rounds)
        for state, rate in (("warm", 5_000.0), ("hot", 25_000.0), ("cold", 1.0))
    }
    random = Random(1)
    loads: dict[str, Callable[[], float]] = {
        "idle": lambda: 0.2,
        "near_target": lambda: random.uniform(0.8, 0.95),
        "anything": lambda: random.uniform(0.0, 1.1),
    }
    figures |= {
        f"adaptive_{state}": microseconds(remembering(options.segments, load), options.rounds // 10)
        for state, load in loads.items()
    }
    print(
        json.dumps(
            {
                "benchmark": "decide",
                "machine": machine(),
                "segments": options.segments,
                "microseconds": figures,
            }
        )
    )


if __name__ == "__main__":
    main()
