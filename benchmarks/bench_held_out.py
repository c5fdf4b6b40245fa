"""Measures the cost of `adaptive` on weeks for which none of its constants were chosen, and of Pulsar's and Pravega's rules.

Three weeks of the Numenta Anomaly Benchmark were used for choosing the constants (taxi, summed tweets, ELB requests, each from its first
day), and ten were not: later weeks of the taxi, the tweets and the ELB trace. They are scaled to a mean load of 5.6 segments each, with
one decision a minute and reshapes without delay, as in `bench_policies`. A regret is the cost divided by the least possible cost; churn
is the number of whole rings sealed per day. Needs the traces below `CLEAVE_TRACES`. Prints one line of JSON; means are geometric.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

from benchmarks.machine import machine
from controller.backtest.load_series import trace
from controller.backtest.optimum import lower_bound
from controller.backtest.rivals.registry import rule_named
from controller.backtest.score import Prices, score
from controller.backtest.simulation import Conditions, simulate
from controller.domain.hash_range import RING_SIZE
from controller.domain.policy import AutoScalePolicy

LOOKED_AT = (("taxi", 0), ("tweets", 0), ("elb", 0))
HELD_OUT = (
    *(("taxi", day) for day in (28, 63, 98, 133, 168, 203)),
    *(("tweets", day) for day in (7, 21, 35)),
    ("elb", 6),
)
RULES = ("adaptive", "pip483 strict", "pravega sf 2")
POLICY = AutoScalePolicy(profile="pip483")


def week(rule: str, name: str, first_day: int) -> tuple[float, float]:
    """Return the regret, and the rings sealed per day, of the rule on one week."""
    series = trace(Path(os.environ["CLEAVE_TRACES"]), name, first_day=first_day)
    load = series.load(POLICY.thresholds.split.rates)
    least = lower_bound(load, Prices(), step_seconds=series.step_seconds, most_segments=POLICY.max_segments)[
        0
    ]
    done = simulate(series, rule_named(rule, series, POLICY), Conditions())
    sealed = sum(parent.width for act in done.acts for parent in act.parents) / RING_SIZE
    return score(done).cost / float(least), sealed / series.days


def geometric(values: Iterable[float]) -> float:
    """Return the geometric mean."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def main() -> None:
    """Measure and print the figures; exit with an error if CLEAVE_TRACES is not set."""
    if "CLEAVE_TRACES" not in os.environ:
        sys.exit("CLEAVE_TRACES names no directory with recorded traces")
    weeks = (*LOOKED_AT, *HELD_OUT)
    cases = list(product(RULES, weeks))
    with ProcessPoolExecutor(2) as processes:
        answers = list(processes.map(week, *zip(*((rule, *of) for rule, of in cases), strict=True)))
    answer_of = dict(zip(cases, answers, strict=True))
    summary = {
        rule: {
            "regret_all_13": round(geometric(answer_of[rule, of][0] for of in weeks), 3),
            "regret_10_held_out": round(geometric(answer_of[rule, of][0] for of in HELD_OUT), 3),
            "rings_sealed_a_day": round(geometric(answer_of[rule, of][1] for of in weeks), 2),
        }
        for rule in RULES
    }
    by_week = {
        f"{name} from day {day}": {rule: round(answer_of[rule, (name, day)][0], 3) for rule in RULES}
        for name, day in weeks
    }
    print(json.dumps({"benchmark": "held_out", "machine": machine(), "rules": summary, "weeks": by_week}))


if __name__ == "__main__":
    main()
