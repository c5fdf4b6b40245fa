"""The leader's thread: processes requests and notifications, writes sessions and bucket owners, and pushes
assignments.

The leader serves the topics of the shards that its worker holds. Every transaction checks the shard's lease
first, so a leader that lost the lease writes nothing; it ends its streams as soon as it learns of the loss.
All changes of one subscription are settled in one transaction: sessions begun and ended, buckets released,
segments drained, and the resulting changes of owners. Consumers receive only committed data.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import InvalidStateError
from contextlib import suppress
from typing import Protocol

from sqlalchemy import Connection

from controller import client_metrics, metrics, telemetry
from controller.clock import Clock
from controller.domain.errors import (
    AccessForbidden,
    CleaveError,
    FencedOut,
    InvalidInput,
    LostRace,
    NotFound,
    Retryable,
    StoreUnavailable,
)
from controller.postgres.listener import Listener
from controller.repeating import Repeating
from controller.services.consumer_sessions.requests import (
    Attach,
    Deregister,
    Detach,
    Heartbeat,
    Register,
    Request,
)
from controller.services.consumer_sessions.sessions import SubscriptionSessions
from controller.services.consumer_sessions.settlement import Settlement, settle
from controller.services.consumer_sessions.timing import ConsumerTiming
from controller.store.postgres.engine import Store, server_process
from controller.store.shards import Shards
from controller.store.topics import consumers
from controller.store.topics.bucket_owners import SubscriptionKey

log = telemetry.get_logger(__name__)

CHANNELS = ("cleave_layout", "cleave_drains", "cleave_consumers")
LONGEST_WAIT_SECONDS = 1.0
RETRY_SECONDS = 0.5
SWEEP_SECONDS = 30.0
"""Seconds between two sweeps; the longest delay that a lost notification causes."""
LATE_SECONDS = 3600.0
"""Seconds after which no request of a departed consumer can still arrive, so its row may be deleted."""


class Leases(Protocol):
    """The held shards and their terms, as `worker.shard_leases` provides them."""

    @property
    def terms(self) -> Mapping[int, int]: ...

    def demand_held(self, tx: Connection, shards: Shards, terms: Mapping[int, int] | None = None) -> None: ...


class SessionLeader:
    """A background service of the worker that leads subscriptions. `submit` is thread-safe."""

    def __init__(
        self,
        store: Store,
        listener: Listener,
        leases: Leases,
        *,
        shard_count: int,
        timing: ConsumerTiming,
        clock: Clock,
    ) -> None:
        """`store` belongs to this leader alone, and `stop` disposes of it. The leader ignores notifications
        from its own connections, whose changes it already knows.
        """
        self._store, self._listener, self._leases = store, listener, leases
        self._shard_count, self.timing, self._clock = shard_count, timing, clock
        self._mailbox: deque[Request] = deque()
        self._subscriptions: dict[SubscriptionKey, SubscriptionSessions] = {}
        self._terms: dict[int, int] = {}
        self._sweep_at = -math.inf
        self._own_process: int | None = None
        """The PostgreSQL server process that ran the last transaction."""
        self._stopping = threading.Event()

    def leads(self, topic_id: int) -> bool:
        """Return True if this worker is the topic's leader, according to its leases."""
        return topic_id % self._shard_count in self._leases.terms

    def submit(self, request: Request) -> None:
        """Put the request into the mailbox. `request.done` will hold the result."""
        self._mailbox.append(request)
        self._listener.interrupt()

    def stop(self) -> None:
        """Stop after the current round, and end every stream."""
        self._stopping.set()
        self._listener.interrupt()

    def run(self) -> None:
        """Run rounds until `stop`."""
        Repeating(
            self._round,
            self._stopping,
            log,
            "round of the leader failed",
            retry_seconds=(0.0, LONGEST_WAIT_SECONDS),
            longest_pause_seconds=LONGEST_WAIT_SECONDS,
            on_error=self._end_lost_streams,
        ).run()
        for sessions in self._subscriptions.values():
            sessions.end_all("moved")
        while self._mailbox:
            _refuse(
                self._mailbox.popleft(),
                StoreUnavailable("this worker is stopping; send the request to another worker"),
            )
        self._listener.close()
        self._store.dispose()

    def _round(self) -> float:
        """Wait, then process what is due; the next round begins at once."""
        self._wait()
        self._take_over()
        self._take_requests()
        self._keep_time()
        self._settle_all()
        return 0.0

    def _end_lost_streams(self, _error: Exception) -> None:
        """End the streams that must end at once. This needs no database, so it also runs after a failed
        round.
        """
        self._leave_shards()
        self._hang_up_silent()

    def _wait(self) -> None:
        """Wait until there is something to process."""
        now = self._clock.monotonic_seconds()
        due = min((_next_due(sessions) for sessions in self._subscriptions.values()), default=math.inf)
        has_work = bool(self._mailbox) or any(
            not sessions.is_settled and sessions.retry_at <= now for sessions in self._subscriptions.values()
        )
        timeout = 0.0 if has_work else max(0.0, min(due - now, LONGEST_WAIT_SECONDS))
        for notification in self._listener.wait(timeout):
            if notification.sender == self._own_process and not notification.is_resync:
                continue  # The transaction that sent the notification also settled its consequences.
            for key, sessions in self._subscriptions.items():
                if notification.is_resync or key.topic_id == notification.first_id:
                    sessions.is_settled = False

    def _leave_shards(self) -> None:
        """End the streams of subscriptions that another worker, or another term, leads. This makes no calls,
        so it works while PostgreSQL is unavailable.
        """
        terms = self._leases.terms
        self._terms = {shard: term for shard, term in self._terms.items() if terms.get(shard) == term}
        for key in [key for key in self._subscriptions if self._shard(key) not in self._terms]:
            self._subscriptions.pop(key).end_all("moved")

    def _take_over(self) -> None:
        """Drop subscriptions that this worker does not lead, and take over those of new shards, with all
        their consumers disconnected.
        """
        self._leave_shards()
        terms = dict(self._leases.terms)
        new = [shard for shard, term in terms.items() if self._terms.get(shard) != term]
        if new:
            now = self._clock.monotonic_seconds()
            with self._store.transaction() as tx:
                for row in consumers.of_shards(tx, Shards.of(self._shard_count, new)):
                    sessions = self._of(SubscriptionKey(row.topic_id, row.subscription))
                    sessions.restore(row.name, row.incarnation, now, row.subject)
            self._terms |= {shard: terms[shard] for shard in new}

    def _shard(self, key: SubscriptionKey) -> int:
        return key.topic_id % self._shard_count

    def _of(self, key: SubscriptionKey) -> SubscriptionSessions:
        return self._subscriptions.setdefault(key, SubscriptionSessions(self.timing))

    def _take_requests(self) -> None:
        """Process the requests in the mailbox. Requests that need no row are answered at once; the others are
        settled by subscription.
        """
        waiting: dict[SubscriptionKey, list[Request]] = {}
        for _ in range(len(self._mailbox)):
            request = self._mailbox.popleft()
            if self._shard(request.key) not in self._terms:
                _refuse(
                    request,
                    StoreUnavailable(
                        "another worker leads this topic; look up the leader and send the request again", 0.2
                    ),
                )
            elif self._is_foreign(request):
                continue
            elif isinstance(request, Heartbeat | Detach):
                self._note(request)
            else:
                waiting.setdefault(request.key, []).append(request)
        for key, requests in waiting.items():
            self._settle(key, requests)

    def _is_foreign(self, request: Request) -> bool:
        """Refuse the request if another subject's token began the consumer's session. Return True if the
        request was refused.
        """
        sessions = self._subscriptions.get(request.key)
        try:
            if sessions is not None:
                sessions.demand_owner(request, request.key.name)
        except AccessForbidden as error:
            _refuse(request, error)
            return True
        return False

    def _note(self, request: Request) -> None:
        """Apply a heartbeat or the end of a stream, which change memory only."""
        now, sessions = self._clock.monotonic_seconds(), self._subscriptions.get(request.key)
        try:
            if sessions is None:
                raise LostRace(f"consumer {request.consumer} has no session; register again", 0.1)
            if isinstance(request, Detach):
                sessions.detach(request.consumer, request.stream, now)
            else:
                sessions.demand(request.consumer, request.incarnation).heard_at = now
        except CleaveError as error:
            _refuse(request, error)
        else:
            _answer(request)

    def _keep_time(self) -> None:
        """Disconnect silent consumers, end sessions whose grace period has passed, and sweep periodically."""
        self._hang_up_silent()
        now = self._clock.monotonic_seconds()
        for key, sessions in list(self._subscriptions.items()):
            expired = sessions.expired(now) if sessions.retry_at <= now else []
            if expired:
                self._settle(
                    key,
                    [
                        Deregister(key=key, consumer=name, incarnation=incarnation, has_expired=True)
                        for name, incarnation in expired
                    ],
                )
        self._measure()
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_SECONDS
            for sessions in self._subscriptions.values():
                sessions.is_settled = False
            with self._store.transaction() as tx:
                consumers.forget_departed(tx, LATE_SECONDS)

    def _measure(self) -> None:
        """Update the metrics of the subscriptions that this worker leads."""
        metrics.SESSIONS.set(sum(sessions.connected for sessions in self._subscriptions.values()))
        settled = [
            sessions.settled for sessions in self._subscriptions.values() if sessions.settled is not None
        ]
        owners = [owner for settlement in settled for owner in settlement.owners]
        metrics.BUCKETS_OWNED.set(len(owners))
        metrics.BUCKETS_WITHHELD.set(sum(owner.is_asked for owner in owners))
        metrics.BUCKETS_AWAY.set(sum(settlement.away for settlement in settled))
        metrics.BUCKETS_OVERDUE.set(sum(len(sessions.alarmed) for sessions in self._subscriptions.values()))
        metrics.SEGMENTS_SHARED.set(sum(settlement.shared_segments for settlement in settled))
        metrics.SEGMENTS_DRAINING.set(sum(settlement.draining_segments for settlement in settled))

    def _alarm(self, key: SubscriptionKey, sessions: SubscriptionSessions, settled: Settlement) -> None:
        """Log once for each bucket that was not read for too long which owner does not release it or is
        disconnected.
        """
        overdue = {
            (owner_row.bucket, owner_row.generation): owner_row for owner_row in settled.overdue(self.timing)
        }
        for identity, owner in overdue.items():
            if identity in sessions.alarmed:
                continue
            metrics.BUCKET_ALARMS.inc()
            ids = {
                "topic_id": key.topic_id,
                "subscription": key.name,
                "segment_id": owner.bucket.segment_id,
                "bucket": str(owner.bucket.bucket),
                "consumer": owner.consumer,
            }
            away = settled.away_seconds(owner)
            if away is not None and away > self.timing.gap_seconds:
                log.warning("owner of a bucket is disconnected", **ids, away_seconds=round(away, 1))
            else:
                asked_seconds = round(owner.asked_seconds, 1)
                log.warning(
                    "bucket not released", **ids, successor=owner.successor, asked_seconds=asked_seconds
                )
        sessions.alarmed = frozenset(overdue)

    def _hang_up_silent(self) -> None:
        now = self._clock.monotonic_seconds()
        for sessions in self._subscriptions.values():
            sessions.hang_up_silent(now)

    def _settle_all(self) -> None:
        now = self._clock.monotonic_seconds()
        for key, sessions in list(self._subscriptions.items()):
            is_due = not sessions.is_settled or min(sessions.look_at, sessions.note_at) <= now
            if is_due and sessions.retry_at <= now:
                self._settle(key, ())

    def _settle(self, key: SubscriptionKey, requests: Sequence[Request]) -> None:
        """Settle the requests in one transaction, then update the memory, answer the requests and push
        assignments. An unexpected error concerns this subscription only: the others are settled.
        """
        try:
            self._settle_at_once(key, requests)
        except CleaveError:
            raise
        except Exception:
            if len(requests) > 1:  # One of the requests may cause the error, so each is settled alone.
                for request in requests:
                    self._settle(key, [request])
                return
            client_metrics.LOOP_ERRORS.labels("sessions not settled").inc()
            log.exception("sessions not settled", topic_id=key.topic_id, subscription=key.name)
            failed = Retryable(
                "the leader failed, and its log has the reason; send the request again", RETRY_SECONDS
            )
            self._put_off(key, self._of(key), requests, failed)

    def _settle_at_once(self, key: SubscriptionKey, requests: Sequence[Request]) -> None:
        sessions = self._of(key)
        for request in requests:
            if isinstance(request, Deregister):  # If the write fails, the grace period ends the session.
                sessions.arm(request.consumer, request.incarnation, self._clock.monotonic_seconds())
        presence = sessions.presence(self._clock.monotonic_seconds())
        try:
            with self._store.transaction() as tx:
                self._own_process = server_process(tx)
                self._leases.demand_held(tx, Shards.of(self._shard_count, [self._shard(key)]), self._terms)
                settled = settle(tx, key, requests, self.timing, presence)
        except NotFound as error:
            self._subscriptions.pop(key).end_all("gone")
            for request in requests:
                _refuse(request, error)
        except CleaveError as error:
            self._put_off(key, sessions, requests, error)
        else:
            sessions.is_settled, sessions.retry_at = True, -math.inf
            sessions.look_at = self._clock.monotonic_seconds() + settled.look_again_seconds(self.timing)
            self._conclude(key, sessions, requests, settled)
            sessions.push(self._terms[self._shard(key)])
            if not sessions.sessions and not settled.owners:
                self._subscriptions.pop(key, None)

    def _put_off(
        self,
        key: SubscriptionKey,
        sessions: SubscriptionSessions,
        requests: Sequence[Request],
        error: CleaveError,
    ) -> None:
        """Handle a failed settlement, which wrote nothing. Each request is tried alone, because a request
        that can never succeed must not block the others.
        """
        if len(requests) > 1 and not isinstance(error, Retryable):
            for request in requests:
                self._settle(key, [request])
            return
        is_away, sessions.is_settled = isinstance(error, StoreUnavailable), False
        if not isinstance(error, InvalidInput):
            sessions.retry_at = self._clock.monotonic_seconds() + RETRY_SECONDS
        if isinstance(error, FencedOut):  # This worker's lease is stale, not the consumer's session.
            error = StoreUnavailable(error.message, RETRY_SECONDS)
        log.warning("sessions not settled", topic_id=key.topic_id, subscription=key.name, error=str(error))
        for request in requests:
            _refuse(request, error)
        if is_away:
            # No other subscription can be settled either. The loop must check which subscriptions are still
            # led here.
            raise error

    def _conclude(
        self,
        key: SubscriptionKey,
        sessions: SubscriptionSessions,
        requests: Sequence[Request],
        settled: Settlement,
    ) -> None:
        """Apply the committed changes to memory, then answer the requests."""
        now = self._clock.monotonic_seconds()
        sessions.settled = settled
        self._alarm(key, sessions, settled)
        metrics.BUCKETS_GRANTED.inc(settled.granted)
        for index, request in enumerate(requests):
            try:
                if index in settled.refused:
                    raise settled.refused[index]
                sessions.demand_owner(request, key.name)
                ids = {"topic": settled.topic, "subscription": key.name, "consumer": request.consumer}
                if isinstance(request, Register):
                    if sessions.begin(request.consumer, request.incarnation, now, request.subject):
                        log.info("session begun", **ids)
                elif isinstance(request, Attach):
                    sessions.attach(request.consumer, request.incarnation, request.stream, now)
                elif isinstance(request, Deregister):
                    reason = "expired" if request.has_expired else "left"
                    metrics.SESSIONS_ENDED.labels(reason).inc()
                    log.info("session ended", **ids, reason=reason)
                    sessions.end(request.consumer, request.incarnation, reason)
            except CleaveError as refusal:
                _refuse(request, refusal)
            else:
                _answer(request)
        sessions.follow_rows(settled.rows, now)


def _next_due(sessions: SubscriptionSessions) -> float:
    due = min(
        (sessions.look_at, sessions.note_at, *(session.expires_at for session in sessions.sessions.values()))
    )
    return max(due, sessions.retry_at)


def _answer(request: Request) -> None:
    with suppress(InvalidStateError):  # the client that sent the request is gone
        request.done.set_result(None)


def _refuse(request: Request, error: CleaveError) -> None:
    with suppress(InvalidStateError):
        request.done.set_exception(error)
