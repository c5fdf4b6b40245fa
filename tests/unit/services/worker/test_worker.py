"""What a worker says while it cannot begin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from controller.domain.errors import Retryable
from controller.services.worker import worker as module
from controller.services.worker.worker import Worker


class Told:
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
    told = Told()
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
    assert told.pauses == pytest.approx([min(module.FIRST_WAIT_SECONDS * 2**n, 15.0) for n in range(5)])
