"""`CLEAVE_WORKER_PARALLEL_OPERATIONS` is the number of operations that a worker runs at once."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from controller.bootstrap import Application, build_worker
from controller.services import subscription_admin, topic_admin
from controller.settings import Settings
from tests.support.bench import Bench
from tests.support.faulty_data_plane import FaultyDataPlane
from tests.support.waiting import wait_until

TOPICS = 6


class Gate:
    """Holds calls until `wanted` of them are under way at once, and counts the most there were."""

    def __init__(self, wanted: int) -> None:
        self._turn, self._wanted = threading.Condition(), wanted
        self._inside = self.most = 0

    def pass_through(self, call: str, _number: int) -> None:
        """Wait for the others once; afterwards the gate is open."""
        if call != "create_subscription":
            return
        with self._turn:
            self._inside += 1
            self.most = max(self.most, self._inside)
            self._turn.notify_all()
            assert self._turn.wait_for(lambda: self.most >= self._wanted, timeout=60.0)
        with self._turn:
            self._inside -= 1


@pytest.mark.parametrize("wanted", [1, 3])
def test_a_worker_runs_that_many_operations_at_once(bench: Bench, wanted: int) -> None:
    gate, plane = Gate(wanted), FaultyDataPlane(bench.runner_plane)
    plane.before_call = gate.pass_through
    settings = Settings(database_url=bench.url, worker_parallel_operations=wanted)  # type: ignore[arg-type]
    with closing(Application(settings, bench.store)) as app:
        app.__dict__["planes"] = {bench.plane.name: plane.as_data_plane()}
        names = [f"topic://acme/shop/t-{number}" for number in range(TOPICS)]
        for name in names:
            bench.drive(
                topic_admin.create_topic(
                    bench.store, bench.planes, name, bench.request(name), data_plane=bench.plane.name
                ).operation.operation_id
            )
            subscription_admin.create_subscription(bench.store, name, "s", bench.request(f"{name} s"))
        worker = build_worker(app)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            wait_until(
                lambda: bench.scalar("SELECT count(*) FROM cleave.operation WHERE finished_at IS NULL") == 0
            )
        finally:
            worker.stop()
            thread.join()
    assert gate.most == wanted
