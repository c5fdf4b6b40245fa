"""A runner in a process of its own that strikes itself at a given point: ``python -m tests.chaos.victim JSON``.

With `keeps_gates` it is one round of a gate keeper in place of a runner. The point is a checkpoint (`commit:before`) or a data-plane call by number (`call:3`, just before it is
made). SIGKILL ends it there; SIGSTOP pauses it until somebody continues it. How its run ended goes to standard output.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping

from controller.clock import SystemClock
from controller.services.gate_keeper import GateKeeper
from controller.services.operation_runner import Outcome, RunnerContext, run_due, run_operation
from tests.support.bench import Bench
from tests.support.bench_planes import PulsarTopic
from tests.support.faulty_data_plane import FaultyDataPlane
from tests.support.gated_logs import ALL, GatedBench


def main(
    url: str,
    at: str,
    by: str,
    operation_id: int | None = None,
    pulsar: Mapping[str, str] | None = None,
    gated: bool = False,
    keeps_gates: bool = False,
) -> None:
    """Run the operation, or without one whatever is due side by side, to its end or to `at`.

    `pulsar`: the fields of an `PulsarTopic`, where the topic is on a broker. `gated`: the embedded logs have gates.
    """
    points = {at}

    def strike(name: str) -> None:
        if name in points:
            points.discard(name)
            os.kill(os.getpid(), signal.Signals[by])

    bench = GatedBench(url) if gated else Bench(url, None if pulsar is None else PulsarTopic(**pulsar))
    name = bench.plane.name
    plane = FaultyDataPlane(bench.planes[name])
    plane.before_call = lambda _call, number: strike(f"call:{number}")
    if keeps_gates:
        planes = {name: plane.as_data_plane()}
        GateKeeper(bench.store, planes, lambda: ALL, SystemClock(), checkpoint=strike).round()
        bench.close()
        return
    context = bench.context(f"victim-{os.getpid()}", planes={name: plane.as_data_plane()}, checkpoint=strike)
    if operation_id is None:
        bench.wait_until(lambda: run_due(context, limit=8) == 0 and not bench.live_operations())
    else:
        print(run_to_end(bench, context, operation_id), flush=True)  # noqa: T201 - its answer
    bench.close()


def run_to_end(bench: Bench, context: RunnerContext, operation_id: int) -> Outcome:
    """Run the operation until it is over, whoever ends it, and return how the last run ended.

    A claim runs out without another runner where the machine is slow. The victim takes it up again, because it may not
    have come by its point yet.
    """
    outcomes: list[Outcome] = []

    def over() -> bool:
        outcomes.append(run_operation(context, operation_id))
        return not bench.operation(operation_id).state.is_live

    bench.wait_until(over, message="the victim's operation is over")
    return outcomes[-1]


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
