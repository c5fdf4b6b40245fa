"""Notifies clients that watch layouts or topics: one listening connection and one reading thread, regardless
of the number of watchers.

A feed knows its watchers, and reads what they watch (`layout_feed`, `topic_feed`). `Feeds` waits for notifications
and makes each feed read and notify. A watcher is added before its subject is read, so that no change is missed.
Everything is read again after the listening connection was interrupted, and every `SWEEP_SECONDS`.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from controller import client_metrics, telemetry
from controller.clock import Clock
from controller.domain.errors import NotFound, Retryable, TopicNotLive
from controller.postgres.listener import Listener
from controller.postgres.notification import Notification
from controller.repeating import Repeating, Stoppable

log = telemetry.get_logger(__name__)

SWEEP_SECONDS = 30.0
"""Seconds between two readings of everything; the longest delay that a lost notification causes."""
LONGEST_WAIT_SECONDS = 1.0
"""Longest wait of a round, and longest pause after a failed round."""
Subject = TypeVar("Subject", bound=Hashable)
Pushed = TypeVar("Pushed")
Pushed_contra = TypeVar("Pushed_contra", contravariant=True)


class Watcher(Protocol[Pushed_contra]):
    """Destination of pushed values. Called from the feeds' thread; never blocks."""

    def push(self, pushed: Pushed_contra) -> None:
        """Send the value. It supersedes a value that was not sent yet."""

    def end(self, reason: str) -> None:
        """Send the reason, and close."""


class Feed(ABC, Generic[Subject, Pushed]):
    """Watched subjects and their watchers, and the value that each subject's watchers received last. A subclass reads
    subjects, and knows which notifications concern them. `watch`, `forget` and `look` are thread-safe; only the feeds'
    thread calls the other methods of this class.
    """

    subject_field: ClassVar[str]
    """Name of the log field with the subject of an error."""

    def __init__(self, wake: Callable[[], None], clock: Clock, *, gather_seconds: float = 0.0) -> None:
        """`wake` makes the feeds' thread start its next round at once; `watch` calls it, in its caller's thread. A
        subject is read `gather_seconds` after the first notification that concerns it.
        """
        self._wake, self._clock, self._gather_seconds = wake, clock, gather_seconds
        self._lock = threading.Lock()
        self._watchers: dict[Subject, set[Watcher[Pushed]]] = {}
        self._new: dict[Subject, set[Watcher[Pushed]]] = {}
        """Watchers that have received no value yet."""
        self._due: dict[Subject, float] = {}
        """Monotonic times at which subjects are read."""
        self._pushed: dict[Subject, Pushed] = {}

    @abstractmethod
    def look(self, subject: Subject) -> Pushed:
        """Read and return the present value of the subject. Requests call this method in threads of their own, so a
        subclass must keep it thread-safe. Raises NotFound if there is no such subject, and TopicNotLive if the subject
        has no value yet.
        """

    @abstractmethod
    def _concerned(self, notifications: Sequence[Notification]) -> Callable[[Subject], bool]:
        """Return a function that returns True for a subject that the notifications concern."""

    def watch(self, subject: Subject, watcher: Watcher[Pushed]) -> None:
        """Add a watcher of the subject, and wake the feeds' thread, which sends the present value to the watcher. If
        there is no such subject, the feeds' thread ends the watch as `gone`. While the subject has no value, for
        example because the topic is being created, the watcher receives nothing. `forget` removes the watcher, also
        after the watch has ended.
        """
        with self._lock:
            self._watchers.setdefault(subject, set()).add(watcher)
            self._new.setdefault(subject, set()).add(watcher)
            self._due[subject] = -math.inf
        self._wake()

    def forget(self, subject: Subject, watcher: Watcher[Pushed]) -> None:
        """Remove the watcher without a notification to the watcher; no effect if it is not watching the subject. If
        the subject has no other watcher, the subject is no longer read, and the value that was sent last is forgotten.
        """
        with self._lock:
            watching = self._watchers.get(subject, set())
            watching.discard(watcher)
            self._new.get(subject, set()).discard(watcher)
            if not watching:
                for by_subject in (self._watchers, self._new, self._due, self._pushed):
                    by_subject.pop(subject, None)

    @property
    def due_in_seconds(self) -> float:
        """Seconds until the feed has something to read: 0 or less at once, infinity for nothing."""
        with self._lock:
            return min(self._due.values(), default=math.inf) - self._clock.monotonic_seconds()

    def notice(self, notifications: Sequence[Notification], *, is_sweep: bool) -> None:
        """Note which watched subjects must be read again: subjects that the notifications concern, after the time to
        gather; in a sweep, all subjects at once. A subject that is due earlier keeps its time. Reads and sends nothing.
        """
        is_concerned = self._concerned(notifications)
        due_at = self._clock.monotonic_seconds() + (0.0 if is_sweep else self._gather_seconds)
        with self._lock:
            for subject in self._watchers:
                if is_sweep or is_concerned(subject):
                    self._due[subject] = min(due_at, self._due.get(subject, math.inf))

    def notify(self) -> None:
        """Read each watched subject that is due once. Send the value to all watchers of the subject if it differs from
        what was sent last, and otherwise only to new watchers. If the subject is gone, its watches end as `gone`, but
        the watchers are not removed. Watchers of a subject without a value receive nothing.

        A Retryable error of a reading, such as StoreUnavailable, is raised, and the next call reads all subjects that
        were due again. Any other error of a subject is logged and counted, and the next sweep reads that subject
        again; the other subjects are not affected.
        """
        due_subjects = self._take_due()
        for subject in due_subjects:
            try:
                value = self.look(subject)
            except NotFound:
                self._end("gone", subject)
            except TopicNotLive:
                continue  # The commit of the creation is notified, and the topic is then read again.
            except Retryable:
                with self._lock:
                    self._due |= dict.fromkeys(due_subjects & self._watchers.keys(), -math.inf)
                raise
            except Exception:
                # The next sweep reads this subject again; the watchers of other subjects are notified.
                client_metrics.LOOP_ERRORS.labels("watchers not notified").inc()
                log.exception("watchers not notified", **{self.subject_field: subject})
            else:
                self._push(subject, value)

    def end_all(self, reason: str) -> None:
        """End all watches with the reason. The watchers are not removed."""
        self._end(reason)

    def _take_due(self) -> set[Subject]:
        """Return the subjects that are due, possibly none. These subjects are due again only after the next
        notification, sweep or `watch`.
        """
        now = self._clock.monotonic_seconds()
        with self._lock:
            due_subjects = {subject for subject, due_at in self._due.items() if due_at <= now}
            for subject in due_subjects:
                del self._due[subject]
        return due_subjects

    def _push(self, subject: Subject, value: Pushed) -> None:
        """Send the value to all watchers of the subject, and remember it as the value that was sent last. If it equals
        the value that was sent last, only send it to watchers that have received no value yet.
        """
        with self._lock:
            if subject not in self._watchers:
                return  # The last watcher was forgotten while the subject was read.
            new_watchers = self._new.pop(subject, set())
            is_unchanged = self._pushed.get(subject) == value
            self._pushed[subject] = value
            watchers = tuple(new_watchers if is_unchanged else self._watchers[subject])
        for watcher in watchers:
            watcher.push(value)

    def _end(self, reason: str, *subjects: Subject) -> None:
        """End the watches of the subjects (none given: of all subjects) with the reason, without holding the lock."""
        with self._lock:
            watchers = [
                watcher
                for subject in subjects or self._watchers
                for watcher in self._watchers.get(subject, ())
            ]
        for watcher in watchers:
            watcher.end(reason)


