"""The buckets one consumer reads: one object for each ownership, opened aside, let go of when the application has finished.

`Session` says which buckets are this consumer's; this opens and closes their readers accordingly. An attachment is of one segment,
one bucket and one generation, and holds all there is to know of that ownership, so nothing that arrives late can be taken for
another's. Readers are opened and closed in threads aside: a log out of reach delays no other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from operator import itemgetter
from typing import Any

from controller.client.opening import (
    FIRST_RETRY_SECONDS,
    LONGEST_RETRY_SECONDS,
    Opening,
    next_try_at,
)
from controller.client.patience import Backoff
from controller.client.reader_threads import ReaderThreads
from controller.client.rounds import WAITS_FOR_RECEIVE
from controller.client.session import Assignment, OwnedBucket
from controller.client.suspects import SuspectReports
from controller.clock import boot_seconds
from controller.dataplane.base import LogClient, LogReader, Ownership, Position
from controller.domain.errors import (
    CleaveError,
    DataPlaneUnavailable,
    FencedOut,
    LogShortened,
    LostRace,
    NotFound,
    StoreUnavailable,
    Terminal,
)


class Attachment(Opening[LogReader]):
    """One ownership of one bucket."""

    def __init__(
        self,
        owned: OwnedBucket,
        origin: int,
        wakeup: threading.Event,
        delay_seconds: float = 0.0,
        on_opened: Callable[[], None] = lambda: None,
        on_free: Callable[[], None] = lambda: None,
        after: threading.Event | None = None,
        on_missing: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_opened` is called in the opening thread when an opening has ended, well or not, `on_free` in the asking thread when it may
        be let go of, and is to be. See `Opening`.
        """
        super().__init__(owned.backing_topic, wakeup, delay_seconds, after, on_missing)
        self.owned, self.origin, self._on_opened, self._on_free = owned, origin, on_opened, on_free
        self.delivered: Position | None = None
        self.acknowledged: Position | None = None
        self.stored: Position | None = None
        """What the application's results held of it when it was taken."""
        self._standing = ("being opened", boot_seconds())
        self.is_going = False
        """It is being let go of: the application is told of it once."""
        self.is_full = False
        """So much of it is in hand that nothing more is to be read for now."""
        self.work: str | None = None
        """What stands in the way of what is in hand, as whoever works on it says."""

    @property
    def is_idle(self) -> bool:
        """Whether everything handed out is acknowledged."""
        return self.delivered == self.acknowledged

    @property
    def reason(self) -> str:
        """Why nothing of it is handed out just now."""
        if self.error is not None:
            is_held = isinstance(self.error, LostRace | FencedOut)
            return f"{'held by another reader' if is_held else 'out of reach'}: {self.error}"
        if self.setback is not None and not self.owned.release:
            return self.setback
        if self.reader is None:
            return "being opened"
        if self.owned.release:
            return (
                "being handed over"
                if self.is_idle
                else "being handed over once what is in hand is acknowledged"
            )
        if self.work is not None:
            return self.work
        if self.rung.is_set():
            return WAITS_FOR_RECEIVE
        return "no data" if self.is_idle else "no data beyond what is in hand"

    def since(self, reason: str) -> float:
        """When this reason began to hold, `boot_seconds`: when it was asked for first. For any thread."""
        kind = "at work" if reason == self.work else reason.partition(":")[0]
        known, began = self._standing
        if known == kind:
            return began
        now = boot_seconds()
        if kind != WAITS_FOR_RECEIVE:  # which may be nothing, once it is read
            self._standing = kind, now
        return now

    def note_flow(self) -> None:
        """Something of it was read: whatever kept it back is over."""
        self.setback = None
        self._standing = WAITS_FOR_RECEIVE, boot_seconds()

    def open(self, act: Callable[[], LogReader]) -> None:
        """See `Opening`."""
        super().open(act)
        self.since(self.reason)
        self._on_opened()

    def ask(self, question: Callable[[], Any], asked: Future[Any]) -> None:
        """See `Opening`."""
        super().ask(question, asked)
        if self.owned.release:
            self._on_free()

    def take(self, logs: LogClient, subscription: str, owner: str, claim: StoredPosition) -> LogReader:
        """The bucket's part of the cursor, and its row beside the results; for `open`."""
        owned = self.owned
        reader = logs.open_reader(
            owned.backing_topic,
            subscription,
            owner=owner,
            live_owners=(),
            on_arrival=self.ring,
            bucket=owned.bucket if owned.buckets > 1 else None,
            ownership=Ownership(self.origin, owned.generation),
        )
        try:
            self.stored = claim(self)
        except BaseException:
            reader.close()
            raise
        return reader


