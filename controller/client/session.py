"""Maintains a consumer's session with the leader of its topic: registers, stays connected, and receives the
assignment.

A thread holds the assignment stream open, answers heartbeats, and reconnects when the stream breaks, to the
present leader. The consumer checks `is_current` in its own thread before it delivers or acknowledges
messages: a process that was stopped may resume at any point, before this thread has noticed.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
from httpx_sse import ServerSentEvent

from controller.client.background_calls import BackgroundCalls
from controller.client.leader_reports import Entry, LeaderReports, ReportKind
from controller.client.retry import Backoff, Outage, retry_for
from controller.client.servers import EventFeed, Servers, consumer_path, is_for_the_token
from controller.clock import boot_seconds
from controller.domain.errors import CleaveError, Retryable, SessionExpired, StoreUnavailable, TokenOutOfTime
from controller.domain.hash_range import HashRange
from controller.domain.names import demand_name

_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.05, 2.0
_DEREGISTER_SECONDS = 2.0
"""Longest wait of one deregistration attempt for one worker."""
_FRESH_PART = 5 / 6
"""Part of the silence limit that is left when the leader sends its next heartbeat (`ConsumerTiming`)."""
_log = logging.getLogger(__name__)


class OwnedBucket(msgspec.Struct, frozen=True):
    """A bucket that this consumer owns since `generation`, or a run of buckets if the segment has many.
    `buckets` is the number of buckets of the segment.

    The start and the end are bucket hashes, both inclusive. `release` is True if the consumer is to release
    the bucket.
    """

    segment_id: int
    bucket_start: int
    bucket_end: int
    buckets: int
    sealed: bool
    backing_topic: str
    generation: int
    release: bool

    @property
    def bucket(self) -> HashRange:
        """The range of bucket hashes."""
        return HashRange(self.bucket_start, self.bucket_end)

    @property
    def identity(self) -> tuple[int, int, int]:
        """The ownership: segment, bucket, generation."""
        return self.segment_id, self.bucket_start, self.generation


class Assignment(msgspec.Struct, frozen=True, dict=True):
    """All buckets that the consumer owns, as sent by the leader's stream."""

    term: int
    generation: int
    epoch: int
    origin: int
    """Identifies the period in which positions are comparable. Positions stored under another origin are
    invalid: the subscription was created again, or moved by a seek.
    """
    buckets: tuple[OwnedBucket, ...]

    @property
    def version(self) -> tuple[int, int, int]:
        """The order of assignments. Terms come second, because a database that was restored to an earlier
        time repeats terms, while each subscription continues with a generation above all earlier ones.
        """
        return self.generation, self.term, self.epoch

    @cached_property
    def identities(self) -> frozenset[tuple[int, int, int]]:
        """The identities of all owned buckets."""
        return frozenset(bucket.identity for bucket in self.buckets)


# The decoder is created here because two threads that first decode a type at the same time end the process.
_ASSIGNMENT = msgspec.json.Decoder(Assignment)


class BucketReason(msgspec.Struct, frozen=True):
    """The reason why no message of an owned bucket is delivered, and the time since which it has held."""

    owned: OwnedBucket
    reason: str
    since: float
    """Time in `boot_seconds`."""


