"""The events of the leader that a session answers with a heartbeat: the leader's own heartbeats, and an assignment that comes when a
heartbeat of the leader would have been due.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from controller.client import session
from controller.client.session import OwnedBucket, Session
from controller.domain.errors import StoreUnavailable
from tests.support.scripted_leader import ScriptedLeader
from tests.support.waiting import wait_until

SILENT_SECONDS = 1e6
"""The limit that `ScriptedLeader` sends."""


class SteppedClock:
    """`boot_seconds` of the session. It stands still until the test moves it."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SteppedClock:
    clock = SteppedClock()
    monkeypatch.setattr(session, "boot_seconds", clock)
    return clock


@pytest.fixture
def leader() -> ScriptedLeader:
    return ScriptedLeader()


@pytest.fixture
def changes() -> list[None]:
    """An element for each call of `on_change`."""
    return []


@pytest.fixture
def running(clock: SteppedClock, leader: ScriptedLeader, changes: list[None]) -> Iterator[Session]:
    del clock
    running = Session(leader, "topic://a/b/c", "s", "me", on_change=lambda: changes.append(None))
    yield running
    running.close()


def assign(leader: ScriptedLeader, running: Session, generation: int, *, stream: int = 1) -> None:
    """Send an assignment, and wait until the session has adopted it."""
    document = {"term": 1, "epoch": 0, "origin": 1, "data_plane": "embedded", "buckets": []}
    leader.feed(stream).say("assignment", document | {"generation": generation})
    wait_until(
        lambda: running.assignment is not None and running.assignment.generation == generation,
        message=f"assignment {generation} is adopted",
    )


def heartbeats_so_far(leader: ScriptedLeader, running: Session) -> int:
    """Let the leader send a heartbeat, whose answer is the last one. Return the number of the answers before it."""
    wait_until(lambda: not running._is_heartbeat_pending, message="no heartbeat is under way")
    answers = len(leader.of("pulse"))
    leader.feed().say("heartbeat", {})
    leader.call("pulse", answers + 1)
    return len(leader.of("pulse")) - 1


def test_assignments_soon_after_the_registration_are_not_answered(
    running: Session, leader: ScriptedLeader
) -> None:
    """The answer to the registration shows already that the leader hears the session."""
    for generation in range(1, 6):
        assign(leader, running, generation)
    assert running.is_current
    assert heartbeats_so_far(leader, running) == 0


@pytest.mark.parametrize(("passed_part", "heartbeats"), [(0.1, 0), (0.2, 1)])
def test_an_assignment_is_answered_once_a_heartbeat_is_due(
    running: Session, leader: ScriptedLeader, clock: SteppedClock, passed_part: float, heartbeats: int
) -> None:
    assign(leader, running, 1)
    clock.seconds = passed_part * SILENT_SECONDS
    assign(leader, running, 2)
    assign(leader, running, 3)  # the session handles events in order, so it has decided about the second
    assert heartbeats_so_far(leader, running) == heartbeats


def test_the_first_assignment_of_a_second_stream_is_not_answered_either(
    running: Session, leader: ScriptedLeader, clock: SteppedClock
) -> None:
    """A session registers before it opens another stream, however old its last heartbeat is."""
    assign(leader, running, 1)
    clock.seconds = 0.9 * SILENT_SECONDS
    leader.feed().hang_up()
    leader.call("attach", 2)
    assign(leader, running, 2, stream=2)
    assert len(leader.of("register")) == 2
    assert leader.of("pulse") == []
    assert running.is_current


def test_a_thread_that_cannot_be_started_ends_no_heartbeats(
    monkeypatch: pytest.MonkeyPatch, leader: ScriptedLeader, running: Session
) -> None:
    start, refused = threading.Thread.start, list[str]()

    def refuse_first(thread: threading.Thread) -> None:
        if thread.name.startswith("cleave-session-calls") and not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_first)
    leader.feed().say("heartbeat", {})
    leader.feed().say("heartbeat", {})

    leader.call("pulse")
    assert refused


def test_work_that_stopped_while_the_leader_was_silent_goes_on_after_the_next_heartbeat(
    running: Session, leader: ScriptedLeader, clock: SteppedClock, changes: list[None]
) -> None:
    """The consumer does nothing while the session is not current, and no assignment follows if the stream stays open."""
    assign(leader, running, 1)
    heartbeats_so_far(leader, running)
    assert len(changes) == 1
    clock.seconds = 1.1 * SILENT_SECONDS
    assert not running.is_current

    heartbeats_so_far(leader, running)

    wait_until(lambda: len(changes) == 2, message="the consumer is told that the session is current")
    assert running.is_current


@pytest.mark.parametrize("lost", [True, False])
def test_a_lost_report_is_made_again_after_the_next_heartbeat(
    running: Session, leader: ScriptedLeader, changes: list[None], lost: bool
) -> None:
    assign(leader, running, 1)
    leader.held.add("released")
    running.report_released([OwnedBucket(1, 0, 0xFFFF, 1, True, "log-1", 1, True)])
    leader.call("released").answer(StoreUnavailable("the database is away") if lost else None)
    wait_until(lambda: not running._reports._is_sending, message="the report has ended")
    assert len(changes) == 1

    heartbeats_so_far(leader, running)
    wait_until(lambda: not running._is_heartbeat_pending and len(changes) >= (2 if lost else 1))
    heartbeats_so_far(leader, running)

    wait_until(lambda: not running._is_heartbeat_pending)
    assert len(changes) == (2 if lost else 1)
