"""Pulsar 5.0.0-M1's own controller and Cleave, side by side on this machine: consumers, splits, gaps, a burst.

Three systems: `native`, the controller in the 5.0.0-M1 broker; `pulsar`, Cleave on ordinary topics of a 4.2.4 broker;
`pulsar_scalable`, Cleave attached to scalable topics of that same 5.0.0-M1 broker, whose own auto-scaler is off for
them. Each broker is one standalone process; Cleave has PostgreSQL with durable commits and a worker process, for
`pulsar_scalable` a collector too, which asks that broker who consumes every `--consumers-seconds`. The systems take turns,
each round with a fresh topic of one segment and one subscription; before them each does 90 splits, and the first rounds
are not counted (JVMs warm up). All clocks are the machine's monotonic one. "Active" is seen in the layout as clients are
given it: over the broker's REST API, looked at every 5 ms, or in Cleave's rows when PostgreSQL notifies of a change.

- `second_consumer`: from the call that makes the second stream consumer (Java's `subscribe()`, Cleave's `StreamConsumer`)
  until two segments are active. `counted_ms` starts when Cleave's database has it counted (by the machine's calendar clock).
- `split`: from asking (native: `POST split`; Cleave: writing the intent) until both children are active; `answered_ms` is
  when the native call returns. Idle, and with `--rate` messages a second from one producer. `traffic_calls_ms` is the time of the
  calls to the broker alone that such a split needs, without Cleave's journal and worker.
- `publish_gap`: the longest time between two acknowledgements that touch the 1.5 s from the split's asking; `quiet_ms` the
  same in the 1.5 s before, as the clients differ in how they batch. Native and `pulsar_scalable`: the Java v5 client,
  `pulsar`: the stock Python client routed by Cleave's lookup.
- `burst`: see `pulsar_burst`; one system after the other, with `--burst-seconds` watched each, twice: with the policy that
  Pulsar 5 has by default but for the threshold, and with a cooldown of 10 s on both sides. Cleave: profile `pip483`, the
  worker's load lane, rates over 10 s, aggregated every 10 s by PostgreSQL in place of Airflow and Spark.
  The default rate is one that both clients keep up with on two cores; what was acknowledged stands beside it.

Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from benchmarks.machine import machine
from benchmarks.pulsar_burst import PACES, burst, own_system
from benchmarks.pulsar_latencies import latencies
from benchmarks.pulsar_systems import (
    NATIVE,
    PULSAR,
    SCALABLE,
    NativeSystem,
    System,
    cleave_system,
    scalable_plane,
    v5_process,
)
from controller.devstack.postgres import DURABLE, EmbeddedPostgres
from controller.devstack.pulsar.jars import PULSAR_4, PULSAR_5
from controller.devstack.pulsar.standalone import PulsarStandalone
from controller.store.postgres.migrations import migrate


def side_by_side(
    running: ExitStack, server: EmbeddedPostgres, directory: Path, consumers_seconds: float
) -> list[System]:
    """Start all three systems with their brokers."""
    brokers = {}
    for version in (PULSAR_4, PULSAR_5):
        brokers[version] = PulsarStandalone(directory / f"broker-{version}", version)
        running.callback(brokers[version].destroy)
        brokers[version].start()
    v5 = v5_process(running, brokers[PULSAR_5], directory)
    systems: list[System] = [NativeSystem(v5, scalable_plane(running, brokers[PULSAR_5]))]
    for name, broker, client in ((PULSAR, brokers[PULSAR_4], None), (SCALABLE, brokers[PULSAR_5], v5)):
        url = server.create_database(name)
        migrate(url)
        (directory / name).mkdir()
        looks = {"CLEAVE_COLLECT_CONSUMERS_INTERVAL_SECONDS": str(consumers_seconds)} if client else {}
        systems.append(
            cleave_system(
                running, broker, url, directory / name, v5=client, collects=client is not None, settings=looks
            )
        )
    return systems


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=12, help="of each latency, for each system")
    parser.add_argument(
        "--rate", type=float, default=2_000.0, help="messages a second in a split with traffic"
    )
    parser.add_argument(
        "--consumers-seconds", type=float, default=0.1, help="between two looks at who consumes"
    )
    parser.add_argument(
        "--burst-seconds", type=float, default=120.0, help="watched of each burst; 0 leaves it out"
    )
    parser.add_argument("--burst-threshold", type=int, default=500, help="messages a second and segment")
    parser.add_argument(
        "--burst-systems", nargs="*", default=[NATIVE, PULSAR], choices=[NATIVE, PULSAR, SCALABLE]
    )
    options = parser.parse_args()
    load_averages = [psutil.getloadavg()[0]]
    with tempfile.TemporaryDirectory(prefix="cleave-bench-") as name:
        directory = Path(name)
        server = EmbeddedPostgres(directory / "postgres", settings=DURABLE)
        try:
            server.start()
            with ExitStack() as running:
                systems = side_by_side(running, server, directory, options.consumers_seconds)
                figures = latencies(systems, options.rounds, options.rate)
            load_averages.append(psutil.getloadavg()[0])
            bursts: dict[str, dict[str, Any]] = {}
            for pace_name, pace in PACES.items() if options.burst_seconds else ():
                for entry in options.burst_systems:
                    with own_system(entry, pace, server, directory / f"burst_{pace_name}_{entry}") as system:
                        bursts.setdefault(pace_name, {})[entry] = burst(
                            system, pace, seconds=options.burst_seconds, threshold=options.burst_threshold
                        )
        finally:
            server.destroy()
    load_averages.append(psutil.getloadavg()[0])
    document = {
        "benchmark": "pulsar_controllers",
        "machine": machine(),
        "load_average": dict(
            zip(
                ("before", "after_latencies", "after"),
                [round(entry, 1) for entry in load_averages],
                strict=True,
            )
        ),
        "rounds": options.rounds,
        "consumers_looked_at_every_seconds": options.consumers_seconds,
        "traffic_messages_per_second": options.rate,
        **figures,
        "burst_threshold_messages_per_second": options.burst_threshold,
        "burst": bursts,
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
