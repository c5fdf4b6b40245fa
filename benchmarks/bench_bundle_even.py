"""Balances a real cluster with the default shedder: two brokers of Pulsar 4.2.4, all traffic on one, then the DAG `bundle_balance`.

As `bench_bundle_cluster`, but every parameter has its default. So brokers are compared by their usage, and each is in its own control
group (controller/devstack/control_group.py): it reports its own processor against its own limit. Brokers read their processor once a
minute, and `even` acts on the second report with the same result: a cycle follows each report. The benchmark ends when two cycles in a
row propose nothing. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import requests

from benchmarks.bench_bundle_cluster import NAMESPACE, SHARES, Runs, enable, of_cycles, replayed, surroundings
from benchmarks.fresh_store import fresh_store
from benchmarks.machine import machine
from benchmarks.steady_traffic import PAYLOAD_BYTES, SteadyTraffic
from benchmarks.uneven_namespace import CALL_SECONDS, UnevenNamespace, make, spread
from controller.devstack.control_group import ControlGroup
from controller.devstack.pulsar.cluster import CALM, PulsarCluster
from controller.devstack.pulsar.java_server import QUICK
from controller.store.postgres.engine import Store
from tests.support.airflow_home import prepare

GOAL = 0.25
"""`even_target_spread`: standard deviation of usage over its mean."""
REPORT_SECONDS = 62.0
"""Pulsar's `loadBalancerHostUsageCheckIntervalMinutes` is 1."""


def usages(brokers: dict[str, str]) -> dict[str, float]:
    """Return the processor usage of each broker divided by its limit, as the broker reports it."""
    usage_by_broker = {}
    for name, url in brokers.items():
        answer = requests.get(f"{url}/admin/v2/broker-stats/load-report", timeout=CALL_SECONDS)
        answer.raise_for_status()
        processor = answer.json()["cpu"]
        usage_by_broker[name] = processor["usage"] / processor["limit"]
    return usage_by_broker


def measure(store: Store, uneven: UnevenNamespace, most_cycles: int) -> dict[str, Any]:
    """Move all bundles to one broker, run the DAG until it proposes nothing, at most `most_cycles` times, and return the figures. Traffic
    continues meanwhile.
    """
    brokers = dict(uneven.brokers)
    uneven.move_all_to(min(brokers))
    time.sleep(2 * REPORT_SECONDS)  # what the brokers tell first is of the moves
    before, runs = told(uneven), Runs()
    proposed = list[int]()
    for _ in range(most_cycles):
        cycle = runs.once()
        if not proposed:  # it was a dry run, as every namespace begins with
            enable(store)
        proposed.append(len(cycle["proposals"]))
        if sum(proposed) and proposed[-2:] == [0, 0]:
            break
        time.sleep(REPORT_SECONDS)
    moves = of_cycles(store, 0)
    return {
        "before": before,
        "after": told(uneven),
        "goal_std_over_mean": GOAL,
        "proposed_by_cycle": proposed,
        "moves": {
            state.value: sum(row.state is state for row in moves) for state in {r.state for r in moves}
        },
        "replay": replayed(store),
    }


def told(uneven: UnevenNamespace) -> dict[str, Any]:
    """Return usage and traffic of the brokers, and the standard deviation of each."""
    used, rates = usages(dict(uneven.brokers)), uneven.message_rates()
    return {
        "usage": [round(usage, 3) for _, usage in sorted(used.items())],
        "usage_std_over_mean": round(statistics.pstdev(used.values()) / statistics.mean(used.values()), 3),
        "messages_per_second_in_and_out": [round(rate, 1) for _, rate in sorted(rates.items())],
        "messages_std_over_mean": round(spread(rates), 3),
    }


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=1_000.0, help="messages a second into the namespace")
    parser.add_argument("--cores", type=float, default=0.6, help="of processor for each broker")
    parser.add_argument("--cycles", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cleave-bench-") as name, ExitStack() as running:
        directory = Path(name)
        store = running.enter_context(fresh_store(directory / "postgres"))
        groups = {
            f"broker-{number}": running.enter_context(
                ControlGroup(f"cleave-bench-{os.getpid()}-{number}", options.cores)
            )
            for number in range(2)
        }
        cluster = running.enter_context(
            PulsarCluster(directory / "pulsar", jvm=QUICK, properties=CALM, groups=groups)
        )
        os.environ |= surroundings(store.address, cluster, directory)
        del os.environ["CLEAVE_BUNDLE_BALANCE"]  # every parameter at its default
        prepare(directory / "airflow")
        brokers = {broker.broker_id: broker.admin_url for broker in cluster.brokers}
        rates = [options.rate * share / sum(SHARES) for share in SHARES]
        uneven = make(cluster.admin_url, brokers, NAMESPACE, rates)
        with SteadyTraffic(cluster.service_url, uneven.rates) as traffic:
            figures = measure(store, uneven, options.cycles)
            count = traffic.finish()
    document = {
        "benchmark": "bundle_even",
        "machine": machine(),
        "load_average": round(psutil.getloadavg()[0], 1),
        "messages_per_second": options.rate,
        "cores_of_each_broker": options.cores,
        "payload_bytes": PAYLOAD_BYTES,
        "bundles": len(SHARES),
        **figures,
        "messages": asdict(count),
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
