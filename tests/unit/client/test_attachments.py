"""Ownerships of buckets while their readers are being opened, released and kept after all: the orders that go wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from controller.client.attachments import Attachment, Attachments
from controller.client.broken_log_reports import SuspectReports
from controller.client.reader_slot import FIRST_RETRY_SECONDS
from controller.client.session import Assignment, OwnedBucket
from controller.dataplane.log_client import Ownership
from controller.domain.errors import DataPlaneUnavailable, FencedOut, LogShortened, LostRace
from tests.support.scripted_leader import ScriptedLeader
from tests.support.scripted_reader import IdleReader
from tests.support.waiting import wait_until

ORIGIN = 40


class SlowLogs(IdleReader):
    """Opens a reader when the test lets it; a reader notes that it was closed."""

    def __init__(self) -> None:
        self.may_open = threading.Event()
        self.opening = self.open = 0
        self.ownerships: list[object] = []

    def append(self, *_: Any, **__: Any) -> int:
        raise NotImplementedError

    def open_reader(self, *_: Any, ownership: object, **__: Any) -> SlowLogs:
        self.ownerships.append(ownership)
        self.opening += 1
        assert self.may_open.wait(20)
        self.open += 1
        return self

    def close(self) -> None:
        self.open -= 1


def attached(logs: Any, free: threading.Event) -> Attachments:
    """A set without attachments, whose reports of missing logs nobody reads. `free` is set when a thread is free."""
    suspects = SuspectReports(ScriptedLeader(), "topic://a/b/c")
    return Attachments(logs, "s", "me", threading.Event(), suspects, on_free=free.set)


@pytest.fixture
def logs() -> SlowLogs:
    return SlowLogs()


@pytest.fixture
def attachments(logs: SlowLogs, free: threading.Event) -> Iterator[Attachments]:
    attachments = attached(logs, free)
    yield attachments
    logs.may_open.set()
    attachments.close()


def owned(generation: int = 1, *, release: bool = False) -> Assignment:
    """One bucket."""
    bucket = OwnedBucket(0, 0, 65535, 1, False, "log", generation, release)
    return Assignment(1, generation, 0, ORIGIN, (bucket,))


def taken(attachments: Attachments) -> Attachment:
    """Adopt the assignment of the bucket. Return its attachment."""
    attachments.adopt(owned())
    [one] = attachments.all
    return one


def begun(attachments: Attachments) -> Attachment:
    """Adopt the assignment of the bucket, and begin to open its reader. Return its attachment."""
    one = taken(attachments)
    attachments.open_due()
    return one


def test_each_is_opened_under_its_own_assignment(attachments: Attachments, logs: SlowLogs) -> None:
    """A log refuses whoever comes by an older one than somebody came by before."""
    logs.may_open.set()
    for generation in (1, 3):
        attachments.adopt(owned(generation))
        wait_until(lambda: attachments.next_try_at < float("inf"))  # the last reader is closed
        attachments.open_due()
        wait_until(lambda: attachments.all[0].reader is not None)

    assert logs.ownerships == [Ownership(ORIGIN, 1), Ownership(ORIGIN, 3)]


def test_an_error_that_is_raised_again_does_not_grow(attachments: Attachments) -> None:
    """Each raise adds its frames to the error, which is kept until the log is reached again."""
    taken(attachments).fail(DataPlaneUnavailable("away"))
    frames = []
    for _ in range(3):
        with pytest.raises(DataPlaneUnavailable) as raised:
            attachments.demand_reached()
        frames.append(len(raised.traceback))

    assert frames == frames[:1] * 3


def test_what_is_being_opened_is_not_let_go_of_before(attachments: Attachments, logs: SlowLogs) -> None:
    """Its reader would take the bucket from the next owner."""
    begun(attachments)
    wait_until(lambda: logs.opening == 1)
    attachments.adopt(owned(release=True))

    assert attachments.to_release() == []

    logs.may_open.set()
    wait_until(attachments.to_release)


def test_what_was_revoked_while_it_was_opened_is_closed_when_it_comes(
    attachments: Attachments, logs: SlowLogs
) -> None:
    one = begun(attachments)
    wait_until(lambda: logs.opening == 1)
    attachments.adopt(owned(generation=3))
    assert one.is_closed
    assert not attachments.holds(one)

    logs.may_open.set()
    wait_until(lambda: logs.open == 0 and one.signal.is_set())
    assert one.reader is None


def test_what_was_released_once_is_not_taken_up_again(attachments: Attachments, logs: SlowLogs) -> None:
    """The word of it may be under way, and would take it from us while we read."""
    logs.may_open.set()
    begun(attachments)
    wait_until(lambda: logs.open == 1)
    attachments.adopt(owned(release=True))
    [one] = attachments.to_release()
    attachments.release(one)

    said_again = wait_until(lambda: attachments.adopt(owned()))

    assert [bucket.identity for bucket in said_again] == [(0, 0, 1)]
    assert attachments.all == ()
    assert attachments.adopt(owned(generation=2)) == []
    assert [one.owned.generation for one in attachments.all] == [2]


def test_a_bucket_that_a_newer_ownership_holds_is_returned_to_the_leader(
    attachments: Attachments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader's database was restored; the next generation is above that of the ownership."""
    monkeypatch.setattr("controller.client.attachments.FENCED_SECONDS", 0.1)
    one = taken(attachments)
    one.fail(FencedOut("a newer owner"))

    assert attachments.to_release() == []
    assert wait_until(attachments.to_release) == [one]


