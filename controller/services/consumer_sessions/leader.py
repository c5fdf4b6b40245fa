"""The leader's thread: takes requests and notifications, writes sessions and owners, and pushes assignments.

It leads the topics of the shards that its worker holds. Every transaction checks the shard's lease first, so a leader that was
deposed writes nothing, and its streams are ended as soon as it knows. All that waits for one subscription is settled in one
transaction: sessions begun and ended, buckets let go of, segments drained, and what follows from that for the owners. Nobody is
told anything that is not committed.
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
from controller.services.consumer_sessions.requests import Attach, Detach, Goodbye, Pulse, Register, Request
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
"""A notification that was lost costs no more than this."""
LATE_SECONDS = 3600.0
"""So long after a consumer has departed nothing of it is under way any more."""


class Leases(Protocol):
    """The shards held, and their terms; see `worker.shard_leases`."""

    @property
    def terms(self) -> Mapping[int, int]: ...

    def fence(self, tx: Connection, shards: Shards, terms: Mapping[int, int] | None = None) -> None: ...


class SessionLeader:
    """Runs beside the worker's loop. `submit` is for any thread."""

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
        """`store` is this leader's alone, and `stop` ends it: what its connections notify of, the leader knows already."""
        self._store, self._listener, self._leases = store, listener, leases
        self._shard_count, self.timing, self._clock = shard_count, timing, clock
        self._mailbox: deque[Request] = deque()
        self._known: dict[SubscriptionKey, SubscriptionSessions] = {}
        self._terms: dict[int, int] = {}
        self._sweep_at = -math.inf
        self._own_process: int | None = None
        """The server process in which the last transaction ran."""
        self._stopping = threading.Event()

    def leads(self, topic_id: int) -> bool:
        """Whether this worker is the topic's leader, as far as it knows."""
        return topic_id % self._shard_count in self._leases.terms

    def submit(self, request: Request) -> None:
        """Put it into the mailbox; `request.done` says what became of it."""
        self._mailbox.append(request)
        self._listener.interrupt()

    def stop(self) -> None:
        """Finish what is in hand, end every stream and leave."""
        self._stopping.set()
        self._listener.interrupt()

    def run(self) -> None:
        """Until `stop`."""
        Repeating(
            self._round,
            self._stopping,
            log,
            "consumers wait",
            retry_seconds=(0.0, LONGEST_WAIT_SECONDS),
            longest_pause_seconds=LONGEST_WAIT_SECONDS,
            on_error=self._look_after_streams,
        ).run()
        for known in self._known.values():
            known.end_all("moved")
        while self._mailbox:
            _refuse(self._mailbox.popleft(), StoreUnavailable("this worker is leaving; ask another one"))
        self._listener.close()
        self._store.dispose()

    def _round(self) -> float:
        """Wait, and do what there is to do; the next round comes at once."""
        self._wait()
        self._take_over()
        self._take_requests()
        self._keep_time()
        self._settle_all()
        return 0.0

    def _look_after_streams(self, _error: Exception) -> None:
        """End the streams that must end now. That needs no database, so it is done after a round that failed, too."""
        self._leave_shards()
        self._hang_up_silent()

    def _wait(self) -> None:
        """Until there is something to do."""
        now = self._clock.monotonic_seconds()
        due = min((_next_due(known) for known in self._known.values()), default=math.inf)
        has_work = bool(self._mailbox) or any(
            not known.is_settled and known.retry_at <= now for known in self._known.values()
        )
        timeout = 0.0 if has_work else max(0.0, min(due - now, LONGEST_WAIT_SECONDS))
        for notification in self._listener.wait(timeout):
            if notification.sender == self._own_process and not notification.is_resync:
                continue  # the same transaction settled what follows
            for key, known in self._known.items():
                if notification.is_resync or key.topic_id == notification.first_id:
                    known.is_settled = False

    def _leave_shards(self) -> None:
        """End the streams of what another worker leads now, or another term. It asks nobody, so it works while PostgreSQL is away."""
        terms = self._leases.terms
        self._terms = {shard: term for shard, term in self._terms.items() if terms.get(shard) == term}
        for key in [key for key in self._known if self._shard(key) not in self._terms]:
            self._known.pop(key).end_all("moved")

    def _take_over(self) -> None:
        """Leave what is not led here any more, and take over what came to this worker, with everybody disconnected."""
        self._leave_shards()
        terms = dict(self._leases.terms)
        new = [shard for shard, term in terms.items() if self._terms.get(shard) != term]
        if new:
            now = self._clock.monotonic_seconds()
            with self._store.transaction() as tx:
                for row in consumers.of_shards(tx, Shards.of(self._shard_count, new)):
                    known = self._of(SubscriptionKey(row.topic_id, row.subscription))
                    known.restore(row.name, row.incarnation, now, row.subject)
            self._terms |= {shard: terms[shard] for shard in new}

    def _shard(self, key: SubscriptionKey) -> int:
        return key.topic_id % self._shard_count

    def _of(self, key: SubscriptionKey) -> SubscriptionSessions:
        return self._known.setdefault(key, SubscriptionSessions(self.timing))

    def _take_requests(self) -> None:
        """All that is in the mailbox: what needs no row is done at once, the rest is settled by subscription."""
        waiting: dict[SubscriptionKey, list[Request]] = {}
        for _ in range(len(self._mailbox)):
            request = self._mailbox.popleft()
            if self._shard(request.key) not in self._terms:
                _refuse(request, StoreUnavailable("another worker leads this topic now; ask again", 0.2))
            elif self._is_foreign(request):
                continue
            elif isinstance(request, Pulse | Detach):
                self._note(request)
            else:
                waiting.setdefault(request.key, []).append(request)
        for key, requests in waiting.items():
            self._settle(key, requests)

    def _is_foreign(self, request: Request) -> bool:
        """Return True if the request is refused, since a token of another subject began the consumer's session."""
        known = self._known.get(request.key)
        try:
            if known is not None:
                known.demand_owner(request, request.key.name)
        except AccessForbidden as error:
            _refuse(request, error)
            return True
        return False

    def _note(self, request: Request) -> None:
        """A pulse or the end of a stream, which are in memory only."""
        now, known = self._clock.monotonic_seconds(), self._known.get(request.key)
        try:
            if known is None:
                raise LostRace(f"consumer {request.consumer} has no session; register again", 0.1)
            if isinstance(request, Detach):
                known.detach(request.consumer, request.stream, now)
            else:
                known.demand(request.consumer, request.incarnation).heard_at = now
        except CleaveError as error:
            _refuse(request, error)
        else:
            _answer(request)

    def _keep_time(self) -> None:
        """Hang up on the silent, end what has not come back, look at everything now and then."""
        self._hang_up_silent()
        now = self._clock.monotonic_seconds()
        for key, known in list(self._known.items()):
            expired = known.expired(now) if known.retry_at <= now else []
            if expired:
                self._settle(
                    key,
                    [
                        Goodbye(key=key, consumer=name, incarnation=life, has_expired=True)
                        for name, life in expired
                    ],
                )
        self._measure()
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_SECONDS
            for known in self._known.values():
                known.is_settled = False
            with self._store.transaction() as tx:
                consumers.forget_departed(tx, LATE_SECONDS)

    def _measure(self) -> None:
        """What this worker leads, for its metrics."""
        metrics.SESSIONS.set(sum(known.connected for known in self._known.values()))
        settled = [known.settled for known in self._known.values() if known.settled is not None]
        owners = [owner for one in settled for owner in one.owners]
        metrics.BUCKETS_OWNED.set(len(owners))
        metrics.BUCKETS_WITHHELD.set(sum(owner.is_asked for owner in owners))
        metrics.BUCKETS_AWAY.set(sum(one.away for one in settled))
        metrics.BUCKETS_OVERDUE.set(sum(len(known.alarmed) for known in self._known.values()))
        metrics.SEGMENTS_SHARED.set(sum(one.shared_segments for one in settled))
        metrics.SEGMENTS_DRAINING.set(sum(one.draining_segments for one in settled))

    def _alarm(self, key: SubscriptionKey, known: SubscriptionSessions, settled: Settlement) -> None:
        """Say once of each bucket that nobody reads for too long who does not let go of it, or is away."""
        overdue = {(one.bucket, one.generation): one for one in settled.overdue(self.timing)}
        for identity, owner in overdue.items():
            if identity in known.alarmed:
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
                log.warning("a bucket's owner is away", **ids, away_seconds=round(away, 1))
            else:
                asked = round(owner.asked_seconds, 1)
                log.warning(
                    "a bucket is not let go of", **ids, successor=owner.successor, asked_seconds=asked
                )
        known.alarmed = frozenset(overdue)

    def _hang_up_silent(self) -> None:
        now = self._clock.monotonic_seconds()
        for known in self._known.values():
            known.hang_up_silent(now)

    def _settle_all(self) -> None:
        now = self._clock.monotonic_seconds()
        for key, known in list(self._known.items()):
            is_due = not known.is_settled or min(known.look_at, known.note_at) <= now
            if is_due and known.retry_at <= now:
                self._settle(key, ())

    def _settle(self, key: SubscriptionKey, requests: Sequence[Request]) -> None:
        """One transaction for all of it; then what it changed in memory, the answers and the pushes. An unexpected error
        is this subscription's: the others are settled.
        """
        try:
            self._settle_at_once(key, requests)
        except CleaveError:
            raise
        except Exception:
            if len(requests) > 1:  # one of them may be at fault
                for request in requests:
                    self._settle(key, [request])
                return
            client_metrics.LOOP_ERRORS.labels("sessions not settled").inc()
            log.exception("sessions not settled", topic_id=key.topic_id, subscription=key.name)
            failed = Retryable("the leader failed, and its log says why; ask again", RETRY_SECONDS)
            self._put_off(key, self._of(key), requests, failed)

    def _settle_at_once(self, key: SubscriptionKey, requests: Sequence[Request]) -> None:
        known = self._of(key)
        for request in requests:
            if isinstance(request, Goodbye):  # should the write fail, the grace period ends the session
                known.arm(request.consumer, request.incarnation, self._clock.monotonic_seconds())
        presence = known.presence(self._clock.monotonic_seconds())
        try:
            with self._store.transaction() as tx:
                self._own_process = server_process(tx)
                self._leases.fence(tx, Shards.of(self._shard_count, [self._shard(key)]), self._terms)
                settled = settle(tx, key, requests, self.timing, presence)
        except NotFound as error:
            self._known.pop(key).end_all("gone")
            for request in requests:
                _refuse(request, error)
        except CleaveError as error:
            self._put_off(key, known, requests, error)
        else:
            known.is_settled, known.retry_at = True, -math.inf
            known.look_at = self._clock.monotonic_seconds() + settled.look_again_seconds(self.timing)
            self._conclude(key, known, requests, settled)
            known.push(self._terms[self._shard(key)])
            if not known.sessions and not settled.owners:
                self._known.pop(key, None)

    def _put_off(
        self,
        key: SubscriptionKey,
        known: SubscriptionSessions,
        requests: Sequence[Request],
        error: CleaveError,
    ) -> None:
        """Nothing was written. Each request is tried by itself, since one that can never be done must not keep the others from
        it.
        """
        if len(requests) > 1 and not isinstance(error, Retryable):
            for request in requests:
                self._settle(key, [request])
            return
        is_away, known.is_settled = isinstance(error, StoreUnavailable), False
        if not isinstance(error, InvalidInput):
            known.retry_at = self._clock.monotonic_seconds() + RETRY_SECONDS
        if isinstance(error, FencedOut):  # it is this worker that is stale, not the consumer
            error = StoreUnavailable(error.message, RETRY_SECONDS)
        log.warning("sessions not settled", topic_id=key.topic_id, subscription=key.name, error=str(error))
        for request in requests:
            _refuse(request, error)
        if is_away:  # nor can any other be settled: back to the loop, which looks after who is led here
            raise error

    def _conclude(
        self,
        key: SubscriptionKey,
        known: SubscriptionSessions,
        requests: Sequence[Request],
        settled: Settlement,
    ) -> None:
        """What is committed, in memory; then the answers."""
        now = self._clock.monotonic_seconds()
        known.settled = settled
        self._alarm(key, known, settled)
        metrics.BUCKETS_GRANTED.inc(settled.granted)
        for index, request in enumerate(requests):
            try:
                if index in settled.refused:
                    raise settled.refused[index]
                known.demand_owner(request, key.name)
                ids = {"topic": settled.topic, "subscription": key.name, "consumer": request.consumer}
                if isinstance(request, Register):
                    if known.begin(request.consumer, request.incarnation, now, request.subject):
                        log.info("session begun", **ids)
                elif isinstance(request, Attach):
                    known.attach(request.consumer, request.incarnation, request.stream, now)
                elif isinstance(request, Goodbye):
                    reason = "expired" if request.has_expired else "left"
                    metrics.SESSIONS_ENDED.labels(reason).inc()
                    log.info("session ended", **ids, reason=reason)
                    known.end(request.consumer, request.incarnation, reason)
            except CleaveError as refusal:
                _refuse(request, refusal)
            else:
                _answer(request)
        known.follow_rows(settled.rows, now)


def _next_due(known: SubscriptionSessions) -> float:
    due = min((known.look_at, known.note_at, *(one.expires_at for one in known.sessions.values())))
    return max(due, known.retry_at)


def _answer(request: Request) -> None:
    with suppress(InvalidStateError):  # whoever asked has gone
        request.done.set_result(None)


def _refuse(request: Request, error: CleaveError) -> None:
    with suppress(InvalidStateError):
        request.done.set_exception(error)
