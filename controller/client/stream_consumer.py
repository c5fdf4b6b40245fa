"""Reads a topic in the order of each key: the buckets that the topic's leader gives this consumer, parents before children.

What the consumer may read it is told (`session`). It hands out messages of a bucket while it owns that bucket and hears its leader;
it lets go of one when the application has acknowledged what it was given, and only then the next owner reads. Acknowledgements are
the application's alone: closing, or losing a bucket, acknowledges nothing.

While the application is busy with a batch, a thread of the consumer's own opens what it is given and lets go of what is idle (`stand_in`).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from controller import client_metrics
from controller.client.arguments import checks_arguments
from controller.client.attachments import Attachment, Attachments, settle_each
from controller.client.closing import ClosedByWith, close_and_say_goodbye
from controller.client.lag import BucketLag, lag_of
from controller.client.patience import patiently
from controller.client.position_table import Claim, PositionTable
from controller.client.rounds import LOOK_SECONDS, WAITS_FOR_RECEIVE, Rounds
from controller.client.servers import Servers
from controller.client.session import Session, Standing
from controller.client.stand_in import StandIn
from controller.client.suspects import SuspectReports
from controller.clock import boot_seconds
from controller.dataplane.base import LogClient, LogMessage, LogReader, Position
from controller.domain.entry_buckets import MOST_UNITS
from controller.domain.errors import (
    CleaveError,
    DataPlaneUnavailable,
    FencedOut,
    InvalidInput,
    LostRace,
    NotFound,
    StoreUnavailable,
    Terminal,
)
from controller.domain.hash_range import HashRange
from controller.forks import OneProcess

_log = logging.getLogger(__name__)

STANDING_SECONDS = 1.0
"""A reason that has held for so long is told to the leader."""
MOST_OF_A_REASON = 300


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages of one bucket of one segment, or of a run of buckets where it has many, in order. Acknowledge it when all of it is done
    with, or as far as it is.
    """

    segment_id: int
    bucket: HashRange
    messages: Sequence[LogMessage]
    origin: object
    """The ownership it came from. An acknowledgement after that has ended is refused."""
    after: Position | None = None
    """The last message that this ownership was given before; None where these are its first."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a log was asked aside: its next messages, and where there are none whether there can never be any."""

    messages: Sequence[LogMessage] = ()
    is_drained: bool = False


@dataclass(frozen=True, slots=True)
class BucketStatus:
    """Why nothing comes of a bucket just now. `holders` are the consumers that it waits for."""

    segment_id: int
    """Segment of the topic."""
    bucket: str
    """Range of hashes of the entry bucket, such as `0000-3fff`."""
    reason: str
    """Why no message comes, in words."""
    holders: tuple[str, ...] = ()
    """Consumers that the bucket waits for."""
    since: str | None = None
    """When that began, in ISO 8601, where it is known."""
    waits_for: tuple[int, ...] = ()
    """Segments that are to be read to their end before it, by the holders."""
    backlog: int | None = None
    """Messages that are unread in them, where they can be counted."""


