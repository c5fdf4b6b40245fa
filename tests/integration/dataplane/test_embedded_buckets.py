"""Parts of embedded cursors: what the schema keeps of them, what a read costs, and random acts against a plain model."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import psycopg2
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

from controller.dataplane.embedded import EmbeddedDataPlane, EmbeddedLogClient, reader
from controller.dataplane.log_client import LogReader, OutgoingMessage, Ownership
from controller.domain.errors import FencedOut, LostRace
from controller.domain.hash_range import FULL_RANGE, HashRange
from controller.postgres.address import DatabaseAddress
from tests.integration.dataplane.test_embedded import query
from tests.support.drawn import cases
from tests.support.planes import Planes, payloads
from tests.support.store_driver import SOMEBODY_WAITS
from tests.support.waiting import wait_until

LOW, HIGH = FULL_RANGE.halves()


def parts(database: str, subscription: str = "s") -> list[tuple[int, int, int]]:
    """First hash, last hash and position of each part."""
    return query(  # type: ignore[return-value]
        database,
        "SELECT first_hash, last_hash, position FROM embedded.cursor WHERE subscription = %s ORDER BY 1",
        subscription,
    )


def test_a_message_beyond_the_ring_cannot_be_stored_by_hand(database: str, planes: Planes) -> None:
    log = planes.log("s")
    planes.send(log, b"1")

    for beyond in (-1, 65536):
        with pytest.raises(psycopg2.errors.CheckViolation, match="message_bucket_hash_on_ring"):
            query(database, "UPDATE embedded.message SET bucket_hash = %s", beyond)


def test_parts_at_one_position_become_one_again(database: str, planes: Planes) -> None:
    log = planes.log("s")
    planes.send_to(log, LOW, b"l")
    planes.send_to(log, HIGH, b"h")
    planes.reader(log, "s", owner="a", bucket=HashRange(0x1000, 0x1FFF)).close()
    assert parts(database) == [(0, 0x0FFF, 0), (0x1000, 0x1FFF, 0), (0x2000, 0xFFFF, 0)]

    high = planes.reader(log, "s", owner="b", bucket=HIGH)
    high.acknowledge(high.read(2)[-1].position)
    high.close()
    whole = planes.reader(log, "s")
    assert len(parts(database)) == 4
    whole.acknowledge(whole.read(2)[-1].position)
    assert parts(database) == [(0, 0xFFFF, 2)]

    planes.reader(log, "s", owner="c", bucket=LOW)
    planes.reader(log, "s", owner="c")
    assert parts(database) == [(0, 0xFFFF, 2)], "taking them is enough where no position differs"


def test_the_newest_ownership_is_remembered_of_each_part_however_it_is_cut(
    database: str, planes: Planes
) -> None:
    """Also when its reader has gone, and of what was divided from it, or joined with it."""
    log = planes.log("s")

    def take(bucket: HashRange, ownership: Ownership | None) -> None:
        planes.reader(log, "s", owner=str(ownership), bucket=bucket, ownership=ownership).close()

    def stale(bucket: HashRange, ownership: Ownership) -> None:
        with pytest.raises(FencedOut, match="another process took a part"):
            take(bucket, ownership)

    take(LOW, Ownership(1, 7))
    stale(FULL_RANGE, Ownership(1, 6))
    take(HIGH, Ownership(1, 3))
    lower, upper = LOW.halves()
    take(lower, Ownership(1, 8))
    stale(upper, Ownership(1, 6))  # divided from what was taken under 7
    take(upper, Ownership(1, 7))
    take(FULL_RANGE, None)  # whoever names none is not asked, and changes nothing
    assert parts(database) == [(0, 0xFFFF, 0)]
    stale(HIGH, Ownership(1, 7))  # one with what was taken under 8
    take(HIGH, Ownership(2, 1))


def test_a_journal_elsewhere_that_lost_its_last_seek_is_not_stale(planes: Planes) -> None:
    """Its generations are above the time of the seek, which an origin counts in microseconds."""
    log = planes.log("s")
    lost = Ownership(1_700_000_000_000_000, 7)
    planes.reader(log, "s", owner="a", ownership=lost).close()
    before, after = (
        Ownership(lost.origin - 1, milliseconds) for milliseconds in (1_699_999_999_999, 1_700_000_000_001)
    )

    with pytest.raises(FencedOut):
        planes.reader(log, "s", owner="b", ownership=before)
    planes.reader(log, "s", owner="b", ownership=after).close()


def test_a_generation_is_never_given_out_again(database: str, planes: Planes) -> None:
    """Otherwise the stale reader of a subscription that was made anew would be its reader."""
    log = planes.log("s")
    planes.send(log, b"1")
    stale = planes.reader(log, "s")
    (read,) = stale.read(1)
    planes.plane.delete_subscription(log, "s")
    planes.plane.create_subscription(log, "s")
    planes.reader(log, "s")

    with pytest.raises(FencedOut):
        stale.acknowledge(read.position)
    assert planes.plane.backlog(log, "s") == 1


def test_what_was_cut_off_with_a_part_is_free_and_rings(planes: Planes) -> None:
    log = planes.log("s")
    rung = threading.Event()
    planes.readers.append(
        planes.logs.open_reader(
            log, "s", owner="w", live_owners=["w"], on_arrival=rung.set, bucket=HashRange(0, 0x0FFF)
        )
    )
    planes.reader(log, "s", owner="dead", bucket=HashRange(0x1000, 0xFFFF))
    rung.clear()

    planes.reader(log, "s", owner="a", live_owners=["a", "w"], bucket=HIGH)

    wait_until(rung.is_set, message="what is left of the dead one's is offered")
    planes.reader(log, "s", owner="b", live_owners=["a", "b", "w", "dead"], bucket=HashRange(0x1000, 0x7FFF))


def test_the_last_acknowledgement_of_a_part_rings_the_others(planes: Planes) -> None:
    """Whoever has finished waits for its peers, and no message will come to wake it."""
    log = planes.log("s")
    planes.send_to(log, LOW, b"l1", b"l2")
    rung = threading.Event()
    waiting = planes.logs.open_reader(log, "s", owner="w", live_owners=(), on_arrival=rung.set, bucket=HIGH)
    planes.readers.append(waiting)
    low = planes.reader(log, "s", owner="l", bucket=LOW)
    l1, l2 = low.read(2)
    planes.plane.terminate_segment(log)
    assert not waiting.is_drained()
    low.acknowledge(l1.position)
    wait_until(rung.is_set, message="what came before has rung")
    rung.clear()

    low.acknowledge(l2.position)

    wait_until(rung.is_set, message="the last acknowledgement")
    assert waiting.is_drained()


def test_an_idle_part_follows_the_log_without_a_write_a_message(
    database: str, planes: Planes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "IDLE_LAG", 3)
    log = planes.log("s")
    idle = planes.reader(log, "s", bucket=HIGH)

    for number in range(1, 6):
        planes.send_to(log, LOW, b"%d" % number)
        assert idle.read(10) == []
        assert parts(database)[1][2] == (0 if number <= 3 else 4)


def test_a_part_with_something_in_hand_does_not_move_by_itself(
    database: str, planes: Planes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "IDLE_LAG", 0)
    log = planes.log("s")
    planes.send_to(log, HIGH, b"h")
    planes.send_to(log, LOW, b"1", b"2")
    high = planes.reader(log, "s", bucket=HIGH)
    (h,) = high.read(1)

    assert high.read(1) == []
    planes.plane.terminate_segment(log)
    assert not high.is_drained()
    assert parts(database)[1][2] == 0

    high.acknowledge(h.position)
    assert parts(database)[1][2] == 3, "what was passed over since belongs to others"


def test_a_read_looks_at_a_bounded_number_of_messages_and_goes_on(
    planes: Planes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MAX_SCANNED", 4)
    log = planes.log("s")
    planes.send_to(log, LOW, *(b"%d" % number for number in range(10)))
    planes.send_to(log, HIGH, b"rare")
    rung = threading.Event()
    rare = planes.logs.open_reader(log, "s", owner="r", live_owners=(), on_arrival=rung.set, bucket=HIGH)
    planes.readers.append(rare)

    for _ in range(2):
        rung.clear()
        assert rare.read(1) == []
        assert rung.is_set(), "it goes on without anybody else's ringing"
    assert payloads(rare.read(1)) == [b"rare"]

    def rings_by_itself() -> bool:
        rung.clear()
        assert rare.read(1) == []
        return rung.is_set()

    # What was sent may be heard of late, but not for ever.
    wait_until(lambda: not rings_by_itself(), message="at the end of the log there is nothing to go on with")


def test_draining_looks_at_a_bounded_number_of_messages_and_goes_on(
    planes: Planes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MAX_SCANNED", 4)
    log = planes.log("s")
    planes.send_to(log, LOW, *(b"%d" % number for number in range(10)))
    planes.plane.terminate_segment(log)
    low, high = (planes.reader(log, "s", owner=str(part), bucket=part) for part in (LOW, HIGH))
    low.acknowledge(low.read(10)[-1].position)

    assert [high.is_drained() for _ in range(3)] == [False, False, True]


def test_an_acknowledgement_beyond_the_log_is_refused(database: str, planes: Planes) -> None:
    """Whatever an application says: what is not there yet will be delivered."""
    log = planes.log("s")
    planes.reader(log, "s")
    acknowledge = (
        "SELECT embedded.acknowledge(log_id, subscription, generation, %s, -5, -5) FROM embedded.cursor"
    )
    assert query(database, acknowledge, 100) == [(False,)]
    assert query(database, acknowledge, 0) == [(True,)]
    planes.send(log, b"1")

    assert planes.plane.backlog(log, "s") == 1
    assert planes.plane.sample([log])[log].msg_out == 0


def test_joining_and_moving_keep_what_was_counted(database: str, planes: Planes) -> None:
    log = planes.log("s")
    planes.send_to(log, LOW, b"1", b"2")
    planes.send_to(log, HIGH, b"345")
    low, high = (planes.reader(log, "s", owner=str(part), bucket=part) for part in (LOW, HIGH))
    for one in (low, high):
        one.acknowledge(one.read(9)[-1].position)
        one.close()

    def counted() -> tuple[int, int]:
        found = planes.plane.sample([log])[log]
        return found.msg_out, found.byte_out

    assert counted() == (3, 5)
    query(database, "UPDATE embedded.cursor SET position = 3")
    planes.reader(log, "s").close()
    assert len(parts(database)) == 1
    assert counted() == (3, 5)
    for part in (LOW, HIGH):
        planes.send_to(log, part, b"x")
        one = planes.reader(log, "s", owner=str(part), bucket=part)
        one.acknowledge(one.read(9)[-1].position)
    assert len(parts(database)) == 2
    assert counted() == (5, 7)
    planes.plane.seek(log, "s", 0)
    assert len(parts(database)) == 1
    assert counted() == (5, 7)


def test_whoever_waited_for_a_cursor_sees_how_it_was_divided(database: str, planes: Planes) -> None:
    """Its statement began before the parts were made."""
    log = planes.log("s")
    somebody = psycopg2.connect(DatabaseAddress.of(database).uri)
    with ThreadPoolExecutor(1) as pool, somebody, somebody.cursor() as cursor:
        cursor.execute("SELECT outcome FROM embedded.take(%s, 's', 'a', '{}', 4096, 8191)", [log])
        taking = pool.submit(
            lambda: planes.reader(log, "s", owner="b", live_owners=["a", "b"], bucket=HashRange(6000, 9000))
        )
        wait_until(lambda: taking.done() or query(database, SOMEBODY_WAITS), message="the other waits")
        assert not taking.done()
        somebody.commit()
        with pytest.raises(LostRace, match="'a'"):
            taking.result()
    somebody.close()

    tiled(parts(database))


def test_cursors_are_divided_by_one_at_a_time(database: str, planes: Planes) -> None:
    """Many take and let go at once, each a range of its own choice: the parts tile the ring all along."""
    log = planes.log("s")
    patient = EmbeddedLogClient(database, call_timeout_seconds=20.0)

    def churn(number: int) -> None:
        for turn in range(12):
            start = (number * 7919 + turn * 10007) % 60000
            try:
                found = patient.open_reader(
                    log,
                    "s",
                    owner=f"o{number}",
                    live_owners=[f"o{n}" for n in range(6)] if turn % 3 else (),
                    on_arrival=lambda: None,
                    bucket=None if turn % 5 == 0 else HashRange(start, start + 5000),
                )
                found.read(1)
                found.close()
            except (LostRace, FencedOut):
                continue

    with ThreadPoolExecutor(6) as threads:
        for future in [threads.submit(churn, number) for number in range(6)]:
            future.result()
    patient.close()

    tiled(parts(database))


def tiled(found: list[tuple[int, int, int]]) -> None:
    """Without a gap and without an overlap."""
    assert [first for first, _, _ in found] == [0, *(last + 1 for _, last, _ in found[:-1])]
    assert found[-1][1] == 65535


CELLS = FULL_RANGE.divide(8)
OWNERS = ("a", "b", "c")


@dataclass(eq=False)
class ModelReader:
    """A reader as it should be."""

    real: LogReader
    owner: str
    cells: range
    next: int
    delivered: list[int] = field(default_factory=list)
    ended: type[Exception] | None = None


class Acts(RuleBasedStateMachine):
    """Random acts on one log, and a model in which every cell of the ring has a position of its own."""

    def __init__(self, planes: Planes, database: str) -> None:
        super().__init__()
        self.planes, self.database = planes, database
        self.log = planes.log("s")
        self.log_id = query(database, "SELECT log_id FROM embedded.log WHERE name = %s", self.log)[0][0]
        self.messages: list[int] = []  # the cell of each offset
        self.positions = [0] * len(CELLS)
        self.first = 0
        self.readers: list[ModelReader] = []
        self.terminated = False

    @initialize()
    def begin(self) -> None:
        """Two readers and some messages, so that short runs find something."""
        self.append([0, 7, 3, 4, 0])
        self.take("a", 0, 3, ["a", "b"])
        self.take("b", 4, 7, ["a", "b"])

    @precondition(lambda self: not self.terminated)
    @rule(cells=st.lists(st.integers(0, len(CELLS) - 1), min_size=1, max_size=6))
    def append(self, cells: list[int]) -> None:
        batch = [
            OutgoingMessage(
                b"%d" % (len(self.messages) + n), bucket_hash=CELLS[cell].start if n % 2 else CELLS[cell].end
            )
            for n, cell in enumerate(cells)
        ]
        assert self.planes.logs.append(self.log, batch, producer="p", sequence=len(self.messages)) == len(
            batch
        )
        self.messages += cells

    @rule(
        owner=st.sampled_from(OWNERS),
        first=st.integers(0, len(CELLS) - 1),
        last=st.integers(0, len(CELLS) - 1),
        live=st.lists(st.sampled_from(OWNERS), unique=True),
    )
    def take(self, owner: str, first: int, last: int, live: list[str]) -> None:
        first, last = sorted((first, last))
        cells = range(first, last + 1)
        overlapping = [one for one in self._alive if set(one.cells) & set(cells)]
        bucket = HashRange(CELLS[first].start, CELLS[last].end)
        open_it = partial(
            self.planes.reader,
            self.log,
            "s",
            owner=owner,
            live_owners=live,
            bucket=None if bucket == FULL_RANGE else bucket,
        )
        if any(one.owner != owner and one.owner in live for one in overlapping):
            with pytest.raises(LostRace):
                open_it()
            return
        for one in overlapping:
            one.ended = LostRace
        self.readers.append(ModelReader(open_it(), owner, cells, min(self.positions[cell] for cell in cells)))

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), limit=st.integers(1, 5))
    def read(self, data: st.DataObject, limit: int) -> None:
        one = data.draw(st.sampled_from(self.readers))
        if self._refused(one, lambda: one.real.read(limit)):
            return
        end = min(len(self.messages), one.next + max(limit, reader.MAX_SCANNED))
        wanted = [o for o in range(one.next, end) if self._is_unsettled(o, one.cells)][:limit]

        assert [m.position[1] for m in one.real.read(limit)] == wanted
        one.next = wanted[-1] + 1 if len(wanted) == limit else end
        one.delivered += wanted

    @precondition(lambda self: any(one.delivered for one in self.readers))
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from([one for one in self.readers if one.delivered]))
        offset = data.draw(st.sampled_from(one.delivered))
        (position,) = self.planes.positions(self.log, offset)
        if self._refused(one, lambda: one.real.acknowledge(position)):
            return
        one.real.acknowledge(position)
        for cell in one.cells:
            self.positions[cell] = max(self.positions[cell], offset + 1)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.readers))
        one.real.close()
        one.ended = one.ended or LostRace
        self.readers.remove(one)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def ask_whether_drained(self, data: st.DataObject) -> None:
        """It may not be known yet, but it is never said too early."""
        one = data.draw(st.sampled_from(self.readers))
        if not self._refused(one, one.real.is_drained) and one.real.is_drained():
            assert self.terminated
            assert not any(
                self._is_unsettled(offset, range(len(CELLS))) for offset in range(len(self.messages))
            )

    @rule(offset=st.integers(0, 30))
    def seek(self, offset: int) -> None:
        query(
            self.database,
            "UPDATE embedded.message SET published_at = to_timestamp(1000 + log_offset) WHERE log_id = %s",
            self.log_id,
        )
        self.planes.plane.seek(self.log, "s", 1000 * (1000 + offset))
        self._move_all(max(self.first, min(offset, len(self.messages))))

    @rule()
    def skip_all(self) -> None:
        self.planes.plane.skip_all(self.log, "s")
        self._move_all(len(self.messages))

    @rule()
    def trim(self) -> None:
        assert isinstance(self.planes.plane, EmbeddedDataPlane)
        assert self.planes.plane.trim(0.0).is_complete
        ((self.first,),) = query(
            self.database, "SELECT first_offset FROM embedded.log WHERE log_id = %s", self.log_id
        )

    @precondition(lambda self: not self.terminated)
    @rule(dice=st.integers(0, 5))
    def terminate(self, dice: int) -> None:
        if dice == 0:
            self.planes.plane.terminate_segment(self.log)
            self.terminated = True

    @invariant()
    def the_backlog_is_what_is_unsettled(self) -> None:
        unsettled = [o for o in range(len(self.messages)) if self._is_unsettled(o, range(len(CELLS)))]
        assert self.planes.plane.backlog(self.log, "s") == len(unsettled)
        assert all(offset >= self.first for offset in unsettled)

    @invariant()
    def the_parts_tile_the_ring(self) -> None:
        tiled(
            query(  # type: ignore[arg-type]
                self.database,
                "SELECT first_hash, last_hash, position FROM embedded.cursor WHERE log_id = %s ORDER BY 1",
                self.log_id,
            )
        )

    def teardown(self) -> None:
        """Read to the end, in two parts, all is drained."""
        if not self.terminated:
            self.planes.plane.terminate_segment(self.log)
        found = [
            self.planes.reader(self.log, "s", owner=f"last {bucket}", bucket=bucket) for bucket in (LOW, HIGH)
        ]
        read = 0
        for one in found:
            for _ in range(len(self.messages) + 1):
                if messages := one.read(3):
                    read += len(messages)
                    one.acknowledge(messages[-1].position)
        assert read == sum(self._is_unsettled(o, range(len(CELLS))) for o in range(len(self.messages)))
        drained = [
            [one.is_drained() for one in found] for _ in range(2 + len(self.messages) // reader.MAX_SCANNED)
        ]
        assert drained[-1] == [True, True]
        self.planes.plane.delete_segment(self.log)
        self.planes.readers.clear()

    @property
    def _alive(self) -> list[ModelReader]:
        return [one for one in self.readers if one.ended is None]

    def _is_unsettled(self, offset: int, cells: range) -> bool:
        return self.messages[offset] in cells and offset >= self.positions[self.messages[offset]]

    def _refused(self, one: ModelReader, act: Callable[[], object]) -> bool:
        """Whether the reader is stale; then the act is refused."""
        if one.ended is None:
            return False
        with pytest.raises((LostRace, FencedOut)):
            act()
        return True

    def _move_all(self, offset: int) -> None:
        self.positions = [offset] * len(CELLS)
        for one in self._alive:
            one.ended = LostRace


@pytest.mark.drawn
def test_random_acts_do_what_a_plain_model_says(
    database: str, planes: Planes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MAX_SCANNED", 7)
    monkeypatch.setattr(reader, "IDLE_LAG", 2)

    run_state_machine_as_test(
        lambda: Acts(planes, database),
        settings=settings(max_examples=cases(25, 400), stateful_step_count=30, deadline=None),
    )
