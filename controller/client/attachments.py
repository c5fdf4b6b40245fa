"""Opens and closes the readers of the buckets that one consumer owns.

`Session` says which buckets the consumer owns; this module follows it. An attachment stands for one
ownership: one segment, one bucket and one generation. It holds all state of the ownership, so a late event
cannot be applied to another ownership. Readers are opened and closed in background threads, so a log out of
reach delays no other log.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from typing import Any

from controller.client.broken_log_reports import SuspectReports
from controller.client.reader_set import WAITS_FOR_RECEIVE, ReaderSet
from controller.client.reader_slot import ReaderSlot
from controller.client.session import Assignment, OwnedBucket
from controller.clock import boot_seconds
from controller.dataplane.log_client import LogClient, LogReader, Ownership, Position
from controller.domain.errors import CleaveError, FencedOut, LogShortened, LostRace, NotFound

FENCED_SECONDS = 5.0
"""Time after which a bucket that a newer ownership holds is returned to the leader."""


class Attachment(ReaderSlot[LogReader]):
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
        """Create the attachment without opening its log. `origin` is the number of the subscription's position
        numbering in which the bucket is owned. `wakeup` is set when there may be work for the consumer's thread.
        `delay_seconds` is the delay before the first opening. The log is not opened before the event `after` is set;
        None: at once.

        `on_opened` is called in the opening thread when an opening has succeeded or failed. `on_free` is called in
        the thread of a query when the query has ended and the bucket is to be released. `on_missing` is called, in
        any thread, each time the log is found missing.
        """
        super().__init__(owned.segment_id, owned.backing_topic, wakeup, delay_seconds, after, on_missing)
        self.key, self.place = owned.identity, owned.identity[:2]
        self.owned, self.origin, self._on_opened, self._on_free = owned, origin, on_opened, on_free
        self.delivered: Position | None = None
        """Position of the last delivered message; None: none was delivered."""
        self.acknowledged: Position | None = None
        """Position up to which the messages are acknowledged; None: none is."""
        self.stored: Position | None = None
        """Position that the application's stored results had reached when the bucket was opened."""
        self._reason_and_since = ("being opened", boot_seconds())
        self.is_release_notified = False
        """True once the application was notified of the release, which happens once."""
        self.is_full = False
        """True while so many messages are unacknowledged that no more are to be read."""
        self.work: str | None = None
        """Why unacknowledged messages do not progress, as reported by the component that processes them."""

    @property
    def is_idle(self) -> bool:
        """True if all delivered messages are acknowledged, or none was delivered."""
        return self.delivered == self.acknowledged

    @property
    def is_readable(self) -> bool:
        """True if the log may be read: neither full nor to be released, and the conditions of every `ReaderSlot`."""
        return not self.owned.release and not self.is_full and super().is_readable

    @property
    def is_fenced_out(self) -> bool:
        """True if a newer ownership has held the bucket for `FENCED_SECONDS`. If the bucket is still assigned to this
        consumer, the leader's database was restored, and lacks the newer ownership.
        """
        return (
            isinstance(self.error, FencedOut) and boot_seconds() - self.since(self.reason) >= FENCED_SECONDS
        )

    @property
    def reason(self) -> str:
        """The reason why no message of the bucket is delivered at present, as text.

        The result is the first of these reasons that applies: an error of the last opening or read (held by another
        reader, or out of reach); the setback, unless the bucket is to be released; the opening in progress; a release
        in progress; `work`, the reason of the component that processes the messages; the wait for the application's
        next `receive`, if the log may have messages; and the log without further messages.
        """
        if self.error is not None:
            has_other_reader = isinstance(self.error, LostRace | FencedOut)
            return f"{'held by another reader' if has_other_reader else 'out of reach'}: {self.error}"
        if self.setback is not None and not self.owned.release:
            return self.setback
        if self.reader is None:
            return "being opened"
        if self.owned.release:
            return (
                "being handed over"
                if self.is_idle
                else "being handed over once its delivered messages are acknowledged"
            )
        if self.work is not None:
            return self.work
        if self.signal.is_set():
            return WAITS_FOR_RECEIVE
        return "no data" if self.is_idle else "no data beyond what is in hand"

    def since(self, reason: str) -> float:
        """Return the time, in `boot_seconds`, since which `reason` has held. Reasons are compared by their kind: the
        text before the first colon; all texts of `work` are one kind. A call with another kind than the last call
        stores the present time and returns it. Later calls with the same kind return the stored time, until messages
        are read (`note_flow`). "being opened" counts from the creation of the attachment.

        WAITS_FOR_RECEIVE does not replace the stored kind and time, because only the next poll shows if the log has
        messages. The result is then the present time, or, if no other reason came after the last reading, the time of
        that reading. For any thread.
        """
        kind = "at work" if reason == self.work else reason.partition(":")[0]
        last_kind, began_at = self._reason_and_since
        if last_kind == kind:
            return began_at
        now = boot_seconds()
        if kind != WAITS_FOR_RECEIVE:  # the log may have no messages, which only the next poll shows
            self._reason_and_since = kind, now
        return now

    def note_flow(self) -> None:
        """Note that messages were read: clear the setback, and restart the time of the reason."""
        self.setback = None
        self._reason_and_since = WAITS_FOR_RECEIVE, boot_seconds()

    def open(self, open_reader: Callable[[], LogReader]) -> None:
        """Open the log with `open_reader`, store the reader or the error, wake the consumer, and call `on_opened`,
        also after an error. Nothing is opened if the attachment was closed before. Runs in a background thread, after
        `begin_opening` returned True. Raises nothing.
        """
        super().open(open_reader)
        self.since(self.reason)
        self._on_opened()

    def ask(self, question: Callable[[], Any], result: Future[Any]) -> None:
        """Run `question`, and set its result or its Exception in the future `result`. Then wake the consumer, and
        call `on_free` if the bucket is to be released. Runs in a background thread, after `reserve_query`, which
        returned `result`.
        """
        super().ask(question, result)
        if self.owned.release:
            self._on_free()

    def take(self, logs: LogClient, subscription: str, owner: str, claim: StoredPosition) -> LogReader:
        """Open the reader of the bucket, set `stored` to the position that `claim` returns, and return the
        reader. The reader of an earlier owner of the bucket is disconnected. Raises the errors of
        `LogClient.open_reader` and of `claim`; if `claim` raises, the reader is closed. Runs in the opening
        thread, as the `open_reader` of `open`.
        """
        owned = self.owned
        reader = logs.open_reader(
            owned.backing_topic,
            subscription,
            owner=owner,
            live_owners=(),
            on_arrival=self.notify,
            bucket=owned.bucket if owned.buckets > 1 else None,
            ownership=Ownership(self.origin, owned.generation),
        )
        try:
            self.stored = claim(self)
        except BaseException:
            reader.close()
            raise
        return reader


