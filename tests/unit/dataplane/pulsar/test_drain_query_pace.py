"""When a broker is asked whether a sealed segment is read to its end, and when that is waited for."""

from __future__ import annotations

from typing import cast

import pytest

from controller.dataplane.pulsar import drain_query_pace
from controller.dataplane.pulsar.admin import Deadline
from controller.dataplane.pulsar.cursors import Cursors
from controller.dataplane.pulsar.drain_query_pace import (
    ACKNOWLEDGED_WITHIN_SECONDS,
    ASK_AGAIN_SECONDS,
    DrainCheck,
)


class Broker:
    """Says how many entries are left, one answer after the other; the last one serves for all that follow."""

    def __init__(self, *left: int | None) -> None:
        self.answers = list(left)
        self.asked = 0

    def unread_entries(self, *_: object, **__: object) -> int | None:
        """As `Cursors.unread_entries`."""
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class ManualTime:
    """Goes on when somebody waits."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        """As `time.monotonic`."""
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> ManualTime:
    """The time that `drain_look` sees."""
    found = ManualTime()

    class ScriptedDeadline:
        def wait(self, seconds: float) -> None:
            found.now += seconds

    monkeypatch.setattr(drain_query_pace.time, "monotonic", found.monotonic)
    monkeypatch.setattr(drain_query_pace.threading, "Event", ScriptedDeadline)
    return found


def look_of(broker: Broker) -> DrainCheck:
    return DrainCheck(cast(Cursors, broker), "log", "billing")


def asks(look: DrainCheck, *, is_idle: bool = True) -> bool:
    return look.is_drained(Deadline(30.0), is_idle=lambda: is_idle)


def test_one_whose_hands_are_empty_after_each_message_asks_now_and_then_only(time: ManualTime) -> None:
    broker = Broker(1000)
    look = look_of(broker)
    for _ in range(100):
        look.note_acknowledged(1)
        assert not asks(look)
        time.now += 0.01

    assert broker.asked <= 1 + 100 * 0.01 / ASK_AGAIN_SECONDS
    assert time.now == pytest.approx(1001.0), "nobody waits"


def test_an_asking_that_was_put_off_is_told_once(time: ManualTime) -> None:
    look = look_of(Broker(1000))
    assert not asks(look)
    assert not look.is_due
    assert not asks(look)
    assert not look.is_due

    time.now += ASK_AGAIN_SECONDS

    assert look.is_due
    assert not look.is_due


def test_what_may_be_the_last_is_asked_for_at_once(time: ManualTime) -> None:
    broker = Broker(2, 0)
    look = look_of(broker)
    assert not asks(look)

    look.note_acknowledged(2)

    assert asks(look)
    assert broker.asked == 2


def test_own_acknowledgements_on_their_way_are_waited_for(time: ManualTime) -> None:
    look = look_of(Broker(2, 2, 1, 0))
    look.note_acknowledged(2)

    assert asks(look)


@pytest.mark.parametrize(("left", "is_idle"), [(3, True), (2, False), (None, True)])
def test_what_cannot_come_of_them_is_not(time: ManualTime, left: int | None, is_idle: bool) -> None:
    """More is left than they are, something is in hand here, or the topic is not terminated."""
    broker = Broker(left)
    look = look_of(broker)
    look.note_acknowledged(2)

    assert not asks(look, is_idle=is_idle)
    assert broker.asked == 1


def test_those_that_never_arrive_are_waited_for_no_longer_than_they_take(time: ManualTime) -> None:
    look = look_of(Broker(1))
    look.note_acknowledged(1)

    assert not asks(look)

    assert 1000.0 + ACKNOWLEDGED_WITHIN_SECONDS <= time.now < 1001.0
