"""Messages of an entry as runs: which place each has, in what order they are delivered and acknowledged, and that a message looks
the same however it is asked for.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.dataplane.log_client import Position
from controller.dataplane.pulsar.message_runs import Messages, Run, RunQueue, runs

Place = tuple[int, int, int]
"""(ledger, entry, index in the batch, negative where it is no batch)."""


class _Asked:
    """How often the library was asked for an id."""

    def __init__(self) -> None:
        self.times = 0


def _message(place: Place, asked: _Asked | None = None) -> Any:
    ledger, entry, index = place
    identity = SimpleNamespace(
        ledger_id=lambda: ledger, entry_id=lambda: entry, batch_index=lambda: index, partition=lambda: -1
    )

    def message_id() -> object:
        if asked is not None:
            asked.times += 1
        return identity

    return SimpleNamespace(
        message_id=message_id,
        partition_key=lambda: f"{index}",
        event_timestamp=lambda: 0,
        properties=dict,
        publish_timestamp=lambda: ledger,
        data=lambda: b"%d" % entry,
    )


def _run(entry: int, first: int, count: int) -> Run:
    return Run((1, entry), first, [_message((1, entry, first + at)) for at in range(count)], is_batched=True)


def _places(taken: list[Run]) -> list[Position]:
    return [message.position for run in taken for message in run.decoded()]


@st.composite
def _arrivals(draw: st.DrawFn) -> list[Place]:
    """Entries as the library gives them: by rising index, some left out that were acknowledged one by one, or coming again from the
    first one on.
    """
    found: list[Place] = []
    for entry in range(draw(st.integers(0, 6))):
        if not draw(st.booleans()):
            found.append((1, entry, -1))
            continue
        if draw(st.booleans()):
            found += [(1, entry, index) for index in sorted(draw(st.sets(st.integers(0, 12), min_size=1)))]
            continue
        first = draw(st.integers(0, 5))
        for _ in range(draw(st.integers(1, 3))):
            found += [(1, entry, index) for index in range(first, first + draw(st.integers(1, 8)))]
    return found


@given(_arrivals())
def test_runs_say_of_each_message_where_it_lies(places: list[Place]) -> None:
    found = list(runs([_message(place) for place in places]))

    assert _places(found) == [(ledger, entry, max(0, index)) for ledger, entry, index in places]
    assert [one.is_batched for one in found for _ in one.messages] == [index >= 0 for *_, index in places]
    assert all(run.first <= run.last and len(run) for run in found)


def test_an_entry_is_asked_about_a_few_times_and_not_for_each_message() -> None:
    asked = _Asked()
    places = [(1, entry, index) for entry in range(4) for index in range(500)]

    assert [len(run) for run in runs([_message(place, asked) for place in places])] == [500] * 4
    assert asked.times < 60


@given(st.lists(st.integers(1, 5), max_size=6), st.lists(st.integers(0, 7), min_size=1, max_size=12))
def test_a_queue_gives_back_what_was_put_in_by_any_portions(counts: list[int], limits: list[int]) -> None:
    queue = RunQueue()
    put = [_run(entry, 2, count) for entry, count in enumerate(counts)]
    queue.extend(put)
    taken: list[Position] = []

    for limit in limits:
        before = queue.messages
        portion = _places(queue.take(limit))
        assert len(portion) == min(limit, before)
        assert queue.messages == before - len(portion)
        taken += portion

    assert taken == _places(put)[: len(taken)]
    assert bool(queue) == (len(taken) < sum(counts))


@pytest.mark.parametrize(
    ("upto", "taken"),
    [((1, 0, 9), 0), ((1, 1, 2), 1), ((1, 1, 4), 3), ((1, 2, 0), 3), ((1, 3, 2), 4), ((2, 0, 0), 6)],
    ids=["before all", "within", "to the end of one", "between two", "within the second", "behind all"],
)
def test_up_to_a_place_is_taken_what_lies_there_and_before(upto: Position, taken: int) -> None:
    queue = RunQueue()
    queue.extend([_run(1, 2, 3), _run(3, 2, 3)])
    everything = [(1, 1, 2), (1, 1, 3), (1, 1, 4), (1, 3, 2), (1, 3, 3), (1, 3, 4)]

    assert _places(queue.take_upto(upto)) == everything[:taken]
    assert _places(queue.take(10)) == everything[taken:]


def test_a_run_is_put_in_its_place_unless_some_of_it_is_there() -> None:
    queue = RunQueue()
    queue.extend([_run(1, 0, 2), _run(5, 3, 2)])

    assert queue.insert(_run(3, 0, 2))
    assert queue.insert(_run(5, 0, 3))
    assert not queue.insert(_run(5, 4, 3))
    assert not queue.insert(_run(1, 1, 1))

    assert queue.messages == 9
    places = _places(queue.take(9))
    assert places == sorted(places)


def test_what_is_handed_out_is_a_sequence_like_any_other() -> None:
    messages = Messages([_run(1, 2, 3), _run(3, 0, 2)])
    everything = list(messages)

    assert [one.position for one in everything] == [(1, 1, 2), (1, 1, 3), (1, 1, 4), (1, 3, 0), (1, 3, 1)]
    assert [messages[at] for at in range(5)] == everything
    assert [messages[at] for at in range(-5, 0)] == everything
    assert messages[1:4] == everything[1:4]
    assert messages[::-2] == everything[::-2]
    assert len(messages) == 5
    assert everything[3] in messages
    assert everything[0].key == b"2"
    assert everything[0].payload == b"1"
    for beyond in (5, -6):
        with pytest.raises(IndexError):
            messages[beyond]


def test_nothing_handed_out_is_an_empty_sequence() -> None:
    assert not Messages([])
    assert list(Messages([])) == []
