"""One run of the load aggregation that kills itself at a given point: ``python -m tests.chaos.aggregator JSON``.

The points are calls by name and side (`merge:after`), the n-th of a name with its number (`move:2:before`). Which
points a run comes by goes to standard output where it is struck at none.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from controller.domain.load_window import LoadWindow
from controller.landing.history import RateHistory
from controller.landing.location import Location
from controller.landing.schemas import RATE_SCHEMA
from controller.landing.scratch import Scratch
from controller.services.load_aggregation import Landed, SqlEngine
from controller.store.load import records as loads
from controller.store.postgres.engine import Store
from tests.support.aggregation import Run
from tests.support.bench import Bench


class PartitionedRates(SqlEngine):
    """Writes each segment's rates into a file of its own, as executors do."""

    def compute(self, landed: Landed, scratch: Scratch, window: LoadWindow) -> None:
        """Compute, then deal out."""
        super().compute(landed, scratch, window)
        rates = scratch.read("rates", RATE_SCHEMA)
        for path in scratch.rate_files():
            scratch._location.delete(path)
        for row in range(rates.num_rows):
            scratch.write(f"rates/segment-{row}", rates.slice(row, 1))


def main(
    url: str, loader_url: str, directory: str, topic_id: int, run_id: str, minutes: int, at: str
) -> None:
    """Run the window that ends so many minutes after the first one; be killed at `at`."""
    bench, seen, numbers = Bench(url), [], Counter[str]()

    def pass_by(point: str) -> None:
        seen.append(point)
        if point == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def watched(owner: Any, attribute: str, name: str) -> Any:
        real: Callable[..., Any] = getattr(owner, attribute)

        def call(*args: Any, **kwargs: Any) -> Any:
            numbers[name] += 1
            pass_by(f"{name}:{numbers[name]}:before")
            answer = real(*args, **kwargs)
            pass_by(f"{name}:{numbers[name]}:after")
            return answer

        return mock.patch.object(owner, attribute, call)

    store = Store(loader_url, pool_size=2)
    run = Run(bench, store, Path(directory), topic_id)
    with (
        watched(PartitionedRates, "compute", "compute"),
        watched(Scratch, "finish", "note"),
        watched(loads, "stage_and_merge", "merge"),
        watched(RateHistory, "publish", "publish"),
        watched(Location, "move", "move"),
        watched(Scratch, "discard", "discard"),
    ):
        run.aggregate(run_id, minutes=minutes, engine=PartitionedRates(store))
    store.dispose()
    bench.close()
    print(json.dumps(seen), flush=True)  # noqa: T201 - its answer


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