class Session:
    """The session of one consumer, from construction to `close`."""

    def __init__(
        self,
        servers: Servers,
        topic: str,
        subscription: str,
        consumer: str,
        *,
        on_change: Callable[[], None],
        on_lost: Callable[[], None] = lambda: None,
        reads: str = "STREAM",
        lasting_reasons: Callable[[], Sequence[BucketReason]] = tuple,
        patience_seconds: float = 0.0,
    ) -> None:
        """Register the consumer, and start the session's thread. The registration is retried for `patience_seconds`,
        because a topic may be between two leaders. `patience_seconds` is also the time for which tokens outside their
        validity are tolerated before they end the session.

        `reads` is the kind that the subscription must have: STREAM or CHECKPOINT. `on_change` is called in the
        session's thread after each assignment, when the session starts over without buckets, and when the session has
        failed permanently (`demand_alive`), and in a background thread after the heartbeat that makes the session
        current again, or that follows a lost report; `on_change` must not block. `on_lost` is called in the session's
        thread after each failed attempt to connect while `is_lost` is True, and before `on_change` when the session has
        failed permanently. `lasting_reasons` returns the reasons why owned buckets deliver no messages.
        `lasting_reasons` is called in a background thread after each accepted heartbeat, and a changed result is
        reported to the leader.

        Raises NotFound; TopicNotLive; StoreUnavailable; Conflict for a subscription of another kind; InvalidInput for
        an invalid name; or another error by which a worker refuses the registration, such as AccessForbidden.
        """
        self._servers, self._on_change, self._on_lost = servers, on_change, on_lost
        self._reads, self._lasting_reasons = reads, lasting_reasons
        self._reported: tuple[BucketReason, ...] = ()
        self._path = consumer_path(topic, subscription, demand_name("consumer", consumer))
        self._why_path = f"{self._path.rpartition('/consumers/')[0]}/why"
        self._incarnation = uuid.uuid4().hex
        self._silent_seconds = self._grace_seconds = 0.0  # set from the response to the registration
        self._refused_since: float | None = None
        self._is_heartbeat_pending = self._is_report_lost = False
        self._current_until = 0.0
        self._lock = threading.Lock()
        self._assignment: Assignment | None = None
        self._failure: CleaveError | None = None
        self._closing = threading.Event()
        self._is_closed = self._is_over = False
        self._feed: EventFeed | None = None
        # Two threads: while one waits for a heartbeat response, the other can report a release, which another
        # consumer may be waiting for.
        self._calls = BackgroundCalls(2, "cleave-session-calls")
        self._reports = LeaderReports(self._calls, self._send_report)
        self._token_outage = Outage(patience_seconds)
        retry_for(self._register, seconds=patience_seconds)
        self._is_registered = True
        self._thread = threading.Thread(target=self._run, name="cleave-session", daemon=True)
        self._thread.start()

    @property
    def assignment(self) -> Assignment | None:
        """The newest known assignment. None before the first, and after the session has expired."""
        with self._lock:
            return self._assignment

    @property
    def is_current(self) -> bool:
        """True if the leader has accepted a request that was sent within the silence limit (`silent_seconds`
        of the registration), and has not ended the session since. If False, another consumer may own this
        consumer's buckets.

        Messages that the leader sends on its own prove nothing: the leader may have been replaced, or the
        messages may have waited in a socket while this process was stopped. The time therefore counts from
        the sending of a request that was answered.
        """
        return not self._is_over and boot_seconds() < self._current_until

    @property
    def is_lost(self) -> bool:
        """True if this consumer's buckets may permanently belong to other consumers, so that it must release
        all of them. Also True before the first assignment, after a permanent failure (`demand_alive`) and after
        `close`.
        """
        return (
            self._is_over
            or self._failure is not None
            or self.assignment is None
            or boot_seconds() > self._current_until + self._grace_seconds - self._silent_seconds
        )

    def demand_alive(self) -> None:
        """Raise the reason why this session can never continue: another consumer registered under its name
        (FencedOut), its topic or subscription was deleted, a worker refused it permanently, or its tokens
        stayed outside their validity (TokenOutOfTime).
        """
        if self._failure is not None:
            raise self._failure

    def why(self) -> list[dict[str, Any]]:
        """Return the leader's statement about every bucket of the subscription, as JSON objects: among others
        `segment_id`, `bucket`, `owner` (None if it has none), and `reason`, why no message of it is
        delivered. Raises StoreUnavailable, or the worker's refusal.
        """
        rows: list[dict[str, Any]] = self._servers.ask("GET", self._why_path)
        return rows

    def ask(self, what: str, document: Mapping[str, object]) -> Any:
        """Send a worker a request of this consumer, and return the response. Raises StoreUnavailable, or the
        worker's refusal.

        `what` is the last part of the path.
        """
        request = {"incarnation": self._incarnation, **document}
        return self._servers.ask("POST", f"{self._path}/{what}", document=request)

    def report_released(self, buckets: Sequence[OwnedBucket]) -> None:
        """Report released buckets to the leader, in a background thread. The caller repeats the report while
        the assignment contains the buckets, because a lost report is dropped.
        """
        self._reports.add(
            ReportKind("released", "buckets", self._incarnation),
            {
                bucket.identity: {
                    "segment_id": bucket.segment_id,
                    "bucket_start": bucket.bucket.start,
                    "generation": bucket.generation,
                }
                for bucket in buckets
            },
        )

    def report_drained(self, buckets: Sequence[OwnedBucket]) -> None:
        """Report to the leader, in a background thread, that the sealed segments of these buckets are read to
        their ends. The caller repeats the report until the leader acts on it.
        """
        self._reports.add(
            ReportKind("drained", "segments", self._incarnation),
            {
                bucket.segment_id: {"segment_id": bucket.segment_id, "generation": bucket.generation}
                for bucket in buckets
            },
        )

    def close(self, timeout_seconds: float = _DEREGISTER_SECONDS, *, leave: bool = True) -> None:
        """End the session, and wait for the end of its thread, until about `timeout_seconds` are over. Afterwards
        `is_current` is False and `is_lost` is True. If `leave` is True, the consumer is deregistered, and its buckets
        are assigned to other consumers at once. If `leave` is False, the consumer keeps its buckets for the grace
        period. A session that the leader or an error has ended is not deregistered.

        The deregistration is retried until a worker has received it. If no worker has received it within
        `timeout_seconds`, a warning is logged. Queued reports are dropped. Raises only an error of the token function
        that is no CleaveError. Idempotent: a later call has no effect, whatever its `leave`.
        """
        if self._is_closed:
            return
        self._is_closed, has_left = True, self._closing.is_set()
        self._closing.set()
        until = time.monotonic() + timeout_seconds
        self._calls.close()
        if leave and not has_left and self._failure is None:
            self._deregister(until)
        self._is_over = True  # a response that is still in flight changes nothing
        if self._feed is not None:
            self._feed.hang_up()
        self._thread.join(max(0.0, until - time.monotonic()))

    def _deregister(self, until: float) -> None:
        """Deregister the consumer at any worker. Retryable errors are retried until `until` (`time.monotonic`
        seconds). Any other CleaveError ends the attempts silently, because the session has ended already. After the last
        Retryable error, and after an error of the token function, a warning is logged, because other consumers must
        wait for the grace period. Raises nothing.

        Each attempt gets a share of the time, at most `_DEREGISTER_SECONDS`, so that a stopped worker does not use up
        the time of workers that would respond.
        """
        try_seconds = (until - time.monotonic()) / (1 + self._servers.count)
        backoff = Backoff(_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS)
        pause, reason = threading.Event(), "no time was left"
        while (remaining_seconds := until - time.monotonic()) > 0:
            try:
                self._servers.ask(
                    "DELETE",
                    self._path,
                    query={"incarnation": self._incarnation},
                    timeout_seconds=min(remaining_seconds, try_seconds, _DEREGISTER_SECONDS),
                )
                return
            except Retryable as error:
                reason = str(error)
                pause.wait(min(remaining_seconds, backoff.next_seconds()))
            except CleaveError:  # the session has ended already
                return
            except Exception as error:  # noqa: BLE001 - a failing token function must not keep the session open
                reason = f"{type(error).__name__}: {error}"
                break
        _log.warning(
            "%s: cannot deregister; other consumers wait for the grace period: %s", self._path, reason
        )

    def _send_report(self, kind: ReportKind, entries: list[Entry]) -> None:
        """Send the leader a report. Raises the leader's refusal, and StoreUnavailable; the next accepted heartbeat then
        calls `on_change`.
        """
        request = {"incarnation": kind.incarnation, kind.field: entries}
        try:
            self._servers.ask("POST", f"{self._path}/{kind.name}", document=request)
        except CleaveError:
            self._is_report_lost = True
            raise

    def _run(self) -> None:
        """Follow one assignment stream after another until the session is closed or has failed permanently. After a
        stream that the leader ended, the next stream follows at once. After SessionExpired, the session starts over
        at once (`_start_over`). After another Retryable error, or an exception that is no CleaveError, which is
        logged, the next stream follows after a delay.

        A CleaveError that is not Retryable, or a Retryable error for which `_is_permanently_refused` returns True,
        ends the loop (`_fail`). After each error that does not end the loop, except SessionExpired, `on_lost` is called
        if `is_lost` is True and the session is not being closed.
        """
        backoff = Backoff(_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS)
        while not self._closing.is_set():
            try:
                self._follow()
                backoff.reset()
            except SessionExpired:
                self._start_over()
                backoff.reset()
            except Retryable as error:
                if self._is_permanently_refused(error):
                    self._fail(error)
                    return
                self._notify_if_lost()
                self._closing.wait(backoff.next_seconds())
            except CleaveError as error:
                self._fail(error)
                return
            except Exception:  # noqa: BLE001 - the thread would end, and no assignment would ever arrive
                _log.exception("session of %s failed; reconnecting", self._path)
                self._notify_if_lost()
                self._closing.wait(_LONGEST_RETRY_SECONDS)

    def _is_permanently_refused(self, error: Retryable) -> bool:
        """Return True if every error for longer than the `patience_seconds` of the session was a TokenOutOfTime: the
        tokens were outside their validity all that time. The time counts from the first of these errors. An error of
        another kind, or a stream that a worker opens, ends the count; the next TokenOutOfTime begins it again. Each
        call adds `error` to the count.
        """
        if not isinstance(error, TokenOutOfTime):
            self._token_outage.end()
            return False
        try:
            self._token_outage.raise_if_expired(error)
        except TokenOutOfTime:
            return True
        return False

    def _fail(self, error: CleaveError) -> None:
        """End the session permanently: store the error, which `demand_alive` raises from now on, make `is_current`
        False and `is_lost` True, and call `on_lost`, unless the session is being closed, and `on_change`.
        """
        self._failure = error
        self._current_until = 0.0
        self._notify_if_lost()  # the application may be busy for long before it calls again
        self._on_change()

    def _notify_if_lost(self) -> None:
        """Call `on_lost` if `is_lost` is True and the session is not being closed."""
        if self.is_lost and not self._closing.is_set():
            self._on_lost()

    def _follow(self) -> None:
        """Hold one assignment stream open until the leader ends the stream (`_handle_end`) or the session is closed.
        Before every stream except the session's first, register the consumer again.

        For each assignment, adopt the assignment, and call `on_change`. Send a heartbeat after each heartbeat of the
        leader, and after an assignment if a heartbeat is due. Raises the errors of `_register`, `Servers.events` and
        `_adopt`: among them StoreUnavailable if the stream breaks or falls silent, SessionExpired, and the error by
        which the leader refuses the stream.
        """
        if not self._is_registered:
            self._register()
        if self._closing.is_set():  # `close` deregisters what was just registered, too
            return
        self._is_registered = False  # the next stream must register
        with self._servers.events(
            f"{self._path}/assignment",
            query={"incarnation": self._incarnation},
            silent_seconds=self._silent_seconds,
        ) as feed:
            self._feed = feed
            self._token_outage.end()  # the worker has accepted the token
            if self._closing.is_set():
                return
            for event in feed:
                if self._closing.is_set():
                    return
                if event.event == "end":
                    self._handle_end(event)
                    return
                is_assignment = event.event == "assignment"
                if is_assignment:
                    self._adopt(_ASSIGNMENT.decode(event.data))
                if not is_assignment or self._is_heartbeat_due:
                    self._send_heartbeat()
                if is_assignment:
                    self._on_change()

    def _handle_end(self, end: ServerSentEvent) -> None:
        """Handle the last event of a stream, with which the leader ended the stream. If the token expired, nothing
        changes: the consumer keeps its buckets and continues to read. After any other reason `is_current` is False,
        so no messages are delivered, until the session is registered again. After the reason `left` the session is
        closed and not registered again.
        """
        if is_for_the_token(end):
            # this consumer keeps its buckets, so it continues to read while it registers with a fresh token
            return
        self._current_until = 0.0
        if json.loads(end.data)["reason"] == "left":
            self._closing.set()

    def _register(self) -> None:
        """Register this incarnation, and take the topic's id and the time limits from the response. The
        session is then current from the time of the request. Raises the errors of `Servers.ask`, and
        StoreUnavailable for a response that does not come from a worker.
        """
        began_at = boot_seconds()
        request = {"incarnation": self._incarnation, "reads": self._reads}
        timing = self._servers.ask("POST", self._path, document=request)
        try:
            self.topic_id = int(timing["topic_id"])
            self._silent_seconds = float(timing["silent_seconds"])
            self._grace_seconds = float(timing["grace_seconds"])
        except (KeyError, TypeError, ValueError):
            raise StoreUnavailable(
                "the response does not come from a worker of Cleave; correct the address"
            ) from None
        self._current_until = max(self._current_until, began_at + self._silent_seconds)

    @property
    def _is_heartbeat_due(self) -> bool:
        """True if the last accepted registration or heartbeat is so old that the leader would have sent a
        heartbeat, had it not sent assignments. Many assignments follow one another while consumers join or
        buckets move, and the leader is then busy.
        """
        return self._current_until - boot_seconds() < _FRESH_PART * self._silent_seconds

    def _send_heartbeat(self) -> None:
        """Send the leader a heartbeat in a background thread, without waiting for it. Nothing is sent while an
        earlier heartbeat is pending, or after `close`.

        If the leader accepts the heartbeat, the session is current for the silence limit, counted from the time of
        sending, and the reasons why buckets deliver no messages are reported if they have changed
        (`_report_reasons`). If the session was not current before, or a report was lost since the last heartbeat,
        `on_change` is called too, so that the caller goes on with its work and repeats the report. A heartbeat that is
        refused or gets no response changes nothing and is not repeated. The assignment stream shows the cause: it ends,
        breaks or falls silent.
        """
        if self._is_heartbeat_pending:
            return
        self._is_heartbeat_pending = True
        incarnation = self._incarnation

        def heartbeat() -> None:
            began_at = boot_seconds()
            try:
                self._servers.ask("POST", f"{self._path}/pulse", document={"incarnation": incarnation})
            except CleaveError:
                return  # the stream or its silence shows the cause
            finally:
                self._is_heartbeat_pending = False
            if incarnation == self._incarnation and not self._closing.is_set():
                must_notify = self._is_report_lost or not self.is_current
                self._is_report_lost = False
                self._current_until = max(self._current_until, began_at + self._silent_seconds)
                if must_notify:
                    self._on_change()
                self._report_reasons(incarnation)

        if not self._calls.submit(heartbeat):  # the session was closed, or no thread could be started
            self._is_heartbeat_pending = False

    def _report_reasons(self, incarnation: str) -> None:
        """Report to the leader why owned buckets deliver no messages, if the result of `lasting_reasons` differs from
        the last report; otherwise do nothing. `incarnation` is the incarnation that sent the heartbeat before this
        call.

        A Retryable error is ignored, and the next accepted heartbeat repeats the report. Another CleaveError is
        logged at level debug, and the report counts as sent, because an older worker does not know the request.
        """
        reasons = tuple(self._lasting_reasons())
        if reasons == self._reported:
            return
        buckets = [
            {
                "segment_id": reason.owned.segment_id,
                "bucket_start": reason.owned.bucket_start,
                "generation": reason.owned.generation,
                "reason": reason.reason,
                "seconds": max(0.0, boot_seconds() - reason.since),
            }
            for reason in reasons
        ]
        try:
            request = {"incarnation": incarnation, "buckets": buckets}
            self._servers.ask("POST", f"{self._path}/reasons", document=request)
        except Retryable:
            return
        except CleaveError as error:  # an older worker does not know this request
            _log.debug("the reasons of %s are refused: %s", self._path, error)
        self._reported = reasons

    def _start_over(self) -> None:
        """Prepare a new registration after the session has expired, because other consumers own the earlier buckets:
        drop the assignment and the last reported reasons, create another incarnation, make `is_current` False, and
        call `on_change`. The caller registers next.
        """
        self._incarnation = uuid.uuid4().hex
        with self._lock:
            self._assignment, self._refused_since = None, None
        self._reported = ()
        self._current_until = 0.0
        self._on_change()

    def _adopt(self, assignment: Assignment) -> None:
        """Make this assignment the known assignment, also if the known assignment has the same version.

        If the assignment has an earlier version, the known assignment stays, and StoreUnavailable is raised, because
        a replaced leader may still send assignments. If only earlier versions have arrived for longer than the grace
        period, SessionExpired is raised instead, because the leader's version counter was reset.
        """
        with self._lock:
            if self._assignment is not None and assignment.version < self._assignment.version:
                self._refused_since = self._refused_since or boot_seconds()
                if boot_seconds() - self._refused_since > self._grace_seconds:
                    raise SessionExpired("the leader's version counter was reset; register again", 0.0)
                raise StoreUnavailable("this leader was replaced; connect again", 0.1)
            self._assignment, self._refused_since = assignment, None
