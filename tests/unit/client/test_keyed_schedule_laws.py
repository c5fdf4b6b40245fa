"""Laws of the schedule of keyed work, whatever is offered, begun, done and failed, and in whatever order."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controller.client.keyed_schedule import KeyedSchedule, WorkItem
from controller.dataplane.log_client import LogMessage, Position
from tests.support.drawn import cases

LIMIT = 6
KEYS = st.sampled_from([b"a", b"b", b"c", None])
BUCKETS = st.sampled_from([0, 1])


class MessageState:
    """What a test knows of one message."""

    def __init__(self, item: WorkItem) -> None:
        self.item = item
        self.is_running = self.is_done = False
        self.due_at = 0.0


class LawsOfKeyedWork(RuleBasedStateMachine):
    """Two buckets that share the keys at work, and what a plain list says of them."""

    def __init__(self) -> None:
        super().__init__()
        busy: set[bytes] = set()
        self.schedules = [KeyedSchedule(busy, LIMIT) for _ in range(2)]
        self.told: list[list[MessageState]] = [[], []]
        self.now = 0.0

    @rule(bucket=BUCKETS, key=KEYS, gap=st.integers(1, 3))
    def offer(self, bucket: int, key: bytes | None, gap: int) -> None:
        if self.schedules[bucket].is_full:
            return
        place = self.told[bucket][-1].item.position[0] + gap if self.told[bucket] else 0
        item = WorkItem(LogMessage((place,), 0, key, b""))
        self.told[bucket].append(MessageState(item))
        self.schedules[bucket].offer(item)

    @rule(bucket=BUCKETS)
    def begin(self, bucket: int) -> None:
        """The earliest message that may begin begins; none does only if none may."""
        expected = self.may_begin(bucket)
        found = self.schedules[bucket].next(self.now)
        assert found is (None if expected is None else expected.item)
        if expected is not None:
            expected.is_running = True

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def end_well(self, data: st.DataObject) -> None:
        bucket, one = data.draw(st.sampled_from(self.running()))
        one.is_running, one.is_done = False, True
        before = self.settled(bucket)
        found = [message.position for message in self.schedules[bucket].done(one.item.position)]
        assert before + found == self.expected_settled(bucket)

    @precondition(lambda self: self.running())
    @rule(data=st.data(), delay=st.floats(0, 3))
    def fail(self, data: st.DataObject, delay: float) -> None:
        bucket, one = data.draw(st.sampled_from(self.running()))
        one.is_running, one.due_at = False, self.now + delay
        one.item.why = "failed"
        self.schedules[bucket].failed(one.item.position, one.due_at)

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        bucket, one = data.draw(st.sampled_from(self.running()))
        one.is_running = False
        self.schedules[bucket].withdraw(one.item.position)

    @rule(seconds=st.floats(0, 2))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def one_message_of_a_key_at_a_time(self) -> None:
        keys = [one.item.message.key for _, one in self.running() if one.item.message.key is not None]
        assert len(keys) == len(set(keys))

    @invariant()
    def a_key_is_done_in_order(self) -> None:
        for told in self.told:
            for key in {one.item.message.key for one in told} - {None}:
                flow = [one.is_done for one in told if one.item.message.key == key]
                assert flow == sorted(flow, reverse=True)

    @invariant()
    def nothing_is_settled_beyond_what_is_not_done(self) -> None:
        for bucket, schedule in enumerate(self.schedules):
            undone = [one.item.position for one in self.told[bucket] if not one.is_done]
            if schedule.settled is not None:
                assert all(schedule.settled < position for position in undone)

    @invariant()
    def no_more_is_in_hand_than_the_limit(self) -> None:
        for bucket, schedule in enumerate(self.schedules):
            assert schedule.in_hand == len(self.told[bucket]) - len(self.expected_settled(bucket)) <= LIMIT
            assert schedule.is_full == (schedule.in_hand == LIMIT)
            assert schedule.running == sum(one.is_running for one in self.told[bucket])
            failing = {one.item.position for one in self.told[bucket] if one.item.why and not one.is_done}
            assert {item.position for item in schedule.failing} == failing

    def running(self) -> list[tuple[int, MessageState]]:
        return [(bucket, one) for bucket, told in enumerate(self.told) for one in told if one.is_running]

    def settled(self, bucket: int) -> list[Position]:
        upto = self.schedules[bucket].settled
        return [
            one.item.position for one in self.told[bucket] if upto is not None and one.item.position <= upto
        ]

    def expected_settled(self, bucket: int) -> list[Position]:
        found = []
        for one in self.told[bucket]:
            if not one.is_done:
                break
            found.append(one.item.position)
        return found

    def may_begin(self, bucket: int) -> MessageState | None:
        """By looking at every message."""
        busy = {one.item.message.key for _, one in self.running()} - {None}
        seen: set[bytes] = set()
        for one in self.told[bucket]:
            key = one.item.message.key
            if one.is_done or (key is not None and key in seen):
                continue
            if key is not None:
                seen.add(key)
            if one.is_running or one.due_at > self.now or key in busy:
                continue
            return one
        return None


TestLawsOfKeyedWork = LawsOfKeyedWork.TestCase
TestLawsOfKeyedWork.settings = settings(max_examples=cases(100, 2000), stateful_step_count=60, deadline=None)