@checks_arguments
class StreamConsumer(OneProcess, ClosedByWith):
    """One consumer of one subscription; for one thread, which goes on calling `receive`."""

    def __init__(
        self,
        servers: Servers,
        logs: LogClient,
        topic: str,
        subscription: str,
        name: str,
        *,
        batch_messages: int = 500,
        patience_seconds: float = 30.0,
        on_release: Callable[[int, HashRange], None] | None = None,
        positions: PositionTable | None = None,
    ) -> None:
        """Registers under `name`, which is this consumer's alone: a second one of that name takes its place.

        `patience_seconds` bounds how long a call goes on while the data plane is away, this one while no worker leads the topic.
        `on_release` is called, in the thread that calls `receive`, before a bucket goes to another consumer: everything handed out
        of it is acknowledged then, and the other waits for that call. Without, what is idle goes while the application is busy.
        With `positions` what `commit` has stored is not handed out again.
        """
        self.topic, self.subscription, self.name = topic, subscription, name
        self._batch_messages, self._patience_seconds = batch_messages, patience_seconds
        self._on_release, self._positions = on_release, positions
        self._wakeup = threading.Event()
        self._is_paused = False
        self._still_working: list[Callable[[], bool]] = []
        self._stand_in = StandIn(self._act_aside)
        self._attachments = Attachments(
            logs,
            subscription,
            name,
            self._wakeup,
            self._stored,
            self._stand_in.ring,
            self._changed,
            SuspectReports(servers, topic),
        )
        self._look_at = 0.0
        self._rounds = Rounds(self._wakeup, patience_seconds, DataPlaneUnavailable, StoreUnavailable)
        self._has_changed = threading.Event()
        self._session = Session(
            servers,
            topic,
            subscription,
            name,
            on_change=self._changed,
            on_lost=self._lost,
            standing=self._standing,
            patience_seconds=patience_seconds,
        )
        self._stand_in.start()

    @property
    def segment_ids(self) -> tuple[int, ...]:
        """Segments of which this consumer reads a bucket now."""
        return tuple(
            sorted({one.owned.segment_id for one in self._attachments.all if one.reader is not None})
        )

    @property
    def buckets(self) -> tuple[tuple[int, HashRange], ...]:
        """The buckets that this consumer reads now."""
        return tuple(
            (one.owned.segment_id, one.owned.bucket)
            for one in self._attachments.all
            if one.reader is not None and not one.owned.release
        )

    @property
    def batch_messages(self) -> int:
        """The most messages of one batch."""
        return self._batch_messages

    def why(self) -> tuple[BucketStatus, ...]:
        """Of every bucket that the subscription has to read why nothing of it comes here: an own one as this consumer knows it,
        any other as the leader does. Raises StoreUnavailable while no worker answers.
        """
        own: dict[int, list[Attachment]] = {}
        for one in self._attachments.all:
            own.setdefault(one.owned.segment_id, []).append(one)
        found = []
        for row in self._session.why():
            bucket = HashRange.parse(row["bucket"])
            holding = (one for one in own.get(row["segment_id"], ()) if one.owned.bucket.overlaps(bucket))
            mine = next(holding, None)
            found.append(_elsewhere(row) if mine is None else self._here(mine, row["bucket"]))
        return tuple(found)

    def lag(self) -> tuple[BucketLag, ...]:
        """Of all that the subscription has to read, here and elsewhere; the worker counts anew. Raises StoreUnavailable."""
        return lag_of(self._session.lag())

    def receive(self, timeout_seconds: float) -> Batch | None:
        """The next messages of one bucket, waiting for them at most so long; None when there are none.

        Raises FencedOut when another consumer took this one's name; TopicNotFound, SubscriptionNotFound when that is gone;
        DataPlaneUnavailable when all there is to read is out of reach for longer than the patience; InvalidInput once it is closed.
        """
        with self._stand_in.turn:
            return self._rounds.receive(
                timeout_seconds, self._look_or_demand, self._due_at, self._demand_alive
            )

    def wait(self, timeout_seconds: float) -> None:
        """Until there may be something to receive, somebody called `wake`, or the time is over."""
        due_at = self._attachments.next_try_at if self._session.is_current else math.inf
        self._wakeup.wait(max(0.0, min(timeout_seconds, due_at - time.monotonic(), LOOK_SECONDS)))

    def wake(self) -> None:
        """End a `wait`. For any thread."""
        self._wakeup.set()

    def has(self, batch: Batch) -> bool:
        """Whether the ownership that the batch came from goes on. What is in hand of one that has ended is delivered again."""
        return self._attachments.holds(batch.origin)

    def owns(self, batch: Batch) -> bool:
        """Whether the bucket is this consumer's at this moment, as far as the leader was heard. For any thread."""
        held = batch.origin
        return isinstance(held, Attachment) and held.reader is not None and self._is_ours(held)

    def may_begin(self, batch: Batch) -> bool:
        """Whether work on a message of the batch may begin at this moment. For any thread: ask in the one that begins it."""
        return not self._is_paused and self.owns(batch)

    def ask(self, what: str, document: Mapping[str, object]) -> Any:
        """Ask a worker as this consumer. For any thread. Raises StoreUnavailable, and what the worker refuses it with."""
        return self._session.ask(what, document)

    def acknowledge(
        self, batch: Batch, upto: Position | None = None, *, patience_seconds: float | None = None
    ) -> bool:
        """Done with the batch and everything before it in its bucket; with `upto`, with no more than that message and what is
        before it. `patience_seconds`: this call's, where it is not the consumer's.

        False when the bucket is not this consumer's any more, was moved by a seek, or the leader was not heard for too long: what
        was not acknowledged is delivered again, here or elsewhere.
        """
        with self._stand_in.turn:
            return self._acknowledge(
                batch, upto, self._patience_seconds if patience_seconds is None else patience_seconds
            )

    def commit(self, batch: Batch, connection: Any) -> None:
        """Note in the transaction of `connection`, where the results of this batch are, that they are; for a consumer with
        `positions`. Once it has committed, acknowledge the batch.

        Raises FencedOut when the bucket has another owner by now, AlreadyStored when an earlier transaction with these results
        did commit, Conflict when messages that were handed out before these are neither in the results nor acknowledged: do those
        first, or give them back. The transaction is to be rolled back then. So each message is in the results once.
        """
        if self._positions is None:
            raise InvalidInput(
                "this consumer keeps no positions; give it `positions` to commit results with them"
            )
        held = batch.origin
        if not isinstance(held, Attachment) or not self._attachments.holds(held):
            raise FencedOut(
                f"the bucket of segment {batch.segment_id} is not this consumer's any more; roll back"
            )
        after = batch.after
        if after is not None and held.acknowledged is not None and held.acknowledged >= after:
            after = None  # some of it without a result, as the application wanted
        self._positions.store(connection, self._claim(held), batch.messages[-1].position, after=after)

    def pause(self) -> None:
        """Hand out nothing until `resume`, and stay: what this consumer owns it keeps. Go on calling `receive`, which lets go of what
        others are to have. May be called from any thread.
        """
        self._is_paused = True
        for one in self._attachments.all:
            one.since(self._reason(one))

    def resume(self) -> None:
        """Hand out again. May be called from any thread."""
        self._is_paused = False
        self._wakeup.set()

    def give_back(self, batch: Batch) -> None:
        """This batch cannot be done now: what is unacknowledged of its bucket is delivered again, from its first message on, here
        or elsewhere. Nothing behind it is handed out before.
        """
        held = batch.origin
        with self._stand_in.turn:
            if isinstance(held, Attachment) and self._attachments.holds(held):
                self._lose(held)

    def let_go(self, batch: Batch) -> None:
        """Of a bucket that is being handed over: nothing of it is in hand any more. What is not acknowledged is the next owner's."""
        held = batch.origin
        with self._stand_in.turn:
            if isinstance(held, Attachment) and self._attachments.holds(held) and held.owned.release:
                held.delivered = held.acknowledged
                self._release()

    def stay_while(self, is_working: Callable[[], bool]) -> None:
        """`close` asks this, and does not leave while it says that messages of this consumer are being worked on."""
        self._still_working.append(is_working)

    def close(self, timeout_seconds: float | None = None, *, leave: bool = True) -> None:
        """Stop reading. What is unacknowledged is delivered again, elsewhere or to the next consumer of this name.

        With `leave` the session ends and others take over at once; without, a process that starts again under this name within the
        grace period finds everything as it was, and nobody else is disturbed. It stays, too, and logs that it does, while work on its
        messages goes on that `KeyedWork.close` did not wait for: a key would have two owners. It takes `timeout_seconds` (30) at most, of
        which a fifth, and no less than a second, is for the goodbye alone; that is said when this is interrupted, too.
        """
        timing = self._begin_close(timeout_seconds)
        self._wakeup.set()  # a `receive` that waits ends
        if leave and any(is_working() for is_working in self._still_working):
            _log.warning(
                "%s of %s, %s: work on its messages goes on, so it stays for the grace period and does not leave",
                self.name,
                self.topic,
                self.subscription,
            )
            leave = False
        close_and_say_goodbye(
            f"consumer {self.name} of {self.topic}",
            timing,
            self._stop_reading,
            lambda seconds: self._session.close(seconds, leave=leave),
        )

    def _described(self) -> str:
        return f"StreamConsumer of {self.topic}"

    def _demand_alive(self) -> None:
        self._demand_open()
        self._session.demand_alive()

    def _stop_reading(self) -> None:
        self._stand_in.stop()
        self._attachments.close()

    def _acknowledge(self, batch: Batch, upto: Position | None, patience_seconds: float) -> bool:
        held = batch.origin
        if not isinstance(held, Attachment) or not self._attachments.holds(held) or held.reader is None:
            return False
        if not self._session.is_current:
            self._lose(held)
            return False
        reader, position = held.reader, batch.messages[-1].position if upto is None else upto
        try:
            patiently(lambda: reader.acknowledge(position), seconds=patience_seconds)
        except (LostRace, NotFound, FencedOut) as error:
            self._lose(held, error)
            return False
        client_metrics.CONSUMER_ACKNOWLEDGED.labels("stream").inc(
            _settled(batch, held.acknowledged, position)
        )
        held.acknowledged = position if held.acknowledged is None else max(held.acknowledged, position)
        self._attachments.succeed(held)
        held.rung.set()  # it may be drained now
        if held.owned.release:
            self._release()
        return True

    def _reason(self, one: Attachment) -> str:
        if not self._session.is_current:
            return "the leader is not heard: it may be another's by now"
        return "paused" if self._is_paused and not one.owned.release else one.reason

    def _here(self, one: Attachment, bucket: str) -> BucketStatus:
        """Of a bucket that it holds, alone or in a run."""
        reason = self._reason(one)
        began = datetime.now(UTC) - timedelta(seconds=boot_seconds() - one.since(reason))
        return BucketStatus(one.owned.segment_id, bucket, reason, (), began.isoformat())

    def _standing(self) -> list[Standing]:
        """Why nothing comes of what is held, where that is not of a moment. For any thread."""
        now, found = boot_seconds(), []
        for one in self._attachments.all:
            reason = self._reason(one)
            since = one.since(reason)
            if reason != WAITS_FOR_RECEIVE and now - since >= STANDING_SECONDS:
                found.append(Standing(one.owned, _one_line(reason), since))
        return found

    def _lost(self) -> None:
        """The application may be busy with a batch for long, and others wait for what is attached here."""
        self._attachments.let_go_aside()
        self._changed()

    def _changed(self) -> None:
        self._has_changed.set()
        self._wakeup.set()
        self._stand_in.ring()

    def _act_aside(self) -> float:
        """Between two calls of the application: take what was given, let go of what is idle and asked for. In how many seconds
        there is something to do again.
        """
        if not self._session.is_current:
            return math.inf
        if self._has_changed.is_set():
            self._has_changed.clear()
            self._adopt()
        if self._on_release is None:
            self._release()
        else:  # the application is to be told first, in its own thread
            self._has_changed.set()
        self._attachments.open_due()
        return self._attachments.next_try_at - time.monotonic()

    def _due_at(self) -> float:
        """While the leader is not heard nothing is to be opened."""
        return min(self._look_at, self._attachments.next_try_at) if self._session.is_current else math.inf

    def _look_or_demand(self) -> Batch | None:
        """When there is nothing, what is out of reach is told."""
        batch = self._look()
        if batch is None:
            self._attachments.demand_reached()
        return batch

    def _look(self) -> Batch | None:
        """One round: follow the assignment, open what is ours, and read from the next bucket that has something.

        While the leader is not heard nothing is handed out.
        """
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_SECONDS
            self._has_changed.set()
            self._attachments.ring_all()
        if not self._session.is_current:
            if self._session.is_lost:
                self._attachments.lose_all()
            return None
        if self._has_changed.is_set():
            self._has_changed.clear()
            self._follow()
        self._attachments.open_due()
        if self._is_paused:
            return None
        for held, reader in self._attachments.with_something_new():
            batch = self._read(held, reader)
            if batch is not None:
                if self._is_ours(held):
                    client_metrics.CONSUMER_MESSAGES.labels("stream").inc(len(batch.messages))
                    return batch
                self._lose(held)  # the read took too long: somebody else may own it by now
        return None

    def _is_ours(self, held: Attachment) -> bool:
        """Whether the bucket was this consumer's while it was read, and is."""
        assignment = self._session.assignment
        return (
            self._session.is_current
            and assignment is not None
            and held.owned.identity in assignment.identities
        )

    def _follow(self) -> None:
        """Take and let go of buckets as the leader says."""
        self._adopt()
        self._release()

    def _adopt(self) -> None:
        gone = self._attachments.adopt(self._session.assignment)
        if gone:
            self._session.say_released(gone)

    def _release(self) -> None:
        """Let go of what others wait for and the application has finished. The leader is told when it is closed (`_adopt`)."""

        def release(one: Attachment) -> None:
            try:
                if self._on_release is not None:
                    self._on_release(one.owned.segment_id, one.owned.bucket)
            finally:
                self._attachments.release(one)

        settle_each(self._attachments.to_release(), release)

    def _read(self, held: Attachment, reader: LogReader) -> Batch | None:
        """The bucket's next batch. When there is none, tell the leader if there can never be one in this segment."""
        try:
            found = self._answer(held, reader)
            if found is None:
                return None
            held.succeed()
            if found.messages:
                return self._batch(held, reader, found.messages)
            held.since(self._reason(held))
            if found.is_drained:
                self._session.say_drained([held.owned])
        except (LostRace, NotFound, FencedOut) as error:
            self._lose(held, error)
        except (DataPlaneUnavailable, Terminal) as error:  # of this bucket alone: others go on
            held.rung.set()
            held.fail(error)
            held.since(self._reason(held))
        return None

    def _answer(self, held: Attachment, reader: LogReader) -> _Answer | None:
        """What comes next of a bucket; None where nothing has arrived. What the log has to be asked for is asked aside and comes with a
        later look.
        """
        answer: _Answer | None = held.take_answer()
        if answer is not None:
            return answer
        held.rung.clear()
        limit, may_be_drained = self._batch_messages, held.owned.sealed and held.is_idle
        is_far = reader.may_wait()
        if not is_far:
            found = reader.read(limit)
            if found or not may_be_drained:
                return _Answer(found)

        def ask() -> _Answer:
            messages = reader.read(limit) if is_far else ()
            return _Answer(messages, not messages and may_be_drained and reader.is_drained())

        # What counts is the log's own answer; that it is sealed and nothing in hand only saves asking for it.
        self._attachments.ask(held, ask)
        return None

    def _batch(self, held: Attachment, reader: LogReader, found: Sequence[LogMessage]) -> Batch | None:
        """Of what was read, what is not done already."""
        held.note_flow()
        held.rung.set()
        messages = _beyond(held.stored, found)
        if not messages:  # the log had not heard that they are done
            reader.acknowledge(found[-1].position)
            self._wakeup.set()
            return None
        after, held.delivered = held.delivered, messages[-1].position
        return Batch(held.owned.segment_id, held.owned.bucket, messages, held, after)

    def _stored(self, held: Attachment) -> Position | None:
        return None if self._positions is None else self._positions.claim(self._claim(held))

    def _claim(self, held: Attachment) -> Claim:
        owned = held.owned
        return Claim(
            self._session.topic_id,
            self.subscription,
            held.origin,
            owned.segment_id,
            owned.bucket_start,
            owned.generation,
            owned.bucket_end if owned.buckets > MOST_UNITS else None,
        )

    def _lose(self, held: Attachment, error: CleaveError | None = None) -> None:
        """Read this bucket no further. If it is still ours it is opened anew, and what was not acknowledged comes again."""
        self._attachments.lose(held, error)
        self._changed()


