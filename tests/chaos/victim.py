"""A runner in a process of its own that strikes itself at a given point: ``python -m tests.chaos.victim JSON``.

With `keeps_gates` the process runs one round of a gate keeper instead of an operation. The point is a checkpoint (`commit:before`), or
just before a call of the data plane (`call:3`), or just before a request of a gate keeper to a broker, by its number or by the beginning of
its purpose (`request:3`, `request:take over`). SIGKILL ends the process there; SIGSTOP pauses the process until it is continued. The
process prints how its run ended; a gate keeper prints the purpose of each request.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping

from controller.clock import SystemClock
from controller.dataplane.pulsar.admin import AdminCalls, Answer, Ask, Deadline
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
        strike_at_requests(at, strike)
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


def strike_at_requests(at: str, strike: Callable[[str], None]) -> None:
    """Print each request to a broker's admin API and strike before it, if `at` names it."""
    perform, numbers, wanted = AdminCalls._perform, itertools.count(1), at.removeprefix("request:")

    def perform_or_strike(self: AdminCalls, ask: Ask, deadline: Deadline) -> Answer:
        number = next(numbers)
        print(ask.purpose, flush=True)  # noqa: T201 - the test counts the requests
        strike(at if wanted != at and ask.purpose.startswith(wanted) else f"request:{number}")
        return perform(self, ask, deadline)

    AdminCalls._perform = perform_or_strike  # type: ignore[method-assign]


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