def test_what_is_lost_again_and_again_is_opened_later_each_time(
    attachments: Attachments, logs: SlowLogs
) -> None:
    logs.may_open.set()
    waits = []
    for _ in range(3):
        began = time.monotonic()
        one = taken(attachments)
        waits.append(one.next_try_at - began)
        attachments.lose(one)
    assert waits == sorted(waits)
    assert waits[2] > waits[1] > 0.005


def test_a_bucket_that_returns_waits_as_before_but_its_setback_is_over(attachments: Attachments) -> None:
    """Another consumer has read beyond the shortened part meanwhile; a log that keeps failing is not opened more often."""
    one = taken(attachments)
    attachments.lose(one, LogShortened("40 messages were removed"))
    one = taken(attachments)
    assert one.reason == "40 messages were removed"

    attachments.adopt(None)
    began = time.monotonic()
    attachments.adopt(owned(generation=3))

    [returned] = attachments.all
    assert returned.reason == "being opened"
    assert returned.next_try_at > began + FIRST_RETRY_SECONDS / 2


def test_a_setback_outlasts_a_loss_for_another_reason(attachments: Attachments) -> None:
    for error in (LogShortened("40 messages were removed"), DataPlaneUnavailable("away")):
        one = taken(attachments)
        attachments.lose(one, error)

    one = taken(attachments)
    assert one.reason == "40 messages were removed"


def test_after_an_acknowledgement_a_lost_bucket_is_opened_as_soon_as_the_first_time(
    attachments: Attachments,
) -> None:
    for _ in range(10):
        one = taken(attachments)
        attachments.lose(one)
    one = taken(attachments)

    attachments.settled(one)
    attachments.lose(one)
    one = taken(attachments)
    assert one.next_try_at <= time.monotonic() + FIRST_RETRY_SECONDS


def test_what_was_let_go_of_aside_is_taken_anew(attachments: Attachments, logs: SlowLogs) -> None:
    """By the session's thread, while the consumer's own was busy; then the leader was heard again, and nothing had changed."""
    logs.may_open.set()
    one = begun(attachments)
    wait_until(lambda: logs.open == 1)
    wait_until(lambda: one.reader is not None)

    attachments.close_all_in_background()

    wait_until(lambda: logs.open == 0)
    assert one.reader is None
    begun(attachments)
    wait_until(lambda: logs.open == 1)
    assert not attachments.holds(one)