class Feeds(Stoppable):
    """A background service of the worker that waits for notifications, and makes each feed read what changed
    and notify its watchers.
    """

    def __init__(self, listener: Listener, feeds: Sequence[Feed[Any, Any]], *, clock: Clock) -> None:
        super().__init__(listener.interrupt)
        self._listener, self._feeds, self._clock = listener, tuple(feeds), clock
        self._sweep_at = -math.inf

    def run(self) -> None:
        """Run rounds until `stop`; then end every watch with the reason `moved`, and close the listener. An error of
        a round is logged, not raised, and the round is repeated, for a Retryable error after its own delay, up to
        `LONGEST_WAIT_SECONDS`.
        """
        Repeating(
            self._round,
            self._stopping,
            log,
            "watchers not notified",
            retry_seconds=(0.0, LONGEST_WAIT_SECONDS),
            longest_pause_seconds=LONGEST_WAIT_SECONDS,
        ).run()
        for feed in self._feeds:
            feed.end_all("moved")
        self._listener.close()

    def _round(self) -> float:
        """Wait for notifications, then have each feed read what is due and notify its watchers. Return 0, because the
        next round begins at once. If a feed raises an error, the other feeds still notify their watchers; the error
        of the last feed that failed is raised at the end. If the wait raises an error, no feed is called.
        """
        self._wait()
        with ExitStack() as stack:
            for feed in reversed(self._feeds):
                stack.callback(feed.notify)
        return 0.0

    def _wait(self) -> None:
        """Wait until a notification arrives, a feed is due, or `LONGEST_WAIT_SECONDS` have passed. Then pass the
        notifications, possibly none, to each feed, which notes what it must read. In the first round, at least every
        `SWEEP_SECONDS`, and if notifications may have been lost, this is a sweep: each feed notes that everything
        must be read.
        """
        due_in_seconds = min(feed.due_in_seconds for feed in self._feeds)
        notifications = self._listener.wait(max(0.0, min(due_in_seconds, LONGEST_WAIT_SECONDS)))
        now = self._clock.monotonic_seconds()
        is_sweep = now >= self._sweep_at or any(notification.is_resync for notification in notifications)
        if is_sweep:
            self._sweep_at = now + SWEEP_SECONDS
        for feed in self._feeds:
            feed.notice(notifications, is_sweep=is_sweep)
