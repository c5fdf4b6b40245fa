"""Counting what is left entry by entry stops early: a call that takes all its time would fail what asked for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import pytest

from controller.dataplane.pulsar.admin import AdminCalls, Answer, Ask, Deadline
from controller.dataplane.pulsar.stored_entries import MOST_COUNTED, count_unread
from controller.domain.errors import CleaveError, DataPlaneUnavailable

INTERNAL = {"lastConfirmedEntry": "7:999", "ledgers": [{"ledgerId": 7, "entries": 0}]}
CURSOR = {"markDeletePosition": "7:-1", "individuallyDeletedMessages": "[]"}


class Broker:
    """Entries of three messages; after so many waves it does not answer any more."""

    def __init__(self, answers_waves: int = 1000) -> None:
        self.asked = 0
        self._answers_waves = answers_waves

    def ask_all(self, asks: Sequence[Ask], _deadline: Deadline) -> list[Answer | CleaveError]:
        self.asked += len(asks)
        self._answers_waves -= 1
        if self._answers_waves < 0:
            return [DataPlaneUnavailable("away")] * len(asks)
        return [Answer(200, "", "broker", {"X-Pulsar-num-batch-message": "3"})] * len(asks)


class ScriptedDeadline:
    """A deadline with so many seconds left each time that it is asked."""

    def __init__(self, *seconds: float) -> None:
        self._seconds: Iterator[float] = iter(seconds)

    @property
    def left_seconds(self) -> float:
        return next(self._seconds)


def count(broker: Broker, left: ScriptedDeadline, entries: int) -> int:
    admin, deadline = cast(AdminCalls, broker), cast(Deadline, left)
    return count_unread(admin, "persistent://a/b/c", CURSOR, entries, INTERNAL, deadline)


@pytest.mark.parametrize(
    ("broker", "left", "entries", "counted", "asked"),
    [
        (Broker(), ScriptedDeadline(4.0, 4.0, 3.0, 1.9), 1000, 3000, 32),
        (Broker(), ScriptedDeadline(4.0, 1.9), 1000, 1000, 0),
        (Broker(), ScriptedDeadline(*[4.0] * 100), 1000, 3000, MOST_COUNTED),
        (Broker(answers_waves=1), ScriptedDeadline(*[4.0] * 100), 1000, 3000, 32),
        (Broker(), ScriptedDeadline(*[4.0] * 100), 5, 15, 5),
    ],
    ids=[
        "half of the time is gone",
        "half of the time is gone at once",
        "time enough",
        "the broker stops answering",
        "few entries, each asked for once",
    ],
)
def test_it_looks_at_so_many_entries_and_for_half_of_the_time(
    broker: Broker, left: ScriptedDeadline, entries: int, counted: int, asked: int
) -> None:
    assert count(broker, left, entries) == counted
    assert broker.asked == asked
