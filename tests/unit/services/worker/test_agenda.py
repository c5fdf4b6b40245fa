"""The agenda on times of the test's choice: what is due when, and how long the loop waits until then."""

from __future__ import annotations

import math
from typing import Any

import pytest

from controller.domain.decision import Lane
from controller.services.worker.agenda import (
    BUSY_SECONDS,
    FIRINGS_KEPT_SECONDS,
    SHORTEST_WAIT_SECONDS,
    Agenda,
    Firing,
)
from controller.services.worker.work import NOTHING, Work

SWEEP_SECONDS = 30.0
START = 1000.0
LOAD = Work(frozenset({Lane.LOAD}), None)
MERGE = Work(frozenset({Lane.MERGE}), None)
JOURNAL = Work(operations=True)


@pytest.fixture
def agenda() -> Agenda:
    """An agenda whose sweep was at START, and whose sensors have not been asked."""
    one = Agenda(SWEEP_SECONDS)
    one.start_sweep(START)
    return one


def take(agenda: Agenda, now: float, *, waited: float = 1.0, was_notified: bool = False) -> Work | None:
    """What fires after a wait of that many seconds."""
    return agenda.take_firing(now, waited_since=now - waited, was_notified=was_notified)


def test_a_new_agenda_wants_a_sweep_at_once_and_the_sensors_asked() -> None:
    fresh = Agenda(SWEEP_SECONDS)
    assert fresh.is_sweep_due(0.0)
    assert fresh.must_ask_sensors(0.0)


def test_a_sweep_is_due_so_long_after_the_last(agenda: Agenda) -> None:
    assert not agenda.is_sweep_due(START + SWEEP_SECONDS - 0.001)
    assert agenda.is_sweep_due(START + SWEEP_SECONDS)


@pytest.mark.parametrize(
    ("firings", "now", "wait_seconds"),
    [([], START + 2, SWEEP_SECONDS - 2), ([Firing(2, LOAD)], START + 1.5, 1.5)],
    ids=["until the sweep", "until a sensor fires"],
)
def test_a_wait_ends_with_the_sweep_or_the_first_firing(
    agenda: Agenda, firings: list[Firing], now: float, wait_seconds: float
) -> None:
    """A firing counts from the instant before the sensors were asked."""
    agenda.note_firings(firings, START + 1)
    assert agenda.wait_seconds(now) == wait_seconds


def test_a_firing_after_the_sweep_is_left_to_the_sweep(agenda: Agenda) -> None:
    agenda.note_firings([Firing(SWEEP_SECONDS + 1, LOAD)], START)
    assert agenda.wait_seconds(START) == SWEEP_SECONDS
    assert take(agenda, START + SWEEP_SECONDS) == NOTHING


@pytest.mark.parametrize(
    ("firings", "after", "wait", "fired"),
    [
        ([Firing(SWEEP_SECONDS, LOAD)], SWEEP_SECONDS, {}, LOAD),
        (
            [Firing(-3600, LOAD), Firing(-1, MERGE), Firing(0, JOURNAL), Firing(0.1, NOTHING)],
            1,
            {},
            LOAD | MERGE | JOURNAL,
        ),
        ([Firing(-3600, LOAD)], 0.001, {"waited": 0.001, "was_notified": True}, LOAD),
    ],
    ids=["at the sweep", "all that is overdue, together", "overdue, in a stream of notifications"],
)
def test_what_is_due_fires(
    agenda: Agenda, firings: list[Firing], after: float, wait: dict[str, Any], fired: Work
) -> None:
    """Work that stays overdue (its topic is locked elsewhere) must not keep other work from its turn."""
    agenda.note_firings(firings, START)
    assert take(agenda, START + after, **wait) == fired


def test_the_first_to_fire_bounds_the_wait_and_only_what_fires_by_then_is_done(agenda: Agenda) -> None:
    agenda.note_firings([Firing(5, LOAD), Firing(2, MERGE), Firing(2, JOURNAL)], START)
    assert agenda.wait_seconds(START + 0.5) == 1.5
    assert take(agenda, START + 1.9) is None
    assert take(agenda, START + 2) == MERGE | JOURNAL


def test_what_is_overdue_does_not_make_the_loop_spin(agenda: Agenda) -> None:
    agenda.note_firings([Firing(-3600, LOAD)], START)
    assert agenda.wait_seconds(START) == SHORTEST_WAIT_SECONDS
    assert take(agenda, START + 0.001, waited=0.001) is None
    agenda.note_firings([Firing(-3600, LOAD)], START)
    assert take(agenda, START + 1, waited=SHORTEST_WAIT_SECONDS) == LOAD


def test_the_sensors_answer_is_kept_while_only_notifications_come(agenda: Agenda) -> None:
    agenda.note_firings([Firing(5, LOAD)], START)
    assert take(agenda, START + 0.1, was_notified=True) is None
    assert not agenda.must_ask_sensors(START + FIRINGS_KEPT_SECONDS - 0.001)
    assert agenda.must_ask_sensors(START + FIRINGS_KEPT_SECONDS)


@pytest.mark.parametrize(("fires_in", "was_notified"), [(5, False), (0, True)], ids=["interrupted", "fired"])
def test_the_sensors_are_asked_again_after(agenda: Agenda, fires_in: float, was_notified: bool) -> None:
    agenda.note_firings([Firing(fires_in, LOAD)], START)
    assert not agenda.must_ask_sensors(START + 0.1)
    take(agenda, START + 0.1, was_notified=was_notified)
    assert agenda.must_ask_sensors(START + 0.1)


def test_whoever_changed_something_has_the_sensors_asked_again(agenda: Agenda) -> None:
    agenda.note_firings([], START)
    agenda.ask_sensors_again()
    assert agenda.must_ask_sensors(START)


def test_work_put_off_waits_for_more_of_its_kind_but_no_longer_than_the_first(agenda: Agenda) -> None:
    agenda.note_firings([], START)
    assert not agenda.has_deferred_work
    agenda.defer(LOAD, START, 0.25)
    agenda.defer(MERGE, START + 0.2, 0.25)
    assert agenda.has_deferred_work
    assert agenda.wait_seconds(START) == 0.25
    assert agenda.take_deferred(START + 0.249) == NOTHING
    assert agenda.take_deferred(START + 0.25) == LOAD | MERGE
    assert not agenda.has_deferred_work
    assert agenda.take_deferred(START + 9) == NOTHING
    assert agenda.wait_seconds(START) == SWEEP_SECONDS


def test_a_sweep_does_what_was_put_off(agenda: Agenda) -> None:
    agenda.defer(LOAD, START, 0.25)
    agenda.start_sweep(START + 0.1)
    assert not agenda.has_deferred_work
    assert agenda.take_deferred(math.inf) == NOTHING


def test_a_thread_at_work_is_helped_in_a_moment(agenda: Agenda) -> None:
    """Then the sensors say whether an operation still waits, even if their answer would be kept."""
    agenda.note_firings([], START)
    agenda.ask_sensors_soon(START)
    agenda.ask_sensors_soon(START + BUSY_SECONDS / 2)
    assert agenda.wait_seconds(START) == pytest.approx(BUSY_SECONDS)
    assert not agenda.must_ask_sensors(START + BUSY_SECONDS / 2)
    assert agenda.must_ask_sensors(START + BUSY_SECONDS)
    agenda.note_firings([], START + BUSY_SECONDS)
    assert not agenda.must_ask_sensors(START + BUSY_SECONDS)
    assert agenda.wait_seconds(START) == SWEEP_SECONDS
