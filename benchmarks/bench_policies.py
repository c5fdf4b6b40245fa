"""Measures the cost of policies and other systems' rules on recorded loads, compared with the figures of another simulator, and the speed
of the simulation.

Needs the traces of the Numenta Anomaly Benchmark below `CLEAVE_TRACES`. Prints one line of JSON: cost ÷ least cost of each rule, the
response to a burst, and topic-days per minute on two processes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.machine import machine
from controller.backtest.load_series import FILES, MEAN_LOAD, LoadSeries, of_messages, trace
from controller.backtest.optimum import lower_bound
from controller.backtest.rivals.registry import rule_named
from controller.backtest.score import Prices, Score, score
from controller.backtest.simulation import Conditions, Simulation, simulate
from controller.domain.policy import AutoScalePolicy

POLICY = AutoScalePolicy(profile="pip483")
SPLIT = POLICY.thresholds.split.rates
PLAIN = Conditions()
REPORTED = Conditions(report_seconds=10)
"""Pulsar's brokers report every 10 s."""
FINE = Conditions(tick_seconds=10, window_seconds=10)
"""Pravega's segments average what they see every few seconds, and ask by themselves."""
FORGETFUL = Conditions(retention_seconds=0)
"""The count rule makes so many segments that remembering the sealed ones is all it would do."""

GOAL_REGRET = 1.50
GOAL_TOPIC_DAYS_A_MINUTE = 10_000


@dataclass(frozen=True, slots=True)
class Row:
    """A rule, the conditions of its run, and its cost ÷ least cost as measured elsewhere: taxi, tweets, ELB."""

    rule: str
    conditions: Conditions
    elsewhere: tuple[float, float, float] | None = None


ROWS = (
    Row("adaptive", PLAIN, (1.26, 1.43, 1.95)),
    Row("pip483", PLAIN),
    Row("pip483 merge 0.35", PLAIN),
    Row("pip483 strict", REPORTED, (1.76, 3.48, 3.89)),
    Row("pip483 strict, merge 0.35", REPORTED, (1.51, 2.07, 3.01)),
    Row("pravega sf 2", FINE, (1.43, 1.87, 3.30)),
    Row("ydb", PLAIN, (2.57, 6.23, 4.49)),
    Row("kinesis on-demand 5 min", PLAIN, (5.12, 9.14, 9.07)),
    Row("static peak", PLAIN, (2.13, 9.68, 4.77)),
    Row("count 0.7", FORGETFUL, (1.41, 1.47, 1.79)),
)

BURSTS: tuple[tuple[str, Conditions, int, float | None, float | None], ...] = (
    ("adaptive", PLAIN, 64, 1.2, 15),
    ("pip483 strict", PLAIN, 8, 6.2, 15),
    ("pip483 strict", PLAIN, 64, 62.2, 1023),
    ("pravega sf 2", FINE, 8, 21, 62),
    ("pravega sf 2", FINE, 64, 51, 630),
    ("pravega sf 64", FINE, 64, 20.5, 529),
    ("ydb", PLAIN, 8, 15.5, 36),
    ("ydb", PLAIN, 64, 31, 326),
    ("kinesis on-demand 5 min", PLAIN, 8, 17, 41),
    ("kinesis on-demand 5 min", PLAIN, 64, 35, 377),
    ("kinesis on-demand 15 min", PLAIN, 8, 47, 111),
    ("kinesis on-demand 15 min", PLAIN, 64, 95, 1007),
)
"""A rule, how many times 0.8 of a capacity the burst is, and as measured elsewhere minutes to relief and segment-minutes."""


def traces() -> Path:
    """Return the directory of the traces."""
    where = os.environ.get("CLEAVE_TRACES")
    if not where:
        sys.exit("CLEAVE_TRACES names no directory; set it to one that has the benchmark's data below nab/")
    return Path(where)


@cache
def recorded(name: str, step_seconds: int) -> LoadSeries:
    """Return the first week of a trace."""
    return trace(traces(), name, step_seconds=step_seconds)


@cache
def least(name: str, step_seconds: int) -> float:
    """Return the least possible cost of a trace."""
    load = recorded(name, step_seconds).load(SPLIT)
    return float(lower_bound(load, Prices(), step_seconds=step_seconds, most_segments=64)[0])


def run_of(row: int, name: str) -> tuple[float, Score]:
    """Return cost ÷ least cost of a rule on a trace, and the parts of the cost."""
    rule, conditions = ROWS[row].rule, ROWS[row].conditions
    step = 60 if rule == "adaptive" or conditions is FORGETFUL else 10
    series = recorded(name, step)
    scored = score(simulate(series, rule_named(rule, series, POLICY), conditions))
    return scored.cost / least(name, step), scored


