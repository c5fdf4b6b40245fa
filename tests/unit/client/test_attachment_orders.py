"""A bucket that is revoked and granted back while its reader is opened, read, drained: every order leaves one reader, or none.

The leader, the consumer's thread and the opening thread take their steps in an order that is drawn; an opening waits until the draw
lets it go on. So timings are drawn, and none of them is a matter of the machine's speed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.client.attachments import Attachment, Attachments
from controller.client.broken_log_reports import SuspectReports
from controller.client.session import Assignment, OwnedBucket
from controller.domain.errors import DataPlaneUnavailable
from tests.support.drawn import cases
from tests.support.scripted_leader import ScriptedLeader
from tests.support.scripted_reader import IdleReader
from tests.support.waiting import wait_until


class Reader(IdleReader):
    """Of one ownership; closed once."""

    def __init__(self) -> None:
        self.closes = 0

    def close(self) -> None:
        self.closes += 1


class HeldLogs:
    """Openings go on when the draw says so, the oldest first or the newest, and some of them fail."""

    def __init__(self) -> None:
        self.waiting: list[tuple[threading.Event, list[bool]]] = []
        self.readers: list[Reader] = []
        self._lock = threading.Lock()

    def append(self, *_: Any, **__: Any) -> int:
        raise NotImplementedError

    def open_reader(self, *_: Any, **__: Any) -> Reader:
        goes_on, fails = threading.Event(), list[bool]()
        with self._lock:
            self.waiting.append((goes_on, fails))
        assert goes_on.wait(30)
        if fails:
            raise DataPlaneUnavailable("drawn: it is away", 0.0)
        reader = Reader()
        with self._lock:
            self.readers.append(reader)
        return reader

    def let_go_on(self, index: int, *, fails: bool) -> bool:
        """One of the openings; False where none waits."""
        with self._lock:
            if not self.waiting:
                return False
            goes_on, outcome = self.waiting.pop(index)
        if fails:
            outcome.append(True)
        goes_on.set()
        return True

    @property
    def open(self) -> int:
        return sum(not reader.closes for reader in self.readers)


class Run:
    """One bucket, its leader, and the consumer's thread, which is the test's."""

    def __init__(self) -> None:
        self.logs = HeldLogs()
        self.attachments = Attachments(
            self.logs, "s", "me", threading.Event(), SuspectReports(ScriptedLeader(), "topic://a/b/c")
        )
        self.generation = 1
        self.is_asked = False
        self.is_owned = True
        self.begun = 0

    def opening(self) -> list[Attachment]:
        return [one for one in self.attachments.all if one.is_being_opened]

    # What may happen next.

    def revoke(self) -> None:
        """The leader asks for it."""
        self.is_asked = self.is_owned

    def grant_back(self) -> None:
        """Before it was let go of: the same ownership goes on."""
        self.is_asked = False

    def take_away(self) -> None:
        """The session expired, or a seek took all."""
        self.is_owned = self.is_asked = False

    def grant_anew(self) -> None:
        """Another ownership."""
        self.is_owned, self.is_asked = True, False
        self.generation += 1

    def hear(self) -> None:
        """The consumer's thread follows what the leader said last."""
        bucket = OwnedBucket(0, 0, 65535, 1, False, "log", self.generation, self.is_asked)
        given_out = (bucket,) if self.is_owned else ()
        self.attachments.adopt(Assignment(1, self.generation, 0, 0, given_out))
        self.see_closed()

    def open_due(self) -> None:
        for one in self.attachments.all:
            one.next_try_at = 0.0  # time passes as the draw says
        before = [one for one in self.attachments.all if one.is_waiting]
        self.attachments.open_due()
        self.begun += len(before)
        wait_until(lambda: len(self.logs.waiting) + self.ended() >= self.begun, message="the opening begins")

    def ended(self) -> int:
        return len(self.logs.readers) + self.failed

    failed = 0

    def finish_oldest(self) -> None:
        self._finish(0, fails=False)

    def finish_newest(self) -> None:
        self._finish(-1, fails=False)

    def fail_oldest(self) -> None:
        self._finish(0, fails=True)

    def _finish(self, index: int, *, fails: bool) -> None:
        ended = self.ended()
        if not self.logs.let_go_on(index, fails=fails):
            return
        if fails:
            self.failed += 1
        else:
            wait_until(lambda: self.ended() > ended, timeout_seconds=10, message="the opening ends")

    def release(self) -> None:
        """What the application has finished goes."""
        for one in self.attachments.to_release():
            self.attachments.release(one)
        self.see_closed()

    def hand_out(self) -> None:
        for one in self.attachments.all:
            if one.reader is not None and not one.owned.release:
                one.delivered = (1,)

    def settle(self) -> None:
        for one in self.attachments.all:
            one.acknowledged = one.delivered

    def lose(self) -> None:
        for one in self.attachments.all:
            self.attachments.lose(one)
        self.see_closed()

    def see_closed(self) -> None:
        """What is held no longer is closed, aside."""
        wait_until(self._is_rest_closed, message="what was let go of is closed")

    def _is_rest_closed(self) -> bool:
        held = [one.reader for one in self.attachments.all]
        return all(reader.closes for reader in self.logs.readers if reader not in held)


STEPS: tuple[Callable[[Run], None], ...] = (
    Run.revoke,
    Run.grant_back,
    Run.take_away,
    Run.grant_anew,
    Run.hear,
    Run.open_due,
    Run.finish_oldest,
    Run.finish_newest,
    Run.fail_oldest,
    Run.release,
    Run.hand_out,
    Run.settle,
    Run.lose,
)


def check(run: Run) -> None:
    """After every step: what is held is what is read, nothing is closed twice, and what was delivered and is not settled stays."""
    held = [one.reader for one in run.attachments.all if one.reader is not None]
    assert len(run.attachments.all) <= 1
    assert all(isinstance(reader, Reader) and not reader.closes for reader in held)
    assert all(reader.closes <= 1 for reader in run.logs.readers)


@given(st.lists(st.sampled_from(STEPS), max_size=40))
@settings(max_examples=cases(100, 2_000))
def test_whatever_the_order_one_reader_is_open_or_none_and_the_last_word_of_the_leader_holds(
    steps: list[Callable[[Run], None]],
) -> None:
    run = Run()
    try:
        for step in steps:
            step(run)
            check(run)

        run.grant_anew()  # the leader's last word, long after: it is read
        run.hear()
        while run.logs.let_go_on(0, fails=False):
            pass
        [one] = run.attachments.all
        wait_until(
            lambda: one.is_waiting or run.opening() or one.reader, message="whoever was there has gone"
        )
        run.open_due()
        while run.logs.let_go_on(0, fails=False):
            pass
        wait_until(lambda: not run.opening(), message="nothing is being opened any more")
        assert one.owned.generation == run.generation
        assert one.reader is not None
        wait_until(lambda: run.logs.open == 1, timeout_seconds=10, message="no other reader is open")
    finally:
        while run.logs.let_go_on(0, fails=False):
            pass
        run.attachments.close()
    assert run.logs.open == 0
    assert all(reader.closes == 1 for reader in run.logs.readers)
