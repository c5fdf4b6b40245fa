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
    """Entries of three messages, or of what the header says; after so many waves it does not answer any more."""

    def __init__(self, answers_waves: int = 1000, messages: str = "3") -> None:
        self.asked = 0
        self._answers_waves, self._headers = answers_waves, {"X-Pulsar-num-batch-message": messages}

    def ask_all(self, asks: Sequence[Ask], _deadline: Deadline) -> list[Answer | CleaveError]:
        self.asked += len(asks)
        self._answers_waves -= 1
        if self._answers_waves < 0:
            return [DataPlaneUnavailable("away")] * len(asks)
        return [Answer(200, "", "broker", self._headers)] * len(asks)


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


def test_a_count_that_is_no_number_is_an_error_of_the_data_plane() -> None:
    with pytest.raises(DataPlaneUnavailable, match="entry 7:0 does not say which messages it contains"):
        count(Broker(messages="many"), ScriptedDeadline(*[4.0] * 100), 5)
