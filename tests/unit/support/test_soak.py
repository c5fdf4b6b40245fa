"""What a round of the soak comes to: clean, slow, failed, and whether it could be taken away afterwards."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from controller.client.history import Event, Record
from tests.chaos.soak import SLOW_SECONDS, longest_wait_seconds, one_round

SECOND = 1_000_000_000


def refuse() -> None:
    raise OSError("somebody holds the database")


def fail(_taken_away: ExitStack) -> float:
    raise AssertionError("the backlog is read: not within 300 s\nwhere everybody is")


@pytest.mark.parametrize(
    ("waited", "is_slow", "said"),
    [
        (SLOW_SECONDS, False, "clean"),
        (SLOW_SECONDS + 1, True, f"slow: a message waited {SLOW_SECONDS + 1:.1f} s"),
    ],
)
def test_a_round_whose_messages_wait_for_long_is_slow_and_no_failure(
    waited: float, is_slow: bool, said: str
) -> None:
    found = one_round(1, lambda _taken_away: waited)

    assert (found.is_slow, found.failure, found.trouble) == (is_slow, None, None)
    assert str(found).endswith(f" s, {said}")


def test_trouble_of_taking_it_away_is_no_failure_of_the_round() -> None:
    found = one_round(1, lambda taken_away: float(taken_away.callback(refuse) is None))

    assert (found.failure, found.trouble) == (None, "OSError: somebody holds the database")
    assert str(found).endswith("clean; taken away with trouble: OSError: somebody holds the database")


def test_a_round_that_failed_is_taken_away_all_the_same_and_says_the_first_line() -> None:
    found = one_round(7, fail)

    assert found.failure == "AssertionError: the backlog is read: not within 300 s\nwhere everybody is"
    assert not found.is_slow
    assert str(found).startswith("round 7: ")
    assert str(found).endswith("AssertionError: the backlog is read: not within 300 s")


def test_a_message_waits_from_when_it_is_stored_until_it_is_handed_out_first() -> None:
    def record(seconds: int, event: Event, number: int) -> Record:
        return Record(seconds * SECOND, event, "p", "k", number)

    records = [
        record(1, Event.SENT, 0), record(9, Event.DELIVERED, 0), record(3, Event.DELIVERED, 0),
        record(2, Event.SENT, 1), record(7, Event.DELIVERED, 1), record(2, Event.SENT, 2),
    ]  # fmt: skip

    assert longest_wait_seconds(records) == 5.0
    assert longest_wait_seconds([]) == 0.0
