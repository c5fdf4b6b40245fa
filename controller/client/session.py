"""A consumer's session with the leader of its topic: registered, connected, told what it owns.

A thread holds the assignment stream open, answers its heartbeats, and connects again when it breaks, wherever the leader is then.
The consumer asks `is_current` in its own thread before it hands out or acknowledges anything: a process that was stopped for a
while wakes up in the middle of anything, before this thread has noticed.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import msgspec
from httpx_sse import ServerSentEvent

from controller.client.aside import AsideCalls
from controller.client.lag import lag_path
from controller.client.patience import Backoff, Outage, patiently
from controller.client.servers import EventFeed, Servers, consumer_path, is_for_the_token
from controller.clock import boot_seconds
from controller.domain.errors import CleaveError, Retryable, SessionExpired, StoreUnavailable, TokenOutOfTime
from controller.domain.hash_range import HashRange
from controller.domain.names import demand_name

_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.05, 2.0
_GOODBYE_SECONDS = 2.0
"""One try of a goodbye waits no longer for one worker."""
_log = logging.getLogger(__name__)


class OwnedBucket(msgspec.Struct, frozen=True):
    """A bucket, or a run of them where the segment has many `buckets`, that this consumer owns since `generation`. `release`: it is to
    let go of it.
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
        """Its bucket hashes."""
        return HashRange(self.bucket_start, self.bucket_end)

    @property
    def identity(self) -> tuple[int, int, int]:
        """One ownership: segment, bucket, generation."""
        return self.segment_id, self.bucket_start, self.generation


class Assignment(msgspec.Struct, frozen=True, dict=True):
    """All that the consumer owns, as the leader's stream says it."""

    term: int
    generation: int
    epoch: int
    origin: int
    """Positions that were kept under another one mean nothing any more: the subscription is a new one, or was moved by a seek."""
    data_plane: str
    buckets: tuple[OwnedBucket, ...]

    @property
    def version(self) -> tuple[int, int, int]:
        """Assignments are ordered by it. Terms come second: a database that went back in time hands terms out once more,
        while each subscription goes on with a generation above all earlier ones.
        """
        return self.generation, self.term, self.epoch

    @cached_property
    def identities(self) -> frozenset[tuple[int, int, int]]:
        """The ownerships."""
        return frozenset(one.identity for one in self.buckets)


# Made here: two threads that decode a type for the first time end the process.
_ASSIGNMENT = msgspec.json.Decoder(Assignment)


class Standing(msgspec.Struct, frozen=True):
    """Why nothing comes of a bucket that this consumer owns, and since when."""

    owned: OwnedBucket
    reason: str
    since: float
    """`boot_seconds`."""