class ControlledReaders(SlowLogs):
    """Readers that close, and answer, when the test lets them."""

    def __init__(self) -> None:
        super().__init__()
        self.may_open.set()
        self.goes_on = threading.Event()
        self.closing = 0

    def close(self) -> None:
        self.closing += 1
        assert self.goes_on.wait(20)
        super().close()


@pytest.fixture
def free() -> threading.Event:
    """Set when something is closed, or may be let go of."""
    return threading.Event()


@pytest.fixture
def held() -> ControlledReaders:
    return ControlledReaders()


@pytest.fixture
def stubborn(held: ControlledReaders, free: threading.Event) -> Iterator[Attachments]:
    attachments = attached(held, free)
    begun(attachments)
    wait_until(lambda: attachments.all[0].reader is not None)
    yield attachments
    held.goes_on.set()
    attachments.close()
    assert held.open == 0


@pytest.mark.parametrize("let_go", [Attachments.release, Attachments.lose], ids=["released", "lost"])
def test_whoever_lets_go_does_not_wait_and_the_leader_is_told_when_it_is_closed(
    stubborn: Attachments,
    held: ControlledReaders,
    free: threading.Event,
    let_go: Callable[[Attachments, Attachment], None],
) -> None:
    """Trap 22: the next owner is let in after that. Whatever the leader says meanwhile."""
    asked = owned(release=True)
    stubborn.adopt(asked)
    [one] = stubborn.to_release()

    let_go(stubborn, one)

    wait_until(lambda: held.closing == 1)
    assert stubborn.adopt(asked) == []
    assert not free.is_set()
    held.goes_on.set()
    assert free.wait(20)
    assert stubborn.adopt(asked) == [*asked.buckets]


def test_a_place_is_opened_anew_when_its_last_reader_is_closed(
    stubborn: Attachments, held: ControlledReaders
) -> None:
    stubborn.stop_all()
    stubborn.adopt(owned(generation=2))
    stubborn.open_due()
    wait_until(lambda: held.closing == 1)
    assert stubborn.next_try_at == float("inf")
    assert held.opening == 1

    held.goes_on.set()
    wait_until(lambda: stubborn.next_try_at < float("inf"))
    stubborn.open_due()
    wait_until(lambda: held.open == 1)


def test_what_could_never_be_opened_is_let_go_of_as_well(
    attachments: Attachments, free: threading.Event
) -> None:
    """The leader is to be told, though there is nothing to close."""
    asked = owned(release=True)
    attachments.adopt(owned())
    attachments.adopt(asked)

    attachments.release(attachments.to_release()[0])

    assert free.is_set()
    assert attachments.adopt(asked) == [*asked.buckets]


@pytest.mark.parametrize("is_open", [False, True], ids=["to_be_opened", "to_be_asked"])
def test_what_is_begun_after_the_close_of_all_keeps_nobody(
    attachments: Attachments, logs: SlowLogs, is_open: bool
) -> None:
    """Another thread of the application may be in the middle of a call: there are no threads any more, and nothing is waited for."""
    logs.may_open.set()
    attachments.adopt(owned())
    if is_open:
        attachments.open_due()
        wait_until(lambda: attachments.all[0].reader is not None)
    [one] = attachments.all
    attachments._threads.close()

    if is_open:
        attachments.ask(one, lambda: True)
    else:
        attachments.open_due()

    assert one.is_unused
    attachments.close()
    assert logs.open == 0


def test_many_are_closed_side_by_side(stubborn: Attachments, held: ControlledReaders) -> None:
    buckets = tuple(OwnedBucket(0, at, at, 10, False, "log", 3, False) for at in range(1, 11))
    stubborn.adopt(Assignment(1, 3, 0, ORIGIN, buckets))
    stubborn.open_due()
    wait_until(lambda: all(one.reader is not None for one in stubborn.all))

    stubborn.stop_all()

    wait_until(lambda: held.closing == 11)