class _Loss:
    """Losses of a bucket that this consumer owns, until something of the bucket is acknowledged."""

    def __init__(self) -> None:
        self.backoff = Backoff(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS)
        self.setback: str | None = None


StoredPosition = Callable[[Attachment], Position | None]
"""How far the application's results are in a bucket that was just taken."""


class Attachments:
    """For one thread at a time, but for what says that it is for any."""

    def __init__(
        self,
        logs: LogClient,
        subscription: str,
        owner: str,
        wakeup: threading.Event,
        claim: StoredPosition = lambda _attachment: None,
        on_opened: Callable[[], None] = lambda: None,
        on_free: Callable[[], None] = lambda: None,
        suspects: SuspectReports | None = None,
    ) -> None:
        """`claim` is called with each that was opened, in the opening thread, before anything of it is read; `on_opened` there too,
        when an opening has ended. `on_free` is called, in any thread, when something is closed or may be let go of: it is time to
        `adopt`, and to look at what is `to_release`. `suspects` is told of logs that are missing, and closed with this.
        """
        self._suspects = suspects
        self._logs, self._subscription, self._owner, self._wakeup = logs, subscription, owner, wakeup
        self._claim, self._on_opened, self._on_free = claim, on_opened, on_free
        self._held: dict[tuple[int, int, int], Attachment] = {}
        self._released: set[tuple[int, int, int]] = set()
        self._losses: dict[tuple[int, int], _Loss] = {}
        self._threads = ReaderThreads(on_free)
        self._turn = 0

    @property
    def all(self) -> tuple[Attachment, ...]:
        """Every ownership, by segment, bucket and generation. For any thread."""
        return tuple(one for _, one in sorted([*self._held.items()], key=itemgetter(0)))

    @property
    def next_try_at(self) -> float:
        """When the next one is worth another try, `time.monotonic` seconds; infinity where none is waited for."""
        return next_try_at([*self._held.values()])

    def adopt(self, assignment: Assignment | None) -> list[OwnedBucket]:
        """Follow an assignment. What is no longer owned is closed: its owner is another by now. The buckets to release that nothing is
        held of any more are given back, to be said so, and said again. What is still being closed is among them once it is.
        """
        owned = {one.identity: one for one in assignment.buckets} if assignment else {}
        origin = assignment.origin if assignment else 0
        for identity in [identity for identity, one in self._held.items() if one.is_closed]:
            del self._held[identity]  # let go of aside
        for identity in [identity for identity in self._held if identity not in owned]:
            self._stop(self._held[identity])
        gone = []
        self._released &= owned.keys()
        for identity, bucket in owned.items():
            held = self._held.get(identity)
            if held is not None:
                if bucket.sealed and not held.owned.sealed:
                    held.rung.set()  # its end may have come
                held.owned = bucket
                continue
            after = self._threads.leaving(identity[:2])
            if bucket.release or identity in self._released:
                # What was released once is not taken up again: the word of it may be under way.
                gone += [bucket] if after is None else []
            else:
                loss = self._losses.get(identity[:2])
                delay_seconds = 0.0 if loss is None else loss.backoff.next_seconds()
                self._held[identity] = Attachment(
                    bucket,
                    origin,
                    self._wakeup,
                    delay_seconds,
                    self._on_opened,
                    self._on_free,
                    after,
                    partial(self._report, bucket.segment_id),
                )
                self._held[identity].setback = None if loss is None else loss.setback
        return gone

    def open_due(self) -> None:
        """Have those opened whose time has come."""
        for one in self._held.values():
            act = partial(one.take, self._logs, self._subscription, self._owner, self._claim)
            self._threads.open(one, act)

    def ask(self, attachment: Attachment, question: Callable[[], Any]) -> None:
        """Have its reader asked what may take long; see `Opening.take_answer`."""
        self._threads.ask(attachment, question)

    def with_something_new(self) -> Iterator[tuple[Attachment, LogReader]]:
        """Those that may have something new, each in its turn. The caller stops when it found something."""
        identities = sorted(self._held)
        for _ in identities:
            self._turn += 1
            one = self._held.get(identities[self._turn % len(identities)])
            if (
                one is None
                or one.owned.release
                or one.is_full
                or not one.has_news
                or one.next_try_at > time.monotonic()
            ):
                continue
            reader = one.reader
            if reader is not None:
                yield one, reader

    def to_release(self) -> list[Attachment]:
        """Those that are to be let go of and whose messages are all settled, each once: what the application does when it is told of
        one may bring the caller here again. What is being opened or asked is not at rest: an opening ends with a reader, and a question
        may with moving the cursor to where it is, neither of which must come after the next owner.
        """
        ready = [
            one
            for one in self._held.values()
            if one.owned.release and one.is_idle and one.is_at_rest and not one.is_going
        ]
        for one in ready:
            one.is_going = True
        return ready

    def ring_all(self) -> None:
        """Have each read once, whether its log notified or not."""
        for one in self._held.values():
            one.rung.set()

    def holds(self, attachment: object) -> bool:
        """Whether this very ownership still goes on."""
        return isinstance(attachment, Attachment) and self._held.get(attachment.owned.identity) is attachment

    def release(self, attachment: Attachment) -> None:
        """Let go of it for good: this ownership is not taken up again. `adopt` tells when that is done."""
        self._released.add(attachment.owned.identity)
        self._stop(attachment)

    def lose(self, attachment: Attachment, error: CleaveError | None = None) -> None:
        """Stop reading it. While it is owned it is opened anew, later each time until something of it is acknowledged. `error`: why
        it was lost.
        """
        loss = self._losses.setdefault(attachment.owned.identity[:2], _Loss())
        loss.setback = error.message if isinstance(error, LogShortened) else attachment.setback
        self._stop(attachment)

    def succeed(self, attachment: Attachment) -> None:
        """Something of it is acknowledged."""
        self._losses.pop(attachment.owned.identity[:2], None)

    def lose_all(self) -> None:
        """Others may own all of it by now."""
        for one in [*self._held.values()]:
            self._stop(one)

    def let_go_aside(self) -> None:
        """Others may own all of it by now, and the consumer's thread is busy: have nothing attached. For any thread."""
        for one in [*self._held.values()]:
            self._threads.stop(one.owned.identity[:2], one)

    def _stop(self, attachment: Attachment) -> None:
        if self.holds(attachment):
            del self._held[attachment.owned.identity]
        self._threads.stop(attachment.owned.identity[:2], attachment)

    def demand_reached(self) -> None:
        """Raises why a log was out of reach when it was last tried, or can never be read. A cursor that is still held, or still
        being made, is waited for; whether this process is the stale one of its name, its session says.
        """
        for one in self._held.values():
            is_waited_for = isinstance(one.error, NotFound | FencedOut)
            if (
                isinstance(one.error, DataPlaneUnavailable | StoreUnavailable | Terminal)
                and not is_waited_for
            ):
                raise one.error

    def close(self) -> None:
        """Let go of all at once. Waits for what is being opened, asked and closed, since threads end before the process does."""
        self.lose_all()
        self._threads.close()
        if self._suspects is not None:
            self._suspects.close()

    def _report(self, segment_id: int) -> None:
        if self._suspects is not None:
            self._suspects.report(segment_id)


def settle_each(attachments: Sequence[Attachment], act: Callable[[Attachment], None]) -> None:
    """Call back for each; an error of one keeps none of the others from it, and the last is raised at the end."""
    with ExitStack() as stack:
        for one in reversed(attachments):
            stack.callback(act, one)