class Session:
    """From construction to `close`. `on_change` is called from its thread, and must not block."""

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
        standing: Callable[[], Sequence[Standing]] = tuple,
        patience_seconds: float = 0.0,
    ) -> None:
        """Registers at once, or tries to for `patience_seconds`, since a topic may be between two leaders. `reads` is the kind that
        the subscription must have: STREAM or CHECKPOINT. `on_lost` is called, in the session's thread, while all that was
        assigned may be another's for good. `standing` is called, in any thread, at each heartbeat, and the leader is told when it
        has changed. Raises NotFound, TopicNotLive, Conflict, StoreUnavailable.
        """
        self._servers, self._on_change, self._on_lost = servers, on_change, on_lost
        self._reads, self._standing = reads, standing
        self._told: tuple[Standing, ...] = ()
        self._path = consumer_path(topic, subscription, demand_name("consumer", consumer))
        self._why_path = f"{self._path.rpartition('/consumers/')[0]}/why"
        self._lag_path = lag_path(topic, subscription)
        self._incarnation = uuid.uuid4().hex
        self._silent_seconds = self._grace_seconds = 0.0  # as registering says
        self._refused_since: float | None = None
        self._is_pulsing = False
        self._current_until = 0.0
        self._lock = threading.Lock()
        self._assignment: Assignment | None = None
        self._failure: CleaveError | None = None
        self._closing = threading.Event()
        self._is_closed = self._is_over = False
        self._feed: EventFeed | None = None
        # One is left for what is said while the other waits for the answer to a pulse: somebody waits for a release.
        self._calls = AsideCalls(2, "cleave-session-calls")
        self._untimely = Outage(patience_seconds)
        patiently(self._register, seconds=patience_seconds)
        self._is_registered = True
        self._thread = threading.Thread(target=self._run, name="cleave-session", daemon=True)
        self._thread.start()

    @property
    def assignment(self) -> Assignment | None:
        """The newest that is known; None before the first, and after the session has expired."""
        with self._lock:
            return self._assignment

    @property
    def is_current(self) -> bool:
        """Whether the leader has answered lately. If not, somebody else may own by now what this consumer has.

        What the leader says by itself proves nothing: it may have been deposed, or the words may have waited in a socket while
        this process was stopped. So it counts from the sending of a request that was answered.
        """
        return not self._is_over and boot_seconds() < self._current_until

    @property
    def is_lost(self) -> bool:
        """Whether what this consumer has may be another's for good by now: it is to let go of everything."""
        return (
            self._is_over
            or self.assignment is None
            or boot_seconds() > self._current_until + self._grace_seconds - self._silent_seconds
        )

    def demand_alive(self) -> None:
        """Raises why this session can never go on: it was replaced by a newer one of its name, or its topic is gone."""
        if self._failure is not None:
            raise self._failure

    def why(self) -> list[dict[str, Any]]:
        """What the leader says of every bucket of the subscription. Raises StoreUnavailable."""
        found: list[dict[str, Any]] = self._servers.ask("GET", self._why_path)
        return found

    def lag(self) -> dict[str, Any]:
        """Return the unacknowledged messages of every bucket of the subscription. Raises StoreUnavailable."""
        found: dict[str, Any] = self._servers.ask("GET", self._lag_path)
        return found

    def ask(self, what: str, document: Mapping[str, object]) -> Any:
        """A worker's answer to this consumer. Raises StoreUnavailable, and what the worker refuses it with."""
        said = {"incarnation": self._incarnation, **document}
        return self._servers.ask("POST", f"{self._path}/{what}", document=said)

    def say_released(self, buckets: Sequence[OwnedBucket]) -> None:
        """Let the leader know that these are let go of. Said again at the next assignment if it does not arrive."""
        let_go = [
            {"segment_id": one.segment_id, "bucket_start": one.bucket.start, "generation": one.generation}
            for one in buckets
        ]
        self._say("released", {"buckets": let_go})

    def say_drained(self, buckets: Sequence[OwnedBucket]) -> None:
        """Let the leader know that the sealed segments of these are read to their end. The caller looks again until it is told so."""
        read = [{"segment_id": one.segment_id, "generation": one.generation} for one in buckets]
        self._say("drained", {"segments": read})

    def close(self, timeout_seconds: float = _GOODBYE_SECONDS, *, leave: bool = True) -> None:
        """End it. With `leave` what this consumer owned goes to others at once; without, it is kept for the grace period. The goodbye is
        said until a worker has heard it, or the time is over.
        """
        if self._is_closed:
            return
        self._is_closed, has_left = True, self._closing.is_set()
        self._closing.set()
        until = time.monotonic() + timeout_seconds
        self._calls.close()
        if leave and not has_left and self._failure is None:
            self._say_goodbye(until)
        self._is_over = True  # an answer that is still under way changes nothing any more
        if self._feed is not None:
            self._feed.hang_up()
        self._thread.join(max(0.0, until - time.monotonic()))

    def _say_goodbye(self, until: float) -> None:
        """To any worker: one that is stopped must not use up the time of those that would answer."""
        try_seconds = (until - time.monotonic()) / (1 + self._servers.count)
        backoff = Backoff(_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS)
        pause, unheard = threading.Event(), "there was no time for it"
        while (left := until - time.monotonic()) > 0:
            try:
                self._servers.ask(
                    "DELETE",
                    self._path,
                    query={"incarnation": self._incarnation},
                    timeout_seconds=min(left, try_seconds, _GOODBYE_SECONDS),
                )
                return
            except Retryable as error:
                unheard = str(error)
                pause.wait(min(left, backoff.next_seconds()))
            except CleaveError:  # it is gone already
                return
        _log.warning(
            "%s: no worker heard the goodbye; others wait for the grace period: %s", self._path, unheard
        )

    def _say(self, what: str, document: dict[str, object]) -> None:
        said = {"incarnation": self._incarnation, **document}

        def say() -> None:
            with suppress(CleaveError):
                self._servers.ask("POST", f"{self._path}/{what}", document=said)

        self._calls.submit(say)

    def _run(self) -> None:
        """Connected, again and again, until closed or refused for good."""
        backoff = Backoff(_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS)
        while not self._closing.is_set():
            try:
                self._follow()
                backoff.reset()
            except SessionExpired:
                self._begin_anew()
                backoff.reset()
            except Retryable as error:
                if self._is_refused_for_good(error):
                    self._fail(error)
                    return
                if self.is_lost and not self._closing.is_set():
                    self._on_lost()
                self._closing.wait(backoff.next_seconds())
            except CleaveError as error:
                self._fail(error)
                return
            except Exception:  # noqa: BLE001 - the thread would end, and nothing would ever come again
                _log.exception("the session of %s failed; connecting again", self._path)
                self._closing.wait(_LONGEST_RETRY_SECONDS)

    def _is_refused_for_good(self, error: Retryable) -> bool:
        """Return True if each fresh token was out of time for as long as this consumer bears an outage."""
        if not isinstance(error, TokenOutOfTime):
            self._untimely.over()
            return False
        try:
            self._untimely.bear(error)
        except TokenOutOfTime:
            return True
        return False

    def _fail(self, error: CleaveError) -> None:
        self._failure = error
        self._current_until = 0.0
        self._on_change()

    def _follow(self) -> None:
        """Hold one stream open until the leader ends it. Raises as `_register` does, and StoreUnavailable when it breaks."""
        if not self._is_registered:
            self._register()
        if self._closing.is_set():  # the goodbye is said for what was just registered, too
            return
        self._is_registered = False  # for the next stream
        with self._servers.events(
            f"{self._path}/assignment",
            query={"incarnation": self._incarnation},
            silent_seconds=self._silent_seconds,
        ) as feed:
            self._feed = feed
            if self._closing.is_set():
                return
            for event in feed:
                if self._closing.is_set():
                    return
                if event.event == "end":
                    self._hear_end(event)
                    return
                if event.event == "assignment":
                    self._adopt(_ASSIGNMENT.decode(event.data))
                self._pulse()
                if event.event == "assignment":
                    self._on_change()

    def _hear_end(self, end: ServerSentEvent) -> None:
        """Of other reasons than these the next registration says what became of the session."""
        if is_for_the_token(end):
            return  # nothing was taken from this consumer, so it reads on while it registers with a fresh token
        self._current_until = 0.0
        if json.loads(end.data)["reason"] == "left":
            self._closing.set()

    def _register(self) -> None:
        began = boot_seconds()
        said = {"incarnation": self._incarnation, "reads": self._reads}
        timing = self._servers.ask("POST", self._path, document=said)
        try:
            self.topic_id = int(timing["topic_id"])
            self._silent_seconds = float(timing["silent_seconds"])
            self._grace_seconds = float(timing["grace_seconds"])
        except (KeyError, TypeError, ValueError):
            raise StoreUnavailable("what answers there is no worker of Cleave; correct the address") from None
        self._current_until = max(self._current_until, began + self._silent_seconds)

    def _pulse(self) -> None:
        """Answer the leader, and be current from here on if it takes the answer. One at a time: what is late helps nobody."""
        if self._is_pulsing:
            return
        self._is_pulsing = True
        incarnation = self._incarnation

        def pulse() -> None:
            began = boot_seconds()
            try:
                self._servers.ask("POST", f"{self._path}/pulse", document={"incarnation": incarnation})
            except CleaveError:
                return  # the stream tells of it, or the silence does
            finally:
                self._is_pulsing = False
            if incarnation == self._incarnation and not self._closing.is_set():
                self._current_until = max(self._current_until, began + self._silent_seconds)
                self._tell_reasons(incarnation)

        if not self._calls.submit(pulse):  # closed meanwhile
            self._is_pulsing = False

    def _tell_reasons(self, incarnation: str) -> None:
        """What nothing comes of, where that has changed; again at the next heartbeat if nobody hears."""
        found = tuple(self._standing())
        if found == self._told:
            return
        buckets = [
            {
                "segment_id": one.owned.segment_id,
                "bucket_start": one.owned.bucket_start,
                "generation": one.owned.generation,
                "reason": one.reason,
                "seconds": max(0.0, boot_seconds() - one.since),
            }
            for one in found
        ]
        try:
            said = {"incarnation": incarnation, "buckets": buckets}
            self._servers.ask("POST", f"{self._path}/reasons", document=said)
        except Retryable:
            return
        except CleaveError as error:  # a worker of before does not know the question
            _log.debug("the reasons of %s are not taken: %s", self._path, error)
        self._told = found

    def _begin_anew(self) -> None:
        """Others have what this consumer had. It begins again with nothing, as if it had just come."""
        self._incarnation = uuid.uuid4().hex
        with self._lock:
            self._assignment, self._refused_since = None, None
        self._told = ()
        self._current_until = 0.0
        self._on_change()

    def _adopt(self, found: Assignment) -> None:
        """Unless it is older than what is known: a leader that was deposed may still push."""
        with self._lock:
            if self._assignment is not None and found.version < self._assignment.version:
                self._refused_since = self._refused_since or boot_seconds()
                if boot_seconds() - self._refused_since > self._grace_seconds:
                    raise SessionExpired("leaders count from anew; so does this consumer", 0.0)
                raise StoreUnavailable("this leader was deposed; ask again", 0.1)
            self._assignment, self._refused_since = found, None
