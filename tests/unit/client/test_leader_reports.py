"""Reports of released buckets and drained segments: one at a time, and what is added meanwhile goes into the next."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import pytest

from controller.client.background_calls import BackgroundCalls
from controller.client.leader_reports import Entry, LeaderReports, ReportKind
from controller.domain.errors import StoreUnavailable

RELEASED = ReportKind("released", "buckets", "first")
DRAINED = ReportKind("drained", "segments", "first")


class ScriptedSend:
    """Sends reports to a queue, and returns or raises what the test answers."""

    def __init__(self) -> None:
        self.sent: queue.SimpleQueue[tuple[ReportKind, list[Entry]]] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()

    def __call__(self, kind: ReportKind, entries: list[Entry]) -> None:
        self.sent.put((kind, entries))
        answer = self.answers.get(timeout=30)
        if answer is not None:
            raise answer

    def next(self) -> tuple[ReportKind, list[Entry]]:
        return self.sent.get(timeout=30)


@pytest.fixture
def calls() -> Iterator[BackgroundCalls]:
    calls = BackgroundCalls(2, "reports")
    yield calls
    calls.close()


@pytest.fixture
def send() -> ScriptedSend:
    return ScriptedSend()


@pytest.fixture
def reports(calls: BackgroundCalls, send: ScriptedSend) -> LeaderReports:
    return LeaderReports(calls, send)


def entries(*numbers: int) -> dict[int, Entry]:
    return {number: {"segment_id": number} for number in numbers}


def test_entries_added_during_a_report_go_together_into_the_next(
    reports: LeaderReports, send: ScriptedSend
) -> None:
    reports.add(RELEASED, entries(1))
    assert send.next() == (RELEASED, [{"segment_id": 1}])
    for number in (2, 3, 2, 4):
        reports.add(RELEASED, entries(number))
    assert send.sent.empty()  # although a second thread is free
    send.answers.put(None)
    assert send.next() == (RELEASED, [{"segment_id": 2}, {"segment_id": 3}, {"segment_id": 4}])
    send.answers.put(None)


def test_kinds_and_incarnations_have_reports_of_their_own(reports: LeaderReports, send: ScriptedSend) -> None:
    second = RELEASED._replace(incarnation="second")
    reports.add(RELEASED, entries(1))
    send.next()
    reports.add(DRAINED, entries(5))
    reports.add(second, entries(6))
    for expected in ((DRAINED, [{"segment_id": 5}]), (second, [{"segment_id": 6}])):
        send.answers.put(None)
        assert send.next() == expected
    send.answers.put(None)


@pytest.mark.parametrize("error", [StoreUnavailable("no worker answered"), ValueError("a defect")])
def test_the_next_report_is_sent_after_one_that_failed(
    reports: LeaderReports, send: ScriptedSend, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    reports.add(RELEASED, entries(1))
    send.next()
    send.answers.put(error)
    while True:  # the thread may still be handling the error, and then takes the entry along
        reports.add(RELEASED, entries(2))
        try:
            assert send.sent.get(timeout=0.05) == (RELEASED, [{"segment_id": 2}])
            break
        except queue.Empty:
            continue
    send.answers.put(None)
    assert ("a defect" in caplog.text) is isinstance(error, ValueError)


def test_nothing_is_sent_after_the_close(
    reports: LeaderReports, send: ScriptedSend, calls: BackgroundCalls
) -> None:
    calls.close()
    reports.add(RELEASED, entries(1))
    reports.add(RELEASED, entries(2))
    assert send.sent.empty()
