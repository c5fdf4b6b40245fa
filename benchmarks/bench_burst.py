"""Measures a burst to sixteen times the split threshold: Pulsar 5.0.0-M1's own controller and `adaptive` on the same broker and on 4.2.4.

The systems are those of `bench_pulsar_controllers`, each with a broker of its own, one after the other: `native`, the controller in the
5.0.0-M1 broker with its defaults; `pulsar_scalable`, Cleave attached to scalable topics of such a broker, which halves one segment in
each call; `pulsar`, Cleave on ordinary topics of 4.2.4, where an action creates as many segments as needed. Cleave decides by `adaptive`
in the worker's load lane, with rates over 10 s that are aggregated every 10 s. `pulsar_burst` observes the layouts.

Prints one line of JSON: seconds from the first message until the first split, and until no segment is above the threshold.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from benchmarks.pulsar_burst import ADAPTIVE, TIMES, burst, own_system
from benchmarks.pulsar_systems import NATIVE, PULSAR, SCALABLE
from controller.devstack.postgres import DURABLE, EmbeddedPostgres


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=90.0, help="watched of each burst")
    parser.add_argument("--threshold", type=int, default=500, help="messages a second and segment")
    parser.add_argument(
        "--systems", nargs="*", default=[NATIVE, SCALABLE, PULSAR], choices=[NATIVE, SCALABLE, PULSAR]
    )
    options = parser.parse_args()
    bursts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="cleave-bench-") as name:
        directory = Path(name)
        server = EmbeddedPostgres(directory / "postgres", settings=DURABLE)
        try:
            server.start()
            for system_name in options.systems:
                with own_system(system_name, ADAPTIVE, server, directory / f"burst_{system_name}") as system:
                    bursts[system_name] = burst(
                        system, ADAPTIVE, seconds=options.seconds, threshold=options.threshold
                    )
        finally:
            server.destroy()
    document = {
        "benchmark": "burst",
        "machine": machine(),
        "times_the_threshold": TIMES,
        "threshold_messages_per_second": options.threshold,
        "burst": bursts,
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
