"""The leader's thread: processes requests and notifications, writes sessions and bucket owners, and pushes
assignments.

The leader serves the topics of the shards that its worker holds. Every transaction checks the shard's lease
first, so a leader that lost the lease writes nothing; it ends its streams as soon as it learns of the loss.
All changes of one subscription are settled in one transaction: sessions begun and ended, buckets released,
segments drained, and the resulting changes of owners. Consumers receive only committed data.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
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
from controller.repeating import Repeating, Stoppable
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
"""Longest wait of a round, and longest pause after a failed round."""
RETRY_SECONDS = 0.5
"""Seconds until a subscription whose settlement failed is settled again."""
SETTLING_SECONDS = 0.1
"""Seconds of a round after which subscriptions that are due wait for the next round if requests are in the mailbox. A
heartbeat would otherwise wait for a sweep over all subscriptions, which may last longer than consumers wait for it.
"""
SWEEP_SECONDS = 30.0
"""Seconds between two sweeps; the longest delay that a lost notification causes."""
LATE_SECONDS = 3600.0
"""Seconds after which no request of a departed consumer can still arrive, so its row may be deleted."""


class Leases(Protocol):
    """The held shards and their terms, as `worker.shard_leases` provides them."""

    @property
    def terms(self) -> Mapping[int, int]: ...

    def demand_held(self, tx: Connection, shards: Shards, terms: Mapping[int, int] | None = None) -> None: ...


class SessionLeader(Stoppable):
    """A background service of the worker that leads subscriptions: applies the requests of consumers, assigns
    buckets, and pushes assignments. `submit`, `stop`, `leads` and `led_topic_id` are thread-safe.
    """

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
        """`store` and `listener` are used by this leader alone, and are closed at the end of `run`. `listener`
        listens on `CHANNELS`. `leases` tells which shards this worker holds, and `shard_count` is the number of
        shards of the installation. `clock` gives the monotonic time. The leader ignores notifications that its own
        last settlement sent, because it knows their changes.
        """
        super().__init__(listener.interrupt)
        self._store, self._listener, self._leases = store, listener, leases
        self._shard_count, self.timing, self._clock = shard_count, timing, clock
        self._mailbox: deque[Request] = deque()
        self._subscriptions: OrderedDict[SubscriptionKey, SubscriptionSessions] = OrderedDict()
        """Sessions in memory. Subscriptions that `_settle_in_turn` has settled are last, the latest at the end."""
        self._topic_ids: dict[str, int] = {}
        self._terms: dict[int, int] = {}
        self._sweep_at = -math.inf
        self._own_process: int | None = None
        """The PostgreSQL server process that ran the last settlement."""
        self._has_ended = False
        """True once `run` takes no more requests from the mailbox."""

    def leads(self, topic_id: int) -> bool:
        """Return True if this worker holds the lease of the topic's shard."""
        return topic_id % self._shard_count in self._leases.terms

    def led_topic_id(self, topic: str) -> int | None:
        """Return the id of the topic with this name, if this worker holds the lease of its shard, and the leader has
        settled a subscription of the topic that has sessions or bucket owners. Otherwise return None. None does not
        say that the topic does not exist or that another worker leads it. When such a subscription is forgotten, the
        result is None until another subscription of the topic is settled.

        The id of a topic that was just deleted may still be returned. The leader refuses requests for this topic,
        except heartbeats.
        """
        topic_id = self._topic_ids.get(topic)
        return topic_id if topic_id is not None and self.leads(topic_id) else None

    def submit(self, request: Request) -> None:
        """Put the request into the mailbox, wake the leader, and return without waiting. The leader later sets
        `request.done` to None, or to the error with which the request is refused. If `run` has ended or ends before
        the request is processed, this error is StoreUnavailable. Before `run` begins, the request waits in the
        mailbox.
        """
        self._mailbox.append(request)
        self._listener.interrupt()
        # The request is in the mailbox before this check, and `run` sets the mark before it empties the mailbox.
        if self._has_ended:
            self._refuse_remaining()

    def run(self) -> None:
        """Run rounds until `stop`; none if `stop` was called before. If a round fails, log the error, pause for at most
        `LONGEST_WAIT_SECONDS`, end the streams of shards that were lost and of silent consumers, and run the next
        round.

        At the end, end every stream with the reason `moved`, refuse the requests in the mailbox with
        StoreUnavailable, and close the listener and the store. The sessions stay in the database, so consumers can
        resume them at the next leader. Raises nothing while rounds run. The leader cannot be run again.
        """
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
        self._has_ended = True
        self._refuse_remaining()
        self._listener.close()
        self._store.dispose()

    def _refuse_remaining(self) -> None:
        """Refuse all requests in the mailbox with StoreUnavailable, because this worker is stopping, and remove them
        from the mailbox. Several threads may do this at once.
        """
        with suppress(IndexError):  # the mailbox is empty
            while True:
                _refuse(
                    self._mailbox.popleft(),
                    StoreUnavailable("this worker is stopping; send the request to another worker"),
                )

    def _round(self) -> float:
        """Wait for work, add and remove the shards whose leases have changed, process the requests in the mailbox,
        end expired sessions, and settle the subscriptions that have changed. Return 0: the next round begins at once.
        Raises StoreUnavailable; the requests that were taken from the mailbox are answered or refused in any case.
        """
        self._wait()
        self._follow_leases()
        self._take_requests()
        self._process_due()
        self._settle_all()
        return 0.0

    def _end_lost_streams(self, _error: Exception) -> None:
        """Remove the subscriptions of shards that this worker no longer holds and end their streams, and disconnect
        silent consumers. The argument is ignored. Needs no database, so it also works after a failed round.
        """
        self._leave_shards()
        self._disconnect_silent()

    def _wait(self) -> None:
        """Wait for a notification, an interrupt or the next time at which a subscription is due, for at most
        `LONGEST_WAIT_SECONDS`. Does not wait if the mailbox has requests, or if a subscription that may be settled
        now is not settled.

        A notification about a topic marks the topic's subscriptions as not settled. If notifications may have been
        lost (resync), all subscriptions are marked. A notification that the last settlement itself sent is ignored.
        Raises StoreUnavailable.
        """
        now = self._clock.monotonic_seconds()
        due_at = min((_next_due(sessions) for sessions in self._subscriptions.values()), default=math.inf)
        has_work = bool(self._mailbox) or any(
            not sessions.is_settled and sessions.retry_at <= now for sessions in self._subscriptions.values()
        )
        timeout_seconds = 0.0 if has_work else max(0.0, min(due_at - now, LONGEST_WAIT_SECONDS))
        for notification in self._listener.wait(timeout_seconds):
            if notification.sender == self._own_process and not notification.is_resync:
                continue  # The transaction that sent the notification also settled its consequences.
            for key, sessions in self._subscriptions.items():
                if notification.is_resync or key.topic_id == notification.first_id:
                    sessions.is_settled = False

    def _leave_shards(self) -> None:
        """Forget the shards whose lease this worker has lost, or holds in another term than the leader knows. Remove
        their subscriptions from memory, and end their streams with the reason `moved`. Makes no calls, so this works
        while PostgreSQL is unavailable.
        """
        terms = self._leases.terms
        self._terms = {shard: term for shard, term in self._terms.items() if terms.get(shard) == term}
        for key in [key for key in self._subscriptions if self._shard(key) not in self._terms]:
            self._forget(key).end_all("moved")

    def _follow_leases(self) -> None:
        """Forget the shards whose lease this worker has lost or holds in another term, and end their streams
        (`_leave_shards`). Then add the shards whose lease, or whose term, is new: read the sessions of their
        subscriptions from the database, with all consumers disconnected and at the begin of their grace period.
        Raises StoreUnavailable; the new shards are then not led yet, and the next call tries again.
        """
        self._leave_shards()
        terms = dict(self._leases.terms)
        new_shards = [shard for shard, term in terms.items() if self._terms.get(shard) != term]
        if new_shards:
            now = self._clock.monotonic_seconds()
            with self._store.transaction() as tx:
                for row in consumers.of_shards(tx, Shards.of(self._shard_count, new_shards)):
                    sessions = self._sessions_of(SubscriptionKey(row.topic_id, row.subscription))
                    sessions.restore(row.name, row.incarnation, now, row.subject)
            self._terms |= {shard: terms[shard] for shard in new_shards}

    def _shard(self, key: SubscriptionKey) -> int:
        return key.topic_id % self._shard_count

    def _sessions_of(self, key: SubscriptionKey) -> SubscriptionSessions:
        """Return the sessions of the subscription in memory. A subscription that is not in memory is added
        without sessions.
        """
        return self._subscriptions.setdefault(key, SubscriptionSessions(self.timing))

    def _forget(self, key: SubscriptionKey) -> SubscriptionSessions:
        """Remove the subscription from memory, and return its sessions, whose streams are not ended. If the
        subscription was settled, the id of its topic is removed too (`led_topic_id`); the next settlement of another
        subscription of the topic adds the id again. Raises KeyError if the subscription is not in memory.
        """
        sessions = self._subscriptions.pop(key)
        if sessions.settled is not None:
            self._topic_ids.pop(sessions.settled.topic, None)
        return sessions

    def _take_requests(self) -> None:
        """Process the requests that are in the mailbox at the begin of the call. Heartbeats and detachments, which
        change only the memory, are answered at once. The other requests are settled, all requests of one subscription
        together.

        A request about a topic whose shard this leader does not lead is refused with StoreUnavailable. A request
        whose token belongs to another subject than the consumer's session is refused with AccessForbidden. If a
        settlement raises StoreUnavailable, all requests without an answer are refused with this error, which is then
        raised.
        """
        by_subscription: dict[SubscriptionKey, list[Request]] = {}
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
                by_subscription.setdefault(request.key, []).append(request)
        try:
            for key, requests in by_subscription.items():
                self._settle(key, requests)
        except StoreUnavailable as error:
            for requests in by_subscription.values():
                for request in requests:
                    _refuse(request, error)
            raise

    def _is_foreign(self, request: Request) -> bool:
        """Return True, and refuse the request with AccessForbidden, if the token of the request belongs to another
        subject than the token that began the consumer's session. Otherwise return False. The result is also False if
        the consumer has no session in memory, or if the session or the request has no token.
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
        """Apply a heartbeat or a detachment to the memory, and answer the request. A heartbeat sets the time at which
        the consumer was last heard. A detachment disconnects the consumer; it is ignored if its stream is not the
        consumer's present stream.

        Both are refused with LostRace if the subscription is not in memory. A heartbeat is also refused with LostRace
        if the incarnation has no session; the consumer must then register again.
        """
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

    def _process_due(self) -> None:
        """Disconnect silent consumers, and update the metrics. End the sessions whose grace period has passed, in one
        transaction per subscription (`_settle_in_turn`); a subscription whose settlement failed waits for its
        `retry_at`.

        Every `SWEEP_SECONDS`, also mark all subscriptions as not settled, and delete the records of consumers, of any
        topic, that departed more than `LATE_SECONDS` ago. Raises StoreUnavailable.
        """
        self._disconnect_silent()
        now = self._clock.monotonic_seconds()
        expired: dict[SubscriptionKey, list[Request]] = {}
        for key, sessions in self._subscriptions.items():
            if sessions.retry_at <= now and (names := sessions.expired(now)):
                expired[key] = [
                    Deregister(key=key, consumer=name, incarnation=incarnation, has_expired=True)
                    for name, incarnation in names
                ]
        self._settle_in_turn(expired)
        self._measure()
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_SECONDS
            for sessions in self._subscriptions.values():
                sessions.is_settled = False
            self._store.in_transaction(consumers.forget_departed, LATE_SECONDS)

    def _measure(self) -> None:
        """Set the metrics of the subscriptions that this worker leads, from their sessions in memory and their last
        settlements.
        """
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

    def _log_overdue(
        self, key: SubscriptionKey, sessions: SubscriptionSessions, settlement: Settlement
    ) -> None:
        """Log a warning, and count an alarm in the metrics, for each bucket in `settlement` whose owner has not
        released the bucket as requested, or has been disconnected, for more than `gap_seconds`. A bucket that the
        previous call for `sessions` found overdue in the same ownership is not reported again. The overdue buckets
        are remembered in `sessions.alarmed`.
        """
        overdue = {
            (owner_row.bucket, owner_row.generation): owner_row
            for owner_row in settlement.overdue(self.timing)
        }
        for identity, owner in overdue.items():
            if identity in sessions.alarmed:
                continue
            metrics.BUCKET_ALARMS.inc()
            log_fields = {
                "topic_id": key.topic_id,
                "subscription": key.name,
                "segment_id": owner.bucket.segment_id,
                "bucket": str(owner.bucket.bucket),
                "consumer": owner.consumer,
            }
            away_seconds = settlement.away_seconds(owner)
            if away_seconds is not None and away_seconds > self.timing.gap_seconds:
                log.warning(
                    "owner of a bucket is disconnected", **log_fields, away_seconds=round(away_seconds, 1)
                )
            else:
                asked_seconds = round(owner.asked_seconds, 1)
                log.warning(
                    "bucket not released",
                    **log_fields,
                    successor=owner.successor,
                    asked_seconds=asked_seconds,
                )
        sessions.alarmed = frozenset(overdue)

    def _disconnect_silent(self) -> None:
        now = self._clock.monotonic_seconds()
        for sessions in self._subscriptions.values():
            sessions.disconnect_silent(now)

    def _settle_all(self) -> None:
        """Settle the subscriptions that have changed or whose time to be settled has come, without requests
        (`_settle_in_turn`). A subscription whose settlement failed is left out until its `retry_at`.
        """
        now = self._clock.monotonic_seconds()
        self._settle_in_turn(
            {
                key: ()
                for key, sessions in self._subscriptions.items()
                if (not sessions.is_settled or min(sessions.settle_at, sessions.note_at) <= now)
                and sessions.retry_at <= now
            }
        )

    def _settle_in_turn(self, requests: Mapping[SubscriptionKey, Sequence[Request]]) -> None:
        """Settle these subscriptions, each with its requests, in the order of the mapping. If the mailbox has requests
        after `SETTLING_SECONDS`, leave the others to the next round, which finds them due, before those of this round.
        Raises StoreUnavailable if the database is unavailable; the remaining subscriptions are then not settled.
        Other errors are logged.
        """
        until = self._clock.monotonic_seconds() + SETTLING_SECONDS
        for key, of_subscription in requests.items():
            self._settle(key, of_subscription)
            if key in self._subscriptions:
                self._subscriptions.move_to_end(key)
            if self._mailbox and self._clock.monotonic_seconds() >= until:
                return

    def _settle(self, key: SubscriptionKey, requests: Sequence[Request]) -> None:
        """Settle the requests of one subscription, together with all other changes of the subscription, in one
        transaction. Then update the memory, answer the requests and push assignments. After an unexpected error,
        several requests are settled one by one, since one of them may cause the error.

        If the topic or subscription is gone, the requests are refused, and the subscription is forgotten with its
        streams. After any other error, the error is logged, the requests are refused, and the subscription is settled
        again after `RETRY_SECONDS`. Raises only StoreUnavailable, so that an error of one subscription does not stop
        the others.
        """
        try:
            self._settle_together(key, requests)
        except CleaveError:
            raise
        except Exception:
            if len(requests) > 1:  # One of the requests may cause the error, so each is settled alone.
                for request in requests:
                    self._settle(key, [request])
                return
            client_metrics.LOOP_ERRORS.labels("sessions not settled").inc()
            log.exception("sessions not settled", topic_id=key.topic_id, subscription=key.name)
            error = Retryable(
                "the leader failed, and its log has the reason; send the request again", RETRY_SECONDS
            )
            self._defer(key, self._sessions_of(key), requests, error)

    def _settle_together(self, key: SubscriptionKey, requests: Sequence[Request]) -> None:
        """Settle the requests in one transaction, which first checks that this worker still holds the lease of the
        shard. After the commit, apply the result to the memory, answer the requests, push assignments, and forget the
        subscription if it has neither sessions nor owners.

        If the topic or subscription is gone, the subscription is forgotten, its streams end with the reason `gone`,
        and the requests are refused. After any other CleaveError nothing was written, and `_defer` handles the
        requests. A consumer whose deregistration was not written ends after its grace period.

        Raises StoreUnavailable if the database is unavailable, and every error that is not a CleaveError.
        """
        sessions = self._sessions_of(key)
        for request in requests:
            if isinstance(request, Deregister):  # If the write fails, the grace period ends the session.
                sessions.end_after_grace(
                    request.consumer, request.incarnation, self._clock.monotonic_seconds()
                )
        now = self._clock.monotonic_seconds()
        connection_state = sessions.connection_state(now)
        deferred_seconds = now - min(sessions.moves_deferred_since, now)
        may_defer_moves = deferred_seconds < self.timing.deferral_seconds
        try:
            with self._store.transaction() as tx:
                self._own_process = server_process(tx)
                self._leases.demand_held(tx, Shards.of(self._shard_count, [self._shard(key)]), self._terms)
                settlement = settle(
                    tx, key, requests, self.timing, connection_state, may_defer_moves=may_defer_moves
                )
        except NotFound as error:
            self._forget(key).end_all("gone")
            for request in requests:
                _refuse(request, error)
        except CleaveError as error:
            self._defer(key, sessions, requests, error)
        else:
            sessions.is_settled, sessions.retry_at = True, -math.inf
            sessions.moves_deferred_since = (
                min(sessions.moves_deferred_since, now) if settlement.defers_moves else math.inf
            )
            sessions.settle_at = self._clock.monotonic_seconds() + settlement.settle_again_seconds(
                self.timing
            )
            self._apply_settlement(key, sessions, requests, settlement)
            sessions.push(self._terms[self._shard(key)])
            if not sessions.sessions and not settlement.owners:
                self._forget(key)

    def _defer(
        self,
        key: SubscriptionKey,
        sessions: SubscriptionSessions,
        requests: Sequence[Request],
        error: CleaveError,
    ) -> None:
        """Handle `error`, with which the settlement of `requests` has failed without writing anything. Log the error,
        refuse the requests with it, and mark the subscription as not settled, to be settled again after
        `RETRY_SECONDS` (after InvalidInput: at once). A lost lease (FencedOut) refuses the requests with
        StoreUnavailable, because the consumer's session is still valid.

        If there are several requests and the error is not retryable, settle each request alone instead, because a
        request that can never succeed must not block the others. Raises `error` if it is StoreUnavailable, and the
        StoreUnavailable of such a settlement.
        """
        if len(requests) > 1 and not isinstance(error, Retryable):
            for request in requests:
                self._settle(key, [request])
            return
        is_store_unavailable, sessions.is_settled = isinstance(error, StoreUnavailable), False
        if not isinstance(error, InvalidInput):
            sessions.retry_at = self._clock.monotonic_seconds() + RETRY_SECONDS
        if isinstance(error, FencedOut):  # This worker's lease is stale, not the consumer's session.
            error = StoreUnavailable(error.message, RETRY_SECONDS)
        log.warning("sessions not settled", topic_id=key.topic_id, subscription=key.name, error=str(error))
        for request in requests:
            _refuse(request, error)
        if is_store_unavailable:
            # No other subscription can be settled either. The loop must check which subscriptions are still
            # led here.
            raise error

    def _apply_settlement(
        self,
        key: SubscriptionKey,
        sessions: SubscriptionSessions,
        requests: Sequence[Request],
        settlement: Settlement,
    ) -> None:
        """Apply the committed settlement to the memory and the metrics, and answer or refuse each request. A request
        in `settlement.refused` is refused with its error there. A request whose token belongs to another subject than
        the session in memory is refused with AccessForbidden, and an `Attach` whose incarnation has no session in
        memory with LostRace. The last two refusals do not undo what the settlement has committed.

        After the requests, make exactly the consumers with a row have a session (`follow_rows`). An `Attach` that was
        refused with LostRace may therefore succeed when it is repeated. The sessions that a `Register` begins or a
        `Deregister` ends are logged, and so are overdue buckets; sessions that begin or end by `follow_rows` are not.
        Nothing is pushed: the caller pushes the assignments.
        """
        now = self._clock.monotonic_seconds()
        sessions.settled, self._topic_ids[settlement.topic] = settlement, key.topic_id
        self._log_overdue(key, sessions, settlement)
        metrics.BUCKETS_GRANTED.inc(settlement.granted)
        for index, request in enumerate(requests):
            try:
                if index in settlement.refused:
                    raise settlement.refused[index]
                sessions.demand_owner(request, key.name)
                log_fields = {
                    "topic": settlement.topic,
                    "subscription": key.name,
                    "consumer": request.consumer,
                }
                if isinstance(request, Register):
                    if sessions.begin(request.consumer, request.incarnation, now, request.subject):
                        log.info("session begun", **log_fields)
                elif isinstance(request, Attach):
                    sessions.attach(request.consumer, request.incarnation, request.stream, now)
                elif isinstance(request, Deregister):
                    reason = "expired" if request.has_expired else "left"
                    metrics.SESSIONS_ENDED.labels(reason).inc()
                    log.info("session ended", **log_fields, reason=reason)
                    sessions.end(request.consumer, request.incarnation, reason)
            except CleaveError as refusal:
                _refuse(request, refusal)
            else:
                _answer(request)
        sessions.follow_rows(settlement.rows, now)


def _next_due(sessions: SubscriptionSessions) -> float:
    """Return the monotonic time in seconds at which the subscription must be settled even if nothing changes: when
    its next settlement or the next update of its connection states is due, or when a session expires. The time is not
    before `retry_at`. Infinite if nothing is due.
    """
    due_at = min(
        (
            sessions.settle_at,
            sessions.note_at,
            *(session.expires_at for session in sessions.sessions.values()),
        )
    )
    return max(due_at, sessions.retry_at)


def _answer(request: Request) -> None:
    """Set the result of the request, unless the client has cancelled the request."""
    with suppress(InvalidStateError):  # The client that sent the request has cancelled it.
        request.done.set_result(None)


def _refuse(request: Request, error: CleaveError) -> None:
    """Set the error of the request, unless the request was answered, or the client has cancelled it."""
    with suppress(InvalidStateError):
        request.done.set_exception(error)