def regrets(row: Row, runs: Sequence[tuple[float, Score]]) -> dict[str, object]:
    """Return cost ÷ least cost of the rule on each trace, its geometric mean, and over all traces the hours of overload, the sealed rings
    and the longest silence.
    """
    figures: dict[str, object] = {}
    costs = [cost for cost, _ in runs]
    elsewhere = row.elsewhere or (math.nan,) * len(costs)
    for name, cost, measured_elsewhere in zip(FILES, costs, elsewhere, strict=True):
        figures[name] = round(cost, 3)
        figures[f"{name}_elsewhere"] = "-" if math.isnan(measured_elsewhere) else measured_elsewhere
    figures["geometric_mean"] = round(statistics.geometric_mean(costs), 3)
    figures["overload_hours"] = round(sum(scored.overload_seconds for _, scored in runs) / 3600, 1)
    figures["rings_resealed"] = round(sum(scored.rings_resealed for _, scored in runs), 1)
    figures["longest_silence_seconds"] = max(scored.silent_seconds for _, scored in runs)
    return figures


def all_regrets(processes: int) -> dict[str, dict[str, object]]:
    """Return the regrets of every rule, computed by that many processes."""
    work = [(row, name) for name in reversed([*FILES]) for row in range(len(ROWS))]
    with ProcessPoolExecutor(processes) as pool:
        done = dict(zip(work, pool.map(run_of, *zip(*work, strict=True)), strict=True))
    return {row.rule: regrets(row, [done[i, name] for name in FILES]) for i, row in enumerate(ROWS)}


def burst(rule: str, conditions: Conditions, times: int, step_before_tick: int = 1) -> dict[str, float]:
    """Simulate a step from half a capacity to `times` times 0.8, in steps of 10 s. Return the minutes of overload, and the minutes summed
    over overloaded segments.
    """
    load = np.where(np.arange(900) < 66 - step_before_tick, 0.5, times * 0.8) * POLICY.split_msg_rate_in
    series = of_messages("burst", load, step_seconds=10)
    roomy = replace(POLICY, max_segments=128)  # with 64, a rule that cuts unevenly never ends the overload
    run: Simulation = simulate(series, rule_named(rule, series, roomy), conditions)
    return {
        "minutes_to_relief": round(float((run.overloaded > 0).sum()) / 6, 1),
        "overloaded_segment_minutes": round(float(run.overloaded.sum()) / 6, 1),
    }


def bursts() -> dict[str, dict[str, object]]:
    """Return each rule's response and the one measured elsewhere, and that of `adaptive` at the worst moment."""
    responses: dict[str, dict[str, object]] = {
        f"{rule}, {times} × 0.8": {
            **burst(rule, conditions, times),
            "minutes_elsewhere": minutes,
            "segment_minutes_elsewhere": segment_minutes,
        }
        for rule, conditions, times, minutes, segment_minutes in BURSTS
    }
    worst = [burst("adaptive", PLAIN, 64, step_before_tick=before) for before in range(1, 7)]
    responses["adaptive, 64 × 0.8, worst moment"] = {
        **{name: max(response[name] for response in worst) for name in worst[0]},
        "minutes_elsewhere": 1.5,
        "segment_minutes_elsewhere": 44,
    }
    return responses


def one_week(rule: str, name: str, mean_load: float, first_day: int) -> tuple[float, float, float, int]:
    """Simulate a week of a trace from a day on. Return days, seconds, processor seconds, and the number of evaluations.

    The time to read the trace is not included, because recorded loads come as tables.
    """
    series = trace(traces(), name, mean_load=mean_load, first_day=first_day)
    started, used = time.perf_counter(), time.process_time()
    run = simulate(series, rule_named(rule, series, POLICY))
    score(run)
    return series.days, time.perf_counter() - started, time.process_time() - used, run.looks


def speed(rule: str, mean_load: float, weeks: int, processes: int) -> dict[str, float]:
    """Return the topic-days per minute of that many processes, with scores; every topic has a week of its own."""
    work = [(rule, name, mean_load, day % 7) for day in range(weeks) for name in FILES]
    with ProcessPoolExecutor(processes) as pool:
        done = list(pool.map(one_week, *zip(*work, strict=True)))
    days, seconds, processor_seconds, looks = (sum(column) for column in zip(*done, strict=True))
    return {
        "topic_days_a_minute": round(days / seconds * 60 * processes),
        "processor_milliseconds_a_topic_day": round(processor_seconds / days * 1000, 2),
        "looks_a_topic_day": round(looks / days, 1),
    }


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weeks", type=int, default=4, help="of each trace and rule, for the speed")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    figures = {
        "benchmark": "policies",
        "machine": machine(),
        "goal": {
            "adaptive_geometric_mean": f"<= {GOAL_REGRET}",
            "topic_days_a_minute": f">= {GOAL_TOPIC_DAYS_A_MINUTE}",
        },
        "cost ÷ least cost": all_regrets(options.processes),
        "burst": bursts(),
        "speed": {
            f"{rule}, mean load {mean_load:g}": speed(rule, mean_load, options.weeks, options.processes)
            for rule in ("pip483", "pravega sf 2")
            for mean_load in (0.3, 1.0, MEAN_LOAD)
        },
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