def _elsewhere(row: Mapping[str, Any]) -> BucketStatus:
    """What the leader knows of a bucket that another has, or nobody."""
    owner = row["owner"]
    reason = f"owned by {owner}" if row["reason"] == "owned" else row["reason"]
    holders = tuple(row["held_by"] or (() if owner is None else (owner,)))
    return BucketStatus(
        row["segment_id"],
        row["bucket"],
        reason,
        holders,
        row["since"],
        tuple(row["waits_for"]),
        row.get("backlog"),  # a worker of before does not say
    )


def _one_line(reason: str) -> str:
    """As a leader takes it."""
    return " ".join(reason.split())[:MOST_OF_A_REASON]


def _settled(batch: Batch, before: Position | None, upto: Position) -> int:
    """How many messages of the batch an acknowledgement up to `upto` settles, after one up to `before`."""
    if upto < batch.messages[-1].position:
        found = bisect_right(batch.messages, upto, key=_position)
    else:
        found = len(batch.messages)
    if before is None or before < batch.messages[0].position:
        return found
    return max(0, found - bisect_right(batch.messages, before, key=_position))


def _position(message: LogMessage) -> Position:
    return message.position


def _beyond(stored: Position | None, found: Sequence[LogMessage]) -> Sequence[LogMessage]:
    """Those of them that are not done already. Where nothing is stored they stay as the log gave them, which may make each only when
    somebody looks at it.
    """
    if stored is None:
        return found
    compared = -len(stored)  # before embedded logs had timelines, their positions were the offset alone
    if found[0].position[compared:] > stored:
        return found
    return [one for one in found if one.position[compared:] > stored]
