"""Random acts of a queue's readers on one embedded log, beside a plain model of who has which message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from controller.dataplane.embedded import EmbeddedDataPlane, EmbeddedLogClient, queue_reader
from controller.dataplane.embedded.queue_reader import EmbeddedQueueReader
from controller.domain.errors import LostRace
from tests.integration.dataplane.test_embedded import query
from tests.support.drawn import cases
from tests.support.planes import Planes

MOST_UNSETTLED = 12


@pytest.fixture
def patient(database: str) -> Iterator[Planes]:
    """Nobody keeps readers alive, and nobody has to: they live for an hour, or until an act ends them."""
    logs = EmbeddedLogClient(database, queue_life_seconds=3600.0)
    planes = Planes(EmbeddedDataPlane(database, call_timeout_seconds=20.0), logs)
    yield planes
    planes.close()


@dataclass(eq=False)
class ModelReader:
    """A reader as it should be. `is_silent`: the next take of another finds it dead."""

    real: EmbeddedQueueReader
    held: set[int] = field(default_factory=set)
    is_silent: bool = False
    is_over: bool = False


class Acts(RuleBasedStateMachine):
    """What is below the frontier is held, waits, or is settled."""

    def __init__(self, planes: Planes, database: str) -> None:
        super().__init__()
        self.planes, self.database = planes, database
        self.log = planes.log("s")
        self.log_id = query(database, "SELECT log_id FROM embedded.log WHERE name = %s", self.log)[0][0]
        self.count = self.frontier = self.position = 0
        self.waiting: set[int] = set()
        self.deliveries: dict[int, int] = {}
        self.readers: list[ModelReader] = []
        self.terminated = False

    @initialize()
    def begin(self) -> None:
        """Two readers and some messages, so that short runs find something."""
        self.append(6)
        self.open()
        self.open()

    @precondition(lambda self: not self.terminated)
    @rule(count=st.integers(1, 6))
    def append(self, count: int) -> None:
        self.planes.send(self.log, *(b"%d" % (self.count + n) for n in range(count)))
        self.count += count

    @rule()
    def open(self) -> None:
        found = self.planes.queue(self.log, "s", f"r{len(self.readers)}")
        assert isinstance(found, EmbeddedQueueReader)
        self.readers.append(ModelReader(found))

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), limit=st.integers(1, 5))
    def take(self, data: st.DataObject, limit: int) -> None:
        one = data.draw(st.sampled_from(self.readers))
        if self._refused(one, lambda: one.real.read(limit)):
            return
        one.is_silent = False
        for other in self.readers:
            if other.is_silent and not other.is_over:
                self._end(other)

        found = one.real.read(limit)

        offsets = [message.position[1] for message in found]
        again = set(offsets) & self.waiting
        room = max(
            0, min(limit - len(again), MOST_UNSETTLED - len(self._unsettled), self.count - self.frontier)
        )
        assert len(again) == min(limit, len(self.waiting))
        assert offsets == sorted(again | set(range(self.frontier, self.frontier + room)))
        for offset in offsets:
            self.deliveries[offset] = self.deliveries.get(offset, 0) + 1
        assert [message.deliveries for message in found] == [self.deliveries[offset] for offset in offsets]
        self.waiting -= again
        self.frontier += room
        one.held |= set(offsets)

    @precondition(lambda self: self.readers and self.count)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.readers))
        offsets = data.draw(st.lists(st.integers(0, self.count - 1), min_size=1, max_size=4, unique=True))
        if one.real._is_lost:
            return
        answer = one.real.acknowledge(self.planes.positions(self.log, *offsets))

        if not one.is_over:
            one.held -= set(offsets)
        left = self._unsettled | set(range(self.frontier, self.count))
        assert {offset for _, offset in answer} == set(offsets) & left
        self._move_position()

    @precondition(lambda self: any(one.held and not one.is_over for one in self.readers))
    @rule(data=st.data(), unseen=st.booleans())
    def give_back(self, data: st.DataObject, unseen: bool) -> None:
        one = data.draw(st.sampled_from([one for one in self.readers if one.held and not one.is_over]))
        offset = data.draw(st.sampled_from(sorted(one.held)))
        one.real.give_back(self.planes.positions(self.log, offset), unseen=unseen)
        one.held.remove(offset)
        self.waiting.add(offset)
        self.deliveries[offset] -= unseen

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.readers))
        one.real.close()
        if not one.is_over:
            self._end(one)
        self.readers.remove(one)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def fall_silent(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.readers))
        query(
            self.database,
            "UPDATE embedded.queue_reader SET alive_until = '-infinity' WHERE mark = %s",
            one.real.mark,
        )
        one.is_silent = True

    @rule(offset=st.integers(0, 30))
    def seek(self, offset: int) -> None:
        query(
            self.database,
            "UPDATE embedded.message SET published_at = to_timestamp(1000 + log_offset) WHERE log_id = %s",
            self.log_id,
        )
        self.planes.plane.seek(self.log, "s", 1000 * (1000 + offset))
        self._begin_at(max(self._first, min(offset, self.count)))

    @rule()
    def skip_all(self) -> None:
        self.planes.plane.skip_all(self.log, "s")
        self._begin_at(self.count)

    @rule()
    def read_in_order(self) -> None:
        """It ends the queue, which begins again where the position is."""
        self.planes.reader(self.log, "s").close()
        self._begin_at(self.position)

    @rule()
    def trim(self) -> None:
        assert isinstance(self.planes.plane, EmbeddedDataPlane)
        assert self.planes.plane.trim(0.0).is_complete
        assert self._first == self.position

    @precondition(lambda self: not self.terminated)
    @rule(dice=st.integers(0, 5))
    def terminate(self, dice: int) -> None:
        if dice == 0:
            self.planes.plane.terminate_segment(self.log)
            self.terminated = True

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def ask_whether_drained(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.readers))
        is_settled = self.frontier == self.count and not self._unsettled
        assert one.real.is_drained() == (self.terminated and is_settled)

    @invariant()
    def the_backlog_is_what_is_unsettled(self) -> None:
        left = self.count - self.frontier + len(self._unsettled)
        assert self.planes.plane.backlog(self.log, "s") == left

    def teardown(self) -> None:
        """One who comes last settles all that is left, once those who are there have gone."""
        for one in self.readers:
            one.real.close()
        left = self.count - self.frontier + len(self._unsettled)
        last = self.planes.queue(self.log, "s", "last")
        found = 0
        while messages := last.read(4):
            assert list(last.acknowledge([one.position for one in messages])) == []
            found += len(messages)
        assert found == left
        self.planes.plane.terminate_segment(self.log)
        assert last.is_drained()
        self.planes.plane.delete_segment(self.log)
        self.planes.readers.clear()

    @property
    def _first(self) -> int:
        ((first,),) = query(
            self.database, "SELECT first_offset FROM embedded.log WHERE log_id = %s", self.log_id
        )
        return int(first)

    @property
    def _unsettled(self) -> set[int]:
        return self.waiting.union(*(one.held for one in self.readers if not one.is_over))

    def _end(self, one: ModelReader) -> None:
        """What it held is given to others."""
        self.waiting |= one.held
        one.held, one.is_over = set(), True

    def _begin_at(self, offset: int) -> None:
        self.frontier = self.position = offset
        self.waiting, self.deliveries = set(), {}
        for one in self.readers:
            one.held, one.is_over = set(), True

    def _move_position(self) -> None:
        self.position = min(self._unsettled, default=self.frontier)

    def _refused(self, one: ModelReader, act: Callable[[], object]) -> bool:
        if not one.is_over:
            return False
        with pytest.raises(LostRace):
            act()
        return True


@pytest.mark.drawn
def test_random_acts_do_what_a_plain_model_says(
    database: str, patient: Planes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_reader, "MAX_UNSETTLED", MOST_UNSETTLED)

    run_state_machine_as_test(
        lambda: Acts(patient, database),
        settings=settings(max_examples=cases(25, 400), stateful_step_count=30, deadline=None),
    )
