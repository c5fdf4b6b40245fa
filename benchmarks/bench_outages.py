"""Measures the cost of a database outage: messages lost, deleted unread and late, and the seconds until every client continues.

Each scenario of `tests/support/outage_scenarios.py` runs on the embedded logs and on a Pulsar 4.2.4: two producers of 40 messages per
second, two consumers, one worker with the default time-outs, and a private primary with its standby behind one fixed port.
`messages_lost` were acknowledged and are missing; `lost_with_server` were acknowledged by a server that was no longer replicated or
backed up, so that embedded logs lose them with the server. Seconds count from the moment at which the promoted or restored server
answers; None: not within the scenario's limit. Messages are sums over the rounds, seconds the longest of any client and round. Prints one
line of JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from controller import telemetry
from controller.devstack.pulsar.standalone import PulsarStandalone
from tests.support.bench_planes import PulsarTopic
from tests.support.outage_outcome import LATE_SECONDS, Outcome
from tests.support.outage_scenarios import SCENARIOS, Scenario, play
from tests.support.outage_scene import prepare
from tests.support.replicated_postgres import ReplicatedPostgres
from tests.support.scratch import ENOUGH_BYTES, IN_MEMORY

PLANES = ("embedded", "pulsar")
GOALS = {"messages_lost": 0, "deleted_unread": 0, "out_of_order": 0}


def longest(seconds: Sequence[float | None]) -> float | None:
    """Return the longest of the times; None if one of them is None."""
    known = [time for time in seconds if time is not None]
    return max(known) if len(known) == len(seconds) else None


def figures(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the figures of one scenario on one plane: sums of messages, and the longest times."""
    readings = [reading for outcome in outcomes for reading in (outcome.live, outcome.audit)]
    return {
        "acknowledged": sum(outcome.acknowledged for outcome in outcomes),
        "messages_lost": sum(max(outcome.live.lost, outcome.audit.lost) for outcome in outcomes),
        "lost_after_outage": sum(
            max(outcome.live.lost_after, outcome.audit.lost_after) for outcome in outcomes
        ),
        "lost_with_server": sum(
            max(outcome.live.lost_with_server, outcome.audit.lost_with_server) for outcome in outcomes
        ),
        "deleted_logs": sum(len(outcome.deleted_logs) for outcome in outcomes),
        "deleted_unread": sum(outcome.deleted_unread for outcome in outcomes),
        "late": sum(outcome.late for outcome in outcomes),
        "out_of_order": sum(reading.out_of_order for reading in readings),
        "duplicates": sum(reading.duplicates for reading in readings),
        "outage_seconds": max(outcome.outage_seconds for outcome in outcomes),
        "producers_seconds": longest([s for outcome in outcomes for s in outcome.producer_seconds.values()]),
        "every_key_seconds": longest([s for outcome in outcomes for s in outcome.every_key_seconds.values()]),
        "consumers_seconds": longest([s for outcome in outcomes for s in outcome.consumer_seconds.values()]),
        "reshape_seconds": longest([outcome.reshape_seconds for outcome in outcomes]),
        "longest_pause_seconds": max(
            s for outcome in outcomes for s in outcome.longest_pause_seconds.values()
        ),
    }


class OutageServers:
    """The servers that every scenario uses."""

    def __init__(self, directory: Path, running: ExitStack, planes: Sequence[str]) -> None:
        self.directory, self._number = directory, 0
        self.cluster = running.enter_context(ReplicatedPostgres(directory / "postgres"))
        prepare(self.cluster)
        self._broker: PulsarStandalone | None = None
        if "pulsar" in planes:
            self._broker = PulsarStandalone(directory / "pulsar")
            running.callback(self._broker.destroy)
            self._broker.start()

    def play(self, scenario: Scenario, plane: str) -> Outcome:
        """Run one round of the scenario on one plane, and return its outcome."""
        self._number += 1
        directory = self.directory / f"scene-{self._number}"
        directory.mkdir()
        return play(scenario, self.cluster, directory, [self._topic(plane)])[plane]

    def _topic(self, plane: str) -> PulsarTopic | None:
        if plane == "embedded":
            return None
        assert self._broker is not None
        return PulsarTopic.fresh(self._broker.admin_url, self._broker.service_url, "outages")


MEASURED = (
    "synchronous fail-over",
    "asynchronous fail-over",
    "restore",
    "restore, split intended",
    "frozen primary",
    "clock 300 s behind",
)


def measure(
    servers: OutageServers, names: Sequence[str], planes: Sequence[str], rounds: int
) -> dict[str, Any]:
    """Run each scenario that this machine supports, and return the figures by plane."""
    by_plane: dict[str, dict[str, Any]] = {}
    for name in names:
        scenario = SCENARIOS[name]
        if scenario.missing:
            print(f"{name}: {scenario.missing}", file=sys.stderr)
            continue
        for plane in planes:
            outcomes = [servers.play(scenario, plane) for _ in range(rounds)]
            print("\n".join([f"== {name}", *map(str, outcomes)]), file=sys.stderr, flush=True)
            by_plane.setdefault(name, {})[plane] = figures(outcomes)
    return by_plane


def run(options: argparse.Namespace) -> Mapping[str, Any]:
    """Measure on private servers, in memory if there is room. Return the document."""
    in_memory = shutil.disk_usage(IN_MEMORY).free >= ENOUGH_BYTES if IN_MEMORY.is_dir() else False
    directory = Path(tempfile.mkdtemp(prefix="cleave-outages-", dir=IN_MEMORY if in_memory else None))
    directory.chmod(0o711)
    with ExitStack() as running:
        running.callback(shutil.rmtree, directory, ignore_errors=True)
        servers = OutageServers(directory, running, options.planes)
        return measure(servers, options.scenarios, options.planes, options.rounds)


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1, help="of each scenario on each plane")
    parser.add_argument("--scenarios", nargs="+", choices=list(SCENARIOS), default=MEASURED)
    parser.add_argument("--planes", nargs="+", choices=PLANES, default=list(PLANES))
    options = parser.parse_args()
    telemetry.configure_logging(level=logging.CRITICAL)
    document = run(options)
    print(
        json.dumps(
            {
                "benchmark": "outages",
                "machine": machine(),
                "goal": GOALS,
                "late_after_seconds": LATE_SECONDS,
                "rounds": options.rounds,
                "outages": document,
            }
        )
    )


if __name__ == "__main__":
    main()