StoredPosition = Callable[[Attachment], Position | None]
"""Returns the position that the application's results have reached in a bucket that was just opened."""


class Attachments(ReaderSet[Attachment]):
    """All attachments of one consumer, by segment, bucket and generation. For one thread at a time, except methods that
    are marked for any thread. After `close_all_in_background` closed attachments stay in the set until the next
    `adopt`.
    """

    # The consumer waits for a cursor that another reader holds (LostRace, FencedOut), and for a cursor or log that does
    # not exist. The session detects if another process has replaced this consumer.
    _awaited = (NotFound, FencedOut)

    def __init__(
        self,
        logs: LogClient,
        subscription: str,
        owner: str,
        wakeup: threading.Event,
        suspects: SuspectReports,
        claim: StoredPosition = lambda _attachment: None,
        on_opened: Callable[[], None] = lambda: None,
        on_free: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the set without attachments. `owner` is the consumer's name, and `wakeup` is set when there may be
        work for the consumer's thread.

        `claim` is called in the opening thread after the reader of an attachment was opened, and before messages are
        read. Its result becomes `Attachment.stored`. If `claim` raises, the reader is closed and the opening has
        failed. `on_opened` is called in the same thread after each opening, successful or not.

        `on_free` is called, in any thread, when an attachment was closed or may have become ready for release. It
        must only notify the thread that uses this object, which then calls `adopt` and `to_release`. `suspects`
        receives reports of missing logs, and is closed together with this object.
        """
        super().__init__(
            lambda attachment: attachment.take(logs, subscription, owner, claim), suspects, on_free
        )
        self._wakeup, self._on_opened, self._on_free = wakeup, on_opened, on_free
        self._released: set[tuple[int, int, int]] = set()
        self._setbacks: dict[Hashable, tuple[int, str | None]] = {}
        """Of each place that was lost last, the generation of the ownership and its setback, until a message of the bucket
        is acknowledged.
        """

    def adopt(self, assignment: Assignment | None) -> list[OwnedBucket]:
        """Follow the assignment (None: without buckets). Attachments whose buckets are no longer owned in the same
        generation are removed and closed in the background. The other attachments are updated. For each owned bucket
        that is to be read and has no attachment, an attachment is created, which `open_due` opens, after a delay if
        the bucket was lost (`lose`). An attachment that `close_all_in_background` closed is replaced.

        Return the owned buckets without an attachment that the leader wants released or that `release` has released,
        in the order of the assignment. The caller reports these buckets to the leader as released; each call returns
        them again while the assignment contains them. A bucket whose reader is still being closed is returned by a
        later call, after the end of the close.
        """
        owned = {bucket.identity: bucket for bucket in assignment.buckets} if assignment else {}
        origin = assignment.origin if assignment else 0
        for identity in [identity for identity, attachment in self._slots.items() if attachment.is_closed]:
            del self._slots[identity]  # released by `close_all_in_background`
        for identity in [identity for identity in self._slots if identity not in owned]:
            self._stop(self._slots[identity])
        released = []
        self._released &= owned.keys()
        for identity, bucket in owned.items():
            attachment = self._slots.get(identity)
            if attachment is not None:
                if bucket.sealed and not attachment.owned.sealed:
                    attachment.signal.set()  # the segment may have reached its end
                attachment.owned = bucket
                continue
            after = self._threads.leaving(identity[:2])
            if bucket.release or identity in self._released:
                # A released bucket is not opened again, because the report of its release may be under way.
                released += [bucket] if after is None else []
            else:
                backoff = self._backoffs.get(identity[:2])
                delay_seconds = 0.0 if backoff is None else backoff.next_seconds()
                self._slots[identity] = Attachment(
                    bucket,
                    origin,
                    self._wakeup,
                    delay_seconds,
                    self._on_opened,
                    self._on_free,
                    after,
                    partial(self._suspects.report, bucket.segment_id),
                )
                generation, setback = self._setbacks.get(identity[:2], (None, None))
                # in another generation, another consumer may have read on meanwhile
                if generation == bucket.generation:
                    self._slots[identity].setback = setback
        return released

    def to_release(self) -> list[Attachment]:
        """Return the attachments whose buckets the leader wants released and that have no unacknowledged messages, in
        no order; also those that are fenced out, so that the leader assigns their buckets again, under a newer
        generation. The call marks each returned attachment (`is_release_notified`), so that no later call returns the
        attachment: notifying the application of a release may call this method again. Nothing is closed or reported;
        the caller calls `release`.

        An attachment with an opening or a query in progress is not returned until the opening or the query has ended.
        The opening ends with a reader, and the query may move the cursor; neither may happen after the next owner of
        the bucket has begun.
        """
        ready = [
            attachment
            for attachment in self._slots.values()
            if (attachment.owned.release or attachment.is_fenced_out)
            and attachment.is_idle
            and attachment.is_unused
            and not attachment.is_release_notified
        ]
        for attachment in ready:
            attachment.is_release_notified = True
        return ready

    def release(self, attachment: Attachment) -> None:
        """Remove the attachment, close its reader in a background thread, and never open this ownership again. When
        the reader is closed, `on_free` is called, and `adopt` then returns the bucket for the report of its release.
        """
        self._released.add(attachment.owned.identity)
        self._stop(attachment)

    def lose(self, attachment: Attachment, error: CleaveError | None = None) -> None:
        """Remove the attachment, and close its reader in a background thread. The ownership stays: while the bucket
        is assigned, the next `adopt` creates another attachment of the bucket. The delay before that attachment is
        opened grows with each loss until a message of the bucket is acknowledged (`settled`).

        `error` is the cause of the loss. The text of a LogShortened becomes the setback of the next attachment of
        this generation; with any other cause, that attachment keeps the present setback.
        """
        self._backoff(attachment.place)
        setback = error.message if isinstance(error, LogShortened) else attachment.setback
        self._setbacks[attachment.place] = attachment.owned.generation, setback
        self._stop(attachment)

    def settled(self, slot: Attachment) -> None:
        """Note that a message of the attachment was acknowledged, which ends the growing delay."""
        super().settled(slot)
        self._setbacks.pop(slot.place, None)

    def close_all_in_background(self) -> None:
        """Close all attachments in background threads while the consumer's thread is busy, because other
        consumers may own their buckets. `adopt` removes them later. For any thread.
        """
        for attachment in [*self._slots.values()]:
            self._threads.stop(attachment)


def settle_each(attachments: Sequence[Attachment], settle: Callable[[Attachment], None]) -> None:
    """Call `settle` for each attachment, in order, even if an earlier call raises. The last error is raised
    at the end.
    """
    with ExitStack() as stack:
        for attachment in reversed(attachments):
            stack.callback(settle, attachment)