def test_whoever_is_being_asked_is_neither_read_nor_let_go_of(stubborn: Attachments) -> None:
    """Its question may end with moving the cursor to where it is, which would cut off the next owner."""
    [one] = stubborn.all
    goes_on = threading.Event()
    one.signal.set()

    stubborn.ask(one, lambda: goes_on.wait(20))
    stubborn.adopt(owned(release=True))
    assert stubborn.to_release() == []
    stubborn.adopt(owned())
    assert [*stubborn.with_new_messages()] == []

    goes_on.set()
    wait_until(lambda: not one.is_queried)
    assert [one for one, _ in stubborn.with_new_messages()] == [one]
    assert one.take_result() is True
    stubborn.adopt(owned(release=True))
    assert stubborn.to_release() == [one]


def test_what_arrives_during_a_question_is_looked_at_after_the_answer(stubborn: Attachments) -> None:
    [one] = stubborn.all
    one.signal.clear()
    goes_on = threading.Event()
    stubborn.ask(one, lambda: goes_on.wait(20))
    one.notify()
    stubborn._wakeup.clear()  # a round in which it is passed over
    assert [*stubborn.with_new_messages()] == []

    goes_on.set()
    wait_until(lambda: one.has_news)
    stubborn._wakeup.clear()
    one.take_result()

    assert stubborn._wakeup.is_set()
    assert [one for one, _ in stubborn.with_new_messages()] == [one]


def test_what_is_to_be_let_go_of_after_a_question_is_told_of(
    stubborn: Attachments, free: threading.Event
) -> None:
    """The application may be busy for long."""
    [one] = stubborn.all
    goes_on = threading.Event()
    stubborn.ask(one, lambda: goes_on.wait(20))
    stubborn.adopt(owned(release=True))
    assert not free.is_set()

    goes_on.set()

    assert free.wait(20)
    wait_until(lambda: stubborn.to_release() == [one])


@pytest.mark.parametrize(
    "let_go", [Attachments.stop_all, Attachments.close_all_in_background], ids=["lost", "aside"]
)
def test_a_place_is_free_when_no_call_of_its_last_reader_is_under_way(
    stubborn: Attachments,
    held: ControlledReaders,
    free: threading.Event,
    let_go: Callable[[Attachments], None],
) -> None:
    """A question may end with moving the cursor, and an opening with a reader."""
    [one] = stubborn.all
    held.goes_on.set()
    goes_on = threading.Event()
    stubborn.ask(one, lambda: goes_on.wait(20))

    let_go(stubborn)

    wait_until(lambda: held.open == 0)
    assert stubborn.adopt(owned(release=True)) == []
    assert not free.is_set()
    goes_on.set()
    assert free.wait(20)
    assert stubborn.adopt(owned(release=True)) == [*owned(release=True).buckets]


def test_what_is_stopped_while_it_is_opened_is_gone_when_that_has_ended(
    attachments: Attachments, logs: SlowLogs
) -> None:
    begun(attachments)
    wait_until(lambda: logs.opening == 1)
    attachments.stop_all()
    assert attachments.adopt(owned(release=True)) == []

    logs.may_open.set()

    assert wait_until(lambda: attachments.adopt(owned(release=True)))
    assert logs.open == 0


def test_an_answer_is_news_and_comes_to_whoever_takes_it_as_it_was_raised(stubborn: Attachments) -> None:
    [one] = stubborn.all
    one.signal.clear()

    def question() -> None:
        raise LostRace("moved on", 0.0)

    stubborn.ask(one, question)
    wait_until(lambda: one.has_news)
    assert stubborn._wakeup.is_set()
    with pytest.raises(LostRace):
        one.take_result()
    assert not one.has_news
