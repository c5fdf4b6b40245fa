"""The pool of background threads when the process cannot start another thread."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from controller.client.background_calls import BackgroundCalls
from controller.client.reader_slot import ReaderSlot
from controller.client.reader_threads import ReaderThreads, _run


class OpenedReader:
    """Records who closed it."""

    closed_by: threading.Thread | None = None

    def close(self) -> None:
        self.closed_by = threading.current_thread()


@contextmanager
def no_more_threads() -> Iterator[None]:
    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as limited:
        limited.setattr(threading.Thread, "start", fail)
        yield


def test_without_any_thread_the_caller_runs_the_function_and_the_pool_can_be_closed() -> None:
    threads = BackgroundCalls(2, "reader", is_awaited=True)
    runs: list[threading.Thread] = []

    with no_more_threads():
        assert _run(threads, lambda: runs.append(threading.current_thread()))
    assert runs == [threading.current_thread()]

    assert _run(threads, lambda: runs.append(threading.current_thread()))
    threads.close(30.0)
    assert [thread.name for thread in runs[1:]] == ["reader"]


def test_without_another_thread_the_one_that_runs_continues_with_the_function() -> None:
    threads = BackgroundCalls(2, "reader", is_awaited=True)
    is_over = threading.Event()
    runs: list[threading.Thread] = []

    def wait() -> None:
        is_over.wait(30.0)
        runs.append(threading.current_thread())

    threads.submit(wait)
    with no_more_threads():
        assert _run(threads, lambda: runs.append(threading.current_thread()))
    assert runs == []

    is_over.set()
    threads.close(30.0)
    assert len(runs) == 2
    assert runs[0] is runs[1]


def test_no_more_functions_run_at_once_than_allowed() -> None:
    threads = BackgroundCalls(1, "the only reader", is_awaited=True)
    begun, is_over = threading.Event(), threading.Event()
    runs: list[threading.Thread] = []

    def wait() -> None:
        begun.set()
        is_over.wait(30.0)
        runs.append(threading.current_thread())

    assert threads.submit(wait)
    assert begun.wait(30.0)
    assert threads.submit(wait)
    assert [thread.name for thread in threading.enumerate()].count("the only reader") == 1
    is_over.set()
    threads.close(30.0)

    assert len(runs) == 2


def test_a_log_is_opened_queried_and_closed_although_no_thread_can_be_started() -> None:
    """A slot whose opening never runs would be waited for without a limit."""
    threads, reader = ReaderThreads(lambda: None), OpenedReader()
    slot: ReaderSlot[OpenedReader] = ReaderSlot(0, "log", threading.Event(), 0.0)

    with no_more_threads():
        threads.open(slot, lambda: reader)
        threads.ask(slot, lambda: 7)
        assert (slot.reader, slot.take_result()) == (reader, 7)
        threads.stop(slot)

    threads.close()
    assert reader.closed_by is threading.current_thread()
    assert threads.leaving(slot.place) is None


ENDS_WITHOUT_CLOSING = """
import threading, time
from controller.client.background_calls import BackgroundCalls

calls, begun = BackgroundCalls(4, "reader", is_awaited=True), threading.Event()

def call():
    begun.set()
    time.sleep(0.2)

def maintain():
    while True:
        calls.submit(call)
        time.sleep(0.01)

threading.Thread(target=maintain, daemon=True).start()
begun.wait()
"""


def test_a_process_that_closes_nothing_ends_though_a_daemon_thread_begins_calls_without_end() -> None:
    program = [sys.executable, "-c", ENDS_WITHOUT_CLOSING]

    assert subprocess.run(program, timeout=60, check=False).returncode == 0


def test_a_process_waits_for_the_call_that_it_has_begun_itself() -> None:
    """The library of a data plane does not survive the end of the process under it."""
    call = "lambda: (time.sleep(0.2), print('ended', flush=True))"
    program = f"""
import time
from controller.client.background_calls import BackgroundCalls
BackgroundCalls(1, "reader", is_awaited=True).submit({call})
"""
    ended = subprocess.run([sys.executable, "-c", program], timeout=60, check=True, capture_output=True)

    assert ended.stdout == b"ended\n"
