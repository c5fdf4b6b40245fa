"""The time of a close: what is slow to close does not use up the goodbye's share, nor does an interruption."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from controller.client.background_calls import BackgroundCalls
from controller.client.closing import CloseTime, close_and_deregister
from controller.domain.errors import InvalidInput
from tests.support.waiting import wait_until


class Interrupted(BaseException):
    """What the signal's handler raises."""


@pytest.fixture
def interruptions() -> Iterator[list[int]]:
    """The signal's handler notes here that it was called."""
    called: list[int] = []

    def interrupt(number: int, _frame: object) -> None:
        called.append(number)
        raise Interrupted

    before = signal.signal(signal.SIGUSR2, interrupt)
    yield called
    signal.signal(signal.SIGUSR2, before)


def interrupt_main(called: list[int]) -> None:
    """Return when the main thread is in its handler."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)
    wait_until(lambda: called)


@pytest.mark.parametrize(
    ("timeout_seconds", "share"), [(None, 6.0), (30, 6.0), (100, 20.0), (2, 1.0), (0, 1.0)]
)
def test_a_fifth_is_the_goodbye_s_and_no_less_than_a_second(
    timeout_seconds: float | None, share: float
) -> None:
    assert CloseTime(timeout_seconds).deregistration_seconds == share


@pytest.mark.parametrize("timeout_seconds", [-1.0, float("nan"), float("inf")])
def test_a_time_that_means_nothing_is_refused(timeout_seconds: float) -> None:
    with pytest.raises(InvalidInput, match="give 0 or more"):
        CloseTime(timeout_seconds)


def test_what_does_not_close_in_time_keeps_nobody_from_saying_goodbye() -> None:
    goes_on, said = threading.Event(), list[float]()

    close_and_deregister("it", CloseTime(0.0), lambda: assert_wait(goes_on), said.append)

    assert said == [1.0]
    goes_on.set()


def test_who_is_interrupted_while_it_closes_says_goodbye(interruptions: list[int]) -> None:
    goes_on, said = threading.Event(), list[float]()

    def close() -> None:
        interrupt_main(interruptions)
        assert_wait(goes_on)

    with pytest.raises(Interrupted):
        close_and_deregister("it", CloseTime(1000.0), close, said.append)

    assert said == [200.0]
    goes_on.set()


def test_who_is_interrupted_while_it_says_goodbye_says_it_to_the_end(interruptions: list[int]) -> None:
    is_out, said = threading.Event(), list[float]()

    def goodbye(seconds: float) -> None:
        interrupt_main(interruptions)
        is_out.wait(0.5)  # whoever gave up would be out by then
        said.append(seconds)

    with pytest.raises(Interrupted):
        close_and_deregister("it", CloseTime(30.0), lambda: None, goodbye)

    assert said == [6.0]
    is_out.set()


def test_without_a_free_thread_the_closing_thread_closes_and_says_goodbye(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As at the end of the process. A retry of the start would keep the thread busy to the end of the time."""
    starts, called = list[threading.Thread](), list[str]()

    def refuse(thread: threading.Thread) -> None:
        starts.append(thread)
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    close_and_deregister(
        "it", CloseTime(0.0), lambda: called.append("close"), lambda _: called.append("goodbye")
    )

    assert called == ["close", "goodbye"]
    assert len(starts) == 2


def test_what_goes_wrong_while_closing_is_raised_and_goodbye_said() -> None:
    said = list[float]()

    with pytest.raises(ZeroDivisionError):
        close_and_deregister("it", CloseTime(30.0), lambda: 1 // 0, said.append)

    assert said == [6.0]


def assert_wait(event: threading.Event) -> None:
    assert event.wait(30.0)


def test_calls_aside_go_on_after_one_that_fails_and_end_with_the_close() -> None:
    calls, done = BackgroundCalls(1, "calls"), list[str]()
    assert calls.submit(lambda: 1 // 0)
    assert calls.submit(lambda: done.append("first"))
    calls.close(30.0)

    assert done == ["first"]
    assert not calls.submit(lambda: done.append("late"))


def test_calls_aside_that_are_closed_without_time_begin_nothing_more() -> None:
    goes_on, has_begun, done = threading.Event(), threading.Event(), list[str]()
    calls = BackgroundCalls(1, "calls")
    calls.submit(lambda: (has_begun.set(), assert_wait(goes_on), done.append("begun")))
    calls.submit(lambda: done.append("waits"))
    assert has_begun.wait(30.0)
    calls.close()
    goes_on.set()
    calls.close(30.0)

    assert done == ["begun"]


@pytest.mark.parametrize("refused", [1, 2], ids=["the first", "both"])
def test_calls_aside_go_on_after_a_thread_that_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    start, done, starts = threading.Thread.start, list[int](), list[str]()

    def refuse_some(thread: threading.Thread) -> None:
        starts.append(thread.name)
        if len(starts) <= refused:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_some)
    calls = BackgroundCalls(2, "calls")

    accepted = [calls.submit(partial(done.append, i)) for i in range(4)]
    calls.close(30.0)

    assert accepted == [False] * refused + [True] * (4 - refused)
    assert sorted(done) == [*range(refused, 4)]


def test_calls_aside_are_closed_although_only_some_threads_could_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, done = threading.Thread.start, list[str]()

    def refuse_others(thread: threading.Thread) -> None:
        if any(other.name == "calls" for other in threading.enumerate()):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_others)
    calls = BackgroundCalls(2, "calls")
    assert calls.submit(partial(done.append, "once"))
    calls.close(30.0)

    assert done == ["once"]
