"""Reports of segments whose log a client found missing."""

from __future__ import annotations

import threading

import pytest

from controller.client import broken_log_reports
from controller.client.broken_log_reports import MOST_SEGMENTS, REPORT_SECONDS, SuspectReports
from tests.support.scripted_leader import HandClock
from tests.support.waiting import wait_until


class SlowServers:
    """Servers that answer a report once they are let."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.may_answer = threading.Event()

    def ask(self, _method: str, _path: str, *, document: dict[str, int]) -> None:
        """Take the report, and answer later."""
        self.told.append(document["segment_id"])
        self.may_answer.wait()


def test_a_report_that_waits_is_not_made_again_and_no_more_wait_than_are_remembered() -> None:
    servers = SlowServers()
    reports = SuspectReports(servers, "topic://acme/shop/orders")
    for _ in range(3):
        for segment_id in range(MOST_SEGMENTS + 5):
            reports.report(segment_id)

    servers.may_answer.set()
    wait_until(lambda: len(servers.told) >= MOST_SEGMENTS)
    reports.close()

    assert sorted(servers.told) == list(range(MOST_SEGMENTS))


def test_a_report_for_which_no_thread_can_be_started_is_made_later(monkeypatch: pytest.MonkeyPatch) -> None:
    servers, clock = SlowServers(), HandClock()
    servers.may_answer.set()
    monkeypatch.setattr(broken_log_reports, "time", clock)
    reports = SuspectReports(servers, "topic://acme/shop/orders")

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        reports.report(0)
    clock.seconds += REPORT_SECONDS
    reports.report(0)
    wait_until(lambda: servers.told)
    reports.close()

    assert servers.told == [0]
