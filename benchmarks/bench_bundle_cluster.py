"""Balances a real cluster: two brokers of Pulsar 4.2.4, all traffic on one, then the DAG `bundle_balance`.

Everything is fresh: ZooKeeper, bookie, brokers, PostgreSQL, an Airflow home and a Spark session of this process. One namespace of eight
bundles with uneven rates is on the first broker. A dry run shows its proposals; then the namespace is automatic and the DAG runs until
the brokers' message rates are level and every move has ended. Rates are read from the brokers directly; `std_over_mean` is their
population standard deviation divided by their mean. The brokers move nothing by themselves; `uneven_namespace` has the parameters in
force and their reasons. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import requests

from benchmarks.fresh_store import fresh_store
from benchmarks.machine import machine
from benchmarks.steady_traffic import PAYLOAD_BYTES, SteadyTraffic
from benchmarks.uneven_namespace import CALL_SECONDS, PARAMETERS, UnevenNamespace, make, spread
from controller.bundles.brokers import BundleActions, BundleReader
from controller.bundles.domain.ring import NamespaceBundle
from controller.bundles.services import balancer as bundle_balancer
from controller.bundles.store import cycles as bundle_cycles
from controller.bundles.store import namespaces as bundle_namespaces
from controller.bundles.store import proposals as bundle_proposals
from controller.bundles.store.namespaces import BalancingMode
from controller.bundles.store.proposals import ProposalRow, ProposalState
from controller.dataplane.pulsar_load.brokers import BrokerList
from controller.devstack.java import java_home
from controller.devstack.pulsar.cluster import CALM, CLUSTER_NAME, PulsarCluster
from controller.devstack.pulsar.java_server import QUICK
from controller.postgres.address import DatabaseAddress
from controller.questions.question import read_view
from controller.settings import PROJECT_ROOT
from controller.store.postgres.engine import Store
from tests.support.airflow_home import prepare

DAG, NAMESPACE = "bundle_balance", "bench/uneven"
SHARES = (100, 60, 40, 30, 25, 20, 15, 10)
"""Of the traffic, by bundle; two topics each."""
GOAL = 0.25
ENDED = (ProposalState.VERIFIED, ProposalState.FAILED)


@dataclass
class Runs:
    """Runs of the DAG in this process, with the duration of each run and each task."""

    seconds: list[float] = field(default_factory=list)
    tasks: dict[str, list[float]] = field(default_factory=dict)

    def once(self) -> Any:
        """Run the DAG once, record its seconds, and return the result of its task `propose`. Raises RuntimeError if the run fails."""
        from airflow.dag_processing.dagbag import DagBag

        path = str(PROJECT_ROOT / "dags" / f"{DAG}.py")
        started = time.perf_counter()
        run = DagBag(path, bundle_name="dags-folder").dags[DAG].test()
        self.seconds.append(time.perf_counter() - started)
        if run.state != "success":
            raise RuntimeError(f"a run of {DAG} is {run.state}; its log is above")
        instances = {task_instance.task_id: task_instance for task_instance in run.get_task_instances()}
        for name, task_instance in instances.items():
            self.tasks.setdefault(name, []).append(task_instance.duration or 0.0)
        return instances["propose"].xcom_pull(task_ids="propose")


def surroundings(address: DatabaseAddress, cluster: PulsarCluster, directory: Path) -> dict[str, str]:
    """Return the environment variables with which the DAG finds the servers."""
    return {
        "AIRFLOW_CONN_CLEAVE": address.uri.replace("postgresql://", "postgres://", 1),
        "CLEAVE_PULSAR_ADMIN_URL": cluster.admin_url,
        "CLEAVE_PULSAR_CLUSTER": CLUSTER_NAME,
        "CLEAVE_BUNDLE_REPORTS_URL": str(directory / "reports"),
        "CLEAVE_BUNDLE_BALANCE": json.dumps(dict(PARAMETERS)),
        "CLEAVE_CALL_TIMEOUT_SECONDS": "30",
        "SPARK_MASTER": "local[2]",
        "JAVA_HOME": str(java_home(directory)),
    }


def of_cycles(store: Store, since: int) -> list[ProposalRow]:
    """Return the proposals of the cycles after cycle `since`."""
    with store.transaction() as tx:
        proposals = bundle_proposals.list_proposals(tx, CLUSTER_NAME)
    return [row for row in proposals if row.cycle_id > since]


def enable(store: Store) -> None:
    """Set the namespace to automatic."""
    with store.transaction() as tx:
        row_version = bundle_namespaces.get_namespace(tx, CLUSTER_NAME, NAMESPACE).row_version
        mode, key = BalancingMode.AUTOMATIC, (CLUSTER_NAME, NAMESPACE)
        bundle_namespaces.set_mode(tx, *key, mode, actor="benchmark", seen_row_version=row_version)


def replayed(store: Store) -> dict[str, int]:
    """Return the number of stored cycles, and of those whose replay has another result."""
    with store.transaction() as tx:
        rows = read_view(tx, "inspect.bundles_imbalance", "cluster = :cluster", cluster=CLUSTER_NAME)
        cycles = [bundle_cycles.get_cycle(tx, row["cycle_id"]) for row in rows]
    differing = sum(not bundle_balancer.replay(cycle).is_same for cycle in cycles)
    return {"cycles": len(cycles), "differing": differing}


def measure(store: Store, uneven: UnevenNamespace, most_cycles: int) -> dict[str, Any]:
    """Move all bundles to one broker, run the DAG until the rates are level, at most `most_cycles` times, and return the figures. Traffic
    continues meanwhile.
    """
    full, runs = min(uneven.brokers), Runs()
    uneven.move_all_to(full)
    before = uneven.message_rates()
    shown = runs.once()
    owners = uneven.owners()
    enable(store)
    after, moves = before, []
    for _ in range(most_cycles):
        runs.once()
        after, moves = uneven.message_rates(), of_cycles(store, shown["cycle_id"])
        if spread(after) <= GOAL and all(row.state in ENDED for row in moves):
            break
    warm = runs.seconds[1:]
    return {
        "before": _told(before),
        "dry_run": {"proposed": len(shown["proposals"]), "moved": sum(o != full for o in owners.values())},
        "after": _told(after),
        "goal_std_over_mean": GOAL,
        "cycles": len(warm),
        "moves": {
            state.value: sum(row.state is state for row in moves) for state in {r.state for r in moves}
        },
        "moved_share": round(carried(moves) / sum(before.values()), 3),
        "seconds_first_cycle": round(runs.seconds[0], 1),
        "seconds_a_cycle": round(statistics.mean(warm), 1),
        "seconds_a_task": {
            name: round(statistics.mean(seconds[1:]), 2) for name, seconds in runs.tasks.items()
        },
        "replay": replayed(store),
    }


def carried(moves: list[ProposalRow]) -> float:
    """Return the messages per second of the bundles whose moves are verified."""
    return sum(float(row.detail["load"]) for row in moves if row.state is ProposalState.VERIFIED)


def destinations_kept(uneven: UnevenNamespace, rounds: int) -> dict[str, Any]:
    """Return the numbers of moves that ended at their destination, of unloads as `pulsar-admin` performs them and of Cleave's, under
    traffic.
    """
    with requests.Session() as session:
        brokers = BrokerList(session, [uneven.admin_url])
        reader = BundleReader(session, brokers, cluster=CLUSTER_NAME, deadline_seconds=CALL_SECONDS)
        acts = BundleActions(session, reader)

        def by_cleave(bundle: NamespaceBundle, destination: str) -> str | None:
            return acts.unload(bundle, destination=destination).owner

        ways = {"plain": lambda bundle, to: uneven.unload(str(bundle), to), "cleave": by_cleave}
        arrived = dict.fromkeys(ways, 0)
        for _ in range(rounds):
            for name, way in ways.items():
                for bundle in uneven.bundles.bundles:
                    [destination] = uneven.brokers.keys() - {uneven.owner_of(str(bundle))}
                    way(bundle, destination)
                    arrived[name] += uneven.owner_of(str(bundle)) == destination
    return {"moves_each": rounds * len(uneven.bundles.bundles), **arrived}


def _told(rates: dict[str, float]) -> dict[str, Any]:
    return {
        "messages_per_second_in_and_out": [round(rate, 1) for _, rate in sorted(rates.items())],
        "std_over_mean": round(spread(rates), 3),
    }


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=600.0, help="messages a second into the namespace")
    parser.add_argument("--cycles", type=int, default=10, help="at most so many after the dry run")
    parser.add_argument("--rounds", type=int, default=2, help="moves of each bundle, either way")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cleave-bench-") as name, ExitStack() as running:
        directory = Path(name)
        store = running.enter_context(fresh_store(directory / "postgres"))
        cluster = running.enter_context(PulsarCluster(directory / "pulsar", jvm=QUICK, properties=CALM))
        os.environ |= surroundings(store.address, cluster, directory)
        prepare(directory / "airflow")
        brokers = {broker.broker_id: broker.admin_url for broker in cluster.brokers}
        rates = [options.rate * share / sum(SHARES) for share in SHARES]
        uneven = make(cluster.admin_url, brokers, NAMESPACE, rates)
        with SteadyTraffic(cluster.service_url, uneven.rates) as traffic:
            figures = measure(store, uneven, options.cycles)
            figures["destination_kept"] = destinations_kept(uneven, options.rounds)
            count = traffic.finish()
    document = {
        "benchmark": "bundle_cluster",
        "machine": machine(),
        "load_average": round(psutil.getloadavg()[0], 1),
        "messages_per_second": options.rate,
        "payload_bytes": PAYLOAD_BYTES,
        "bundles": len(SHARES),
        "topics": len(uneven.rates),
        **figures,
        "messages": asdict(count),
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
