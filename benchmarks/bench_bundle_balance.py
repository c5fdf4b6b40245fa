"""Measures how well each shedder balances a simulated cluster: rounds, moved load, overshoot, oscillation.

There are three events for each size: a random start (`start`), a tenth more brokers that join empty (`join`), a tenth that fail (`fail`).
The events join and fail begin with a cluster that the default shedder has balanced; the largest size has a join alone, half as long. All
shedders have the same clusters, seeds and cycles; a cycle is a minute. For each shedder, over the seeds:

- `std_start` and `std_end`: population standard deviation of usage as a share of the mean, before and after;
- `rounds`: cycles until the share stays at most 0.25 (None: not within the run), of the worst seed;
- `moved`: load moved as a share of all load, and `least` the load that any method must move to reach 0.25, if load were a liquid;
- `overshoot`: points of usage by which the fullest broker exceeded the usage of the fullest at the start, by moves alone;
- `returned`: moves that returned a bundle to a broker it had left; `moves`: all moves.

The named cases of PIP-217, PIP-220 and PIP-364 have the same figures.

`dag` has the figures of the default shedder alone, within the default limits of the DAG `bundle_balance`: the interval of its cycles and
the maximum number of moves in each. Its `minutes` is the time until the cluster stays within 0.25.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.bundle_simulator import Simulation, least_load_to_move, named_case, zipf_cluster
from benchmarks.machine import machine
from controller.bundles.domain.balancing.settings import SHEDDER_NAMES, BalanceSettings
from controller.settings import Settings

TARGET = 0.25
DAG_MOVES: int = Settings.model_fields["bundle_max_unloads"].default
DAG_FILE = Path(__file__).parents[1] / "dags" / "bundle_balance.py"
NAMED = {"90/10": [90, 10], "5x50+0": [50] * 5 + [0], "10/50/70": [10, 50, 70], "12/2/1/1": [12, 2, 1, 1]}
_BYTES_PER_BROKER = 100.0 * 2**20
_CALM_CYCLES = 15
_LARGE = 1_000


def settings_for(shedder: str) -> BalanceSettings:
    """Return Pulsar's defaults with the placement that belongs to the shedder; for `avg` with the advised fraction."""
    placement = {"avg": "planned", "threshold": "least_usage"}.get(shedder, "least_long_term_rate")
    fraction = 0.5 if shedder == "avg" else 0.2
    return BalanceSettings(shedder=shedder, placement=placement, unload_fraction=fraction)


def started(event: str, brokers: int, seed: int) -> Simulation:
    """Return the cluster after the event, at the moment at which the measured shedder begins."""
    simulation = zipf_cluster(brokers, BalanceSettings(), seed)
    if event != "start":
        simulation.run(_CALM_CYCLES)
        for index in range(max(1, brokers // 10)):
            if event == "join":
                simulation.join(f"new-{index:04d}", _BYTES_PER_BROKER)
            else:
                simulation.fail(f"broker-{index:04d}")
    simulation.forget()
    return simulation


def tried(begin: Simulation, shedder: str, cycles: int) -> dict[str, Any]:
    """Return the figures of a shedder from this beginning, which is the same for every shedder."""
    simulation = copy.deepcopy(begin)
    simulation.settings = settings_for(shedder)
    return figures(simulation, cycles)


def figures(simulation: Simulation, cycles: int) -> dict[str, Any]:
    """Run the simulation for `cycles` cycles and return its figures."""
    before = simulation.usage()
    simulation.run(cycles)
    record = simulation.cycles
    carried = sum(before.values())
    moved = sum(cycle.moved_bytes for cycle in record) / 2 / _BYTES_PER_BROKER
    settled = next((i for i in range(cycles) if all(later.spread <= TARGET for later in record[i:])), None)
    fullest = max(max(cycle.usage.values()) for cycle in record)
    stays = simulation.stays.values()
    return {
        "std_start": record[0].spread,
        "std_end": record[-1].spread,
        "rounds": settled,
        "moved": moved / carried,
        "least": least_load_to_move(before, TARGET) / carried,
        "overshoot": max(0.0, fullest - max(before.values())),
        "returned": sum(len(stay) - len(set(stay)) for stay in stays),
        "moves": sum(len(cycle.moves) for cycle in record),
    }


def dag_seconds() -> int:
    """Return the default interval of the DAG, read from the text of its file, because importing the file needs Airflow."""
    default = re.search(r'seconds_from\("CLEAVE_BUNDLE_BALANCE_SECONDS", (\d+)\)', DAG_FILE.read_text())
    if default is None:
        raise RuntimeError(f"{DAG_FILE} has no default of CLEAVE_BUNDLE_BALANCE_SECONDS")
    return int(default[1])


def within_dag_limits(begin: Simulation, cycles: int) -> dict[str, Any]:
    """Return the figures of the default shedder from this beginning, within the limits of the DAG."""
    simulation = copy.deepcopy(begin)
    simulation.settings = BalanceSettings()
    seconds = dag_seconds()
    simulation.cycle_ms, simulation.most_moves = seconds * 1_000, DAG_MOVES
    run_figures = figures(simulation, cycles)
    rounds = run_figures["rounds"]
    return {**run_figures, "minutes": None if rounds is None else rounds * seconds / 60}


def worst(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the means over the seeds; of the rounds the maximum, None if one run did not settle."""
    combined: dict[str, Any] = {}
    for key in runs[0]:
        values = [run[key] for run in runs if run[key] is not None]
        if key in ("rounds", "minutes"):
            combined[key] = max(values) if len(values) == len(runs) else None
        else:
            combined[key] = round(sum(values) / len(values), 3) if values else None
    return combined


def table(sizes: Iterable[int], seeds: int, cycles: int) -> dict[str, Any]:
    """Return the figures by event and size, then by shedder."""
    rows: dict[str, Any] = {}
    for size in sizes:
        # The largest size is there to show that it holds: one seed does.
        large = size >= _LARGE
        for event in ("start", "join", "fail"):
            begins = [started(event, size, seed) for seed in range(1 if large else seeds)]
            rows[f"{event} {size}"] = {
                shedder: worst([tried(begin, shedder, cycles // 2 if large else cycles) for begin in begins])
                for shedder in SHEDDER_NAMES
            }
    return rows


def dag_table(sizes: Iterable[int], seeds: int, cycles: int) -> dict[str, Any]:
    """Return the figures within the limits of the DAG: of the named cases, then by event and size without the largest."""
    rows = {
        name: worst([within_dag_limits(named_case(usages, 40, BalanceSettings()), cycles)])
        for name, usages in NAMED.items()
    }
    for size in (number for number in sizes if number < _LARGE):
        for event in ("start", "join"):
            begins = [started(event, size, seed) for seed in range(seeds)]
            rows[f"{event} {size}"] = worst([within_dag_limits(begin, cycles) for begin in begins])
    return rows


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 100, 1_000])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--cycles", type=int, default=40)
    options = parser.parse_args()
    named = {
        name: {
            s: worst([figures(named_case(usages, 40, settings_for(s)), options.cycles)])
            for s in SHEDDER_NAMES
        }
        for name, usages in NAMED.items()
    }
    print(
        json.dumps(
            {
                "benchmark": "bundle_balance",
                "machine": machine(),
                "cycles": options.cycles,
                "seeds": options.seeds,
                "named": named,
                "zipf": table(options.sizes, options.seeds, options.cycles),
                "dag": dag_table(options.sizes, options.seeds, options.cycles),
            }
        )
    )


if __name__ == "__main__":
    main()
