"""What a worker says while it cannot begin."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from controller.domain.errors import InvariantViolated, Retryable
from controller.services.worker import worker as module
from controller.services.worker.worker import Worker, running


class RecordingPart:
    """Stands for loop, leases and listener: nothing is done, and what would be waited for is noted."""

    is_stopping = False

    def __init__(self) -> None:
        self.pauses: list[float] = []
        self.rounds = 0

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def round(self) -> bool:
        self.rounds += 1
        return True


def test_what_keeps_it_from_beginning_is_said_once_however_often_it_looks() -> None:
    told = RecordingPart()
    refusals: Iterator[str | None] = iter(["behind", "behind", "behind", "ahead", "ahead", None])

    def demand_schema() -> None:
        if (refusal := next(refusals)) is not None:
            raise Retryable(refusal)

    stands_for: Any = told
    worker = Worker(stands_for, stands_for, stands_for, schema=demand_schema)
    with capture_logs() as lines:
        assert cast(Any, worker)._take_shards()

    assert [line["error"] for line in lines] == ["behind", "ahead"]
    assert told.rounds == 1
    assert told.pauses == pytest.approx(
        [min(module.FIRST_WAIT_SECONDS * 2**n, module.LONGEST_WAIT_SECONDS) for n in range(5)]
    )


class EndedPart:
    """Stands for a part of a worker: it has nothing to do, and notes how it was ended."""

    is_stopping = False
    terms: Any = {}
    refused = None

    def __init__(self, name: str, ended: list[str], fault: Exception | None = None) -> None:
        self._name, self._ended, self._fault = name, ended, fault

    def run(self, *_: object) -> None:
        """Over at once."""
        self.is_stopping = True

    def round(self) -> bool:
        return True

    def rescan(self) -> None:
        """Nothing."""

    def stop(self) -> None:
        self._ended.append(f"{self._name} stopped")
        if self._fault is not None:
            raise self._fault

    def resign(self) -> None:
        self._ended.append(f"{self._name} resigned")

    def close(self) -> None:
        self._ended.append(f"{self._name} closed")


class Part(EndedPart):
    """What is beside the loop: it runs until it is stopped."""

    def __init__(self, name: str, ended: list[str], fault: Exception | None = None) -> None:
        super().__init__(name, ended, fault)
        self._over = threading.Event()

    def run(self, *_: object) -> None:
        self._over.wait(30.0)

    def stop(self) -> None:
        self._over.set()
        super().stop()


class RunningPart(EndedPart):
    """A loop: it runs until it is stopped."""

    def __init__(self, name: str, ended: list[str]) -> None:
        super().__init__(name, ended)
        self._over = threading.Event()

    def run(self, *_: object) -> None:
        assert self._over.wait(30.0)

    def stop(self) -> None:
        self.is_stopping = True
        self._over.set()


@pytest.mark.parametrize("fault", [None, ValueError("²")])
def test_a_part_that_ends_by_itself_ends_the_worker_so_that_it_is_started_again(
    fault: Exception | None,
) -> None:
    ended: list[str] = []
    parts: Any = {name: EndedPart(name, ended) for name in ("leases", "listener")}
    loop: Any = RunningPart("loop", ended)
    part: Any = EndedPart("part", ended)

    def run() -> None:
        if fault is not None:
            raise fault

    part.run = run
    with capture_logs() as lines, pytest.raises(InvariantViolated, match="EndedPart ended by itself"):
        Worker(loop, parts["leases"], parts["listener"], (part,)).run()

    assert "leases resigned" in ended
    assert [one["event"] for one in lines] == ([] if fault is None else ["a part of the process failed"])


def test_a_part_that_ends_by_itself_ends_a_process_without_a_loop() -> None:
    ended: list[str] = []
    parts: Any = (EndedPart("one", ended), Part("other", ended))
    leave = threading.Event()

    with pytest.raises(InvariantViolated, match="EndedPart ended by itself"), running(parts, leave):
        assert leave.wait(30.0)

    assert ended == ["one stopped", "other stopped"]


def test_an_error_that_nobody_expected_keeps_a_worker_from_beginning_only_for_a_while() -> None:
    told = RecordingPart()
    refusals: Iterator[Exception | None] = iter([ValueError("²"), None])

    def demand_schema() -> None:
        if (refusal := next(refusals)) is not None:
            raise refusal

    stands_for: Any = told
    with capture_logs() as lines:
        assert cast(Any, Worker(stands_for, stands_for, stands_for, schema=demand_schema))._take_shards()

    assert [(one["error"], type(one["exc_info"])) for one in lines] == [("²", ValueError)]


def test_what_fails_to_stop_keeps_nothing_else_from_its_end() -> None:
    """Leases that are not given back keep their topics from everybody until they expire."""
    ended: list[str] = []
    parts: Any = {name: EndedPart(name, ended) for name in ("loop", "leases", "listener")}
    first: Any = Part("first", ended)
    failing: Any = Part("failing", ended, RuntimeError("stuck"))
    worker = Worker(parts["loop"], parts["leases"], parts["listener"], (first, failing))

    with pytest.raises(RuntimeError, match="stuck"):
        worker.run()

    assert ended == [
        "failing stopped",
        "first stopped",
        "leases stopped",
        "leases resigned",
        "listener closed",
    ]
