"""Sends keyed messages to the segment that owns them, in order for each key across splits and merges.

Messages wait in one lane for each entry bucket of a segment and are sent in batches, so that a batch contains
one bucket's messages and the bucket's reader receives it whole (PIP-486). A data plane whose readers receive
single messages needs only one lane for each segment. A lane sends at most one batch at a time, in a thread of
the producer, while the application continues: a second batch could be stored although the first was not.

If a segment is fenced, its lanes wait until the layout with the segment's successors is published; other
lanes continue (`successor_routing`). Nothing is sent twice: a batch whose response was lost is first repeated
under its own number, and the log detects whether it has the batch. A batch for an active segment whose log is
missing is repeated too: the producer reports the segment, and a worker creates the log again.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

from controller import client_metrics
from controller.client.arguments import checks_arguments
from controller.client.closing import StoresOnExit
from controller.client.delayed_sends import RETRY_SECONDS, SHORTEST_RETRY_SECONDS, DelayedSends
from controller.client.fenced_segments import FencedSegments
from controller.client.key_counts import KeyCounts
from controller.client.layout_source import LayoutSource, ReportsToWorkers
from controller.client.send_lane import SendLane, message_bytes
from controller.client.successor_routing import LOOK_SECONDS, SuccessorRouting
from controller.dataplane.log_client import EagerLogClient, LogClient, Metadata, OutgoingMessage
from controller.domain.errors import (
    CleaveError,
    DataPlaneUnavailable,
    InvalidInput,
    SegmentNotFound,
    SegmentTerminated,
    StoreUnavailable,
    Terminal,
)
from controller.domain.key_hash import key_bytes
from controller.domain.names import demand_name
from controller.domain.whole_numbers import whole
from controller.forks import OneProcess

_log = logging.getLogger(__name__)
MAX_MESSAGE_BYTES = 5 * 1024 * 1024 - 64 * 1024
"""Largest size of a message (`message_bytes`), which every data plane accepts with its default settings."""
_SHORT_BYTES, _SHORT_KEY = MAX_MESSAGE_BYTES // 2, MAX_MESSAGE_BYTES // 8
"""Lengths of a payload and of a key with which a message without metadata is never too long. A character of a key
has up to 4 bytes.
"""
MAX_BATCH_MESSAGES = 65_536
"""Largest number of messages in a batch. Pulsar's sequence ids leave 16 bits for the messages of a batch."""
PARALLEL_SENDS = 4
"""Number of batches in flight at once, each of another lane."""
_KEYS = (str, bytes, type(None))
"""Types of a key."""
_METADATA = (Metadata, type(None))


def _demand_storable(payload: object, key: object, metadata: object) -> None:
    """Raise InvalidInput for the first argument of `send` that has a wrong type, for an empty key, for a key or a property
    without a UTF-8 form, and for a message of more than MAX_MESSAGE_BYTES.
    """
    if not isinstance(payload, bytes):
        raise InvalidInput(
            f"producer.send: payload must be bytes, not a value of type {type(payload).__name__}"
        )
    if not isinstance(key, _KEYS):
        raise InvalidInput(
            f"producer.send: key must be str or bytes or None, not a value of type {type(key).__name__}"
        )
    if not isinstance(metadata, _METADATA):
        raise InvalidInput(
            f"producer.send: metadata must be Metadata or None, not a value of type {type(metadata).__name__}"
        )
    if key is not None and not key:
        raise InvalidInput("the key is empty; give a longer key, or None for a message without a key")
    size = message_bytes(payload, None if key is None else key_bytes(key), metadata)
    if size > MAX_MESSAGE_BYTES:
        raise InvalidInput(
            f"a message of {size} bytes with its key and properties; send at most {MAX_MESSAGE_BYTES}, or store the data elsewhere and send a reference"
        )


def _of_queued(error: InvalidInput) -> Terminal:
    """Return the error for queued messages that were refused with InvalidInput. InvalidInput of `send` itself
    means that its message is not queued.
    """
    return Terminal(f"queued messages cannot be sent: {error}")


@checks_arguments
class Producer(OneProcess, StoresOnExit):
    """One producer of one topic. For one thread; the producer sends in its own threads.

    `close`, and so the end of a `with` block, stores pending messages. A block that ends with an error drops
    them.
    """

    # `send` checks its arguments together with `_takes_nothing`, which each message needs anyway
    _guards_itself = frozenset({"send"})

    def __init__(
        self,
        source: LayoutSource,
        logs: LogClient,
        topic: str,
        *,
        name: str = "producer",
        batch_messages: int = 500,
        batch_bytes: int = 512 * 1024,
        batch_delay_seconds: float | None = None,
        max_pending_messages: int = 20_000,
        send_timeout_seconds: float = 30.0,
        key_counts_seconds: float | None = None,
        on_stored: Callable[[Sequence[OutgoingMessage]], None] = lambda _messages: None,
    ) -> None:
        """Create the producer, and start to follow the layout of the topic. `name` begins the producer's id; producers may have the same
        name. A lane holds the messages of one entry bucket, or on the embedded data plane of one segment, that are not sent yet.

        Without `flush`, a lane sends a batch as soon as it holds `batch_messages` messages or `batch_bytes` bytes, or when its oldest
        message has waited for `batch_delay_seconds` (None: no such limit). While `max_pending_messages` are pending, `send` blocks, and
        smaller batches are sent too. `send_timeout_seconds` bounds how long a batch is retried, and how long `send` and `flush` wait for
        a layout, before they raise an error.

        With `key_counts_seconds` the producer counts the hashes of its keys, and sends the counts at this interval, so that segments are
        split where the load is; `source` must then be an HttpSource. `on_stored` is called with the messages that the data plane has
        acknowledged, in the order of each key. The calls come one after the other from the producer's threads, and must not wait for this
        producer. The next call of `send` or `flush` raises an exception of `on_stored`.

        Raises TopicNotFound, TopicNotLive and StoreUnavailable, all without a retry, and InvalidInput for an invalid name, delay or
        source, and for `batch_messages` above MAX_BATCH_MESSAGES.
        """
        # `checks_arguments` checks no limit of `batch_messages`, because consumers take more.
        whole(batch_messages, "batch_messages", 1, MAX_BATCH_MESSAGES)
        self._batch_messages, self._batch_bytes = batch_messages, batch_bytes
        self._max_pending = max_pending_messages
        self._send_timeout_seconds, self._on_stored = send_timeout_seconds, on_stored
        self._logs = logs
        self._eager = logs if isinstance(logs, EagerLogClient) else None
        # Each process numbers its batches from 1, so each process needs a producer id that was never used
        # before.
        self.producer_id = f"{demand_name('producer', name)}-{uuid.uuid4().hex[:12]}"
        self._lock = threading.RLock()
        self._busy_threads: set[int] = set()
        """Threads in a call of the producer that may hold its lock or wait for its other threads."""
        self._storing_threads: set[int] = set()
        """Threads in a `send` or `flush` that waits until messages are stored."""
        self._delayed: DelayedSends | None = None
        if batch_delay_seconds is not None:
            self._delayed = DelayedSends(batch_delay_seconds, self._send_due)
        self._key_counts: KeyCounts | None = None
        if key_counts_seconds is not None:
            self._key_counts = KeyCounts.handed_to(
                source, topic, self.producer_id, key_counts_seconds, self._lock
            )
        self._sends = ThreadPoolExecutor(PARALLEL_SENDS, thread_name_prefix="cleave-send")
        self._numbers = itertools.count(1)
        self._fenced = FencedSegments(
            source.suspects(topic) if isinstance(source, ReportsToWorkers) else None
        )
        self._pending = 0
        self._progress = threading.Event()
        self._takes_nothing = False
        """True once `close` was called."""
        self._is_closing = False
        """True once no further batch may begin."""
        self._has_failed = False  # True if a lane has an error that the application's next call raises
        self._routing = SuccessorRouting(
            source,
            topic,
            self.producer_id,
            self._fenced,
            logs=logs,
            key_counts=self._key_counts,
            timeout_seconds=send_timeout_seconds,
            send_again=self._start_lanes,
            on_change=self._progress.set,
        )
        self._lanes = self._routing.lanes
        for thread in (self._delayed, self._key_counts):
            if thread is not None:
                thread.start()

    @property
    def pending(self) -> int:
        """Number of messages sent by the application and not known to be stored."""
        return self._pending

    def send(self, payload: bytes, key: str | bytes | None = None, metadata: Metadata | None = None) -> None:
        """Queue a message, and begin to send full batches in the background. The call blocks while
        `max_pending_messages` or more are pending, and while a changed layout is read. Messages without a key go to
        the active segments in rotation.

        Raises the errors of `flush`, for earlier messages too: an error that is retried, once it has lasted for
        `send_timeout_seconds`, and any other error at once. After these errors all messages stay queued, including
        this message, so do not send it again.

        Raises InvalidInput, and does not queue the message, for an argument of a wrong type, an empty key, which is
        no key on Pulsar, a key without a UTF-8 form, or more than MAX_MESSAGE_BYTES of payload, key and properties.
        Raises Terminal, and does not queue the message, after `close`. If another thread closes the producer during
        the call, Terminal gives the number of dropped messages.
        """
        # most messages need no more than these comparisons
        is_bytes, is_key, is_plain = isinstance(payload, bytes), isinstance(key, _KEYS), metadata is None
        is_usual = is_bytes and is_key and is_plain and len(payload) <= _SHORT_BYTES
        if not is_usual or not (key is None or 0 < len(key) <= _SHORT_KEY):
            _demand_storable(payload, key, metadata)
        if self._takes_nothing:
            self._refuse_to_send()
        thread, busy_threads = threading.get_ident(), self._busy_threads
        # repeats `_busy`, because calling `_busy` would make each message a third more expensive
        is_nested = thread in busy_threads
        busy_threads.add(thread)
        try:
            with self._lock:
                if self._routing.unrouted or self._routing.is_outdated:
                    self._routing.unrouted.append(
                        (payload, None if key is None else key_bytes(key), None, metadata)
                    )
                    self._pending += 1
                    self._route_all()
                    self._start_lanes(self._lanes, whole_batches=True)
                else:
                    lane = self._lanes.put(payload, key, metadata)
                    self._pending += 1
                    if self._is_full(lane):
                        self._start(lane)
                if self._has_failed:
                    self._demand_sent()
        finally:
            if not is_nested:
                busy_threads.discard(thread)
        if self._is_closing:  # closed by another thread
            self._end()
            self._demand_stored()
        if self._delayed is not None:
            self._delayed.notify()
        if self._pending >= self._max_pending:
            self._work_until(lambda: self._pending < self._max_pending, sends_all=False)

    def flush(self) -> None:
        """Send all messages, and return when the data plane has stored them; return at once if no message is pending.

        Raises an error that has lasted for `send_timeout_seconds`: SegmentTerminated if no successor of a fenced
        segment was published or a missing log was not created again; DataPlaneUnavailable; StoreUnavailable. Raises
        any other error at once: TopicNotFound if the topic was deleted, Terminal for an error by which the data plane
        or a worker refuses the messages, or an exception of `on_stored`. After these errors the messages stay queued,
        and another call of `flush` continues with the full time. If the producer is closed while messages are
        pending, raises Terminal with their number.
        """
        self._store_until(lambda: self._pending == 0)

    def close(self, *, flush: bool = True) -> None:
        """Store the pending messages, as `flush` does, and end the producer's threads. If `flush` is False, or if
        storing fails, the messages that are still pending are dropped. The call waits for the responses of batches in
        flight, each for as long as a call may take. For any thread; a call after the end does nothing.

        Raises Terminal if messages could not be stored, with their number and the reason. If all messages are stored,
        raises an exception of `on_stored` that no call has raised yet. With `flush=False` nothing is raised.

        If another thread is in `flush`, in a `close` that stores messages, or in a `send` that waits for room, this
        call stores nothing and raises nothing. The call of the other thread is ended, and raises Terminal with the
        number of dropped messages, if there are any. The same applies if a signal handler calls `close` during
        another call of the producer in the same thread. The interrupted call then ends the threads, because batches
        in flight may wait for the interrupted call.
        """
        stores = (
            flush and not self._takes_nothing and not self._storing_threads and not self._is_interrupted()
        )
        self._takes_nothing = True
        failure: Exception | None = None
        try:
            if stores and (self._pending or self._has_failed):
                self._store_until(self._ends_if_stored)
        except Exception as error:  # an exception of `on_stored` may be of any type
            if self._is_closing:  # closed by another thread
                raise
            failure = error
        finally:
            self._is_closing = True
            self._end_unless_interrupted()
        if failure is None:
            return
        if self._pending or isinstance(failure, CleaveError):
            raise self._closed(failure) from failure
        raise failure

    def _ends_if_stored(self) -> bool:
        """Begin to close and return True if no message is pending; otherwise return False. The lock is held, so a
        `send` of another thread comes before and is stored, or after and is refused.
        """
        self._is_closing = self._pending == 0
        return self._is_closing

    def _store_until(self, is_done: Callable[[], bool]) -> None:
        """Send all batches, full or not, until `is_done` returns True. Raises the errors of `_work_until`.

        Lanes whose failures are retried (DataPlaneUnavailable, StoreUnavailable) are tried at once and get
        the full time again. Another error of a lane is raised.
        """
        with self._busy(), self._lock:
            for lane in self._lanes:
                if lane.error is None or isinstance(lane.error, DataPlaneUnavailable | StoreUnavailable):
                    lane.forget_failures()
        self._work_until(is_done, sends_all=True)

    def _begin_in_child(self) -> None:
        super()._begin_in_child()
        self._takes_nothing = self._is_closing = True

    def _described(self) -> str:
        return f"Producer of {self._routing.watch.snapshot.name}"

    def _end_unless_interrupted(self) -> None:
        """End the producer's threads, unless this is a signal handler that interrupts a call. That call then
        ends the threads.
        """
        if not self._is_interrupted():
            self._progress.set()
            self._end()

    def _is_interrupted(self) -> bool:
        """Return True if this call is made inside another call of the producer in this thread, as by a signal
        handler.
        """
        return threading.get_ident() in self._busy_threads

    @contextmanager
    def _busy(self) -> Iterator[None]:
        """Mark the calling thread as being in a call of the producer (`_busy_threads`) until the end of the block. If
        the thread is marked already, because a signal handler interrupted another call, the mark stays until that
        call ends.
        """
        thread = threading.get_ident()
        is_nested = thread in self._busy_threads
        self._busy_threads.add(thread)
        try:
            yield
        finally:
            if not is_nested:
                self._busy_threads.discard(thread)

    def _end(self) -> None:
        """End all threads, and stop following the layout. Call it once `_is_closing` is True.

        Waits for the batches in flight. No further batch is begun. Idempotent.
        """
        with self._busy():
            if self._key_counts is not None:
                self._key_counts.close()
            if self._delayed is not None:
                self._delayed.close()
            self._sends.shutdown(wait=True)  # batches in flight must end
            self._fenced.close()
            self._routing.watch.close()

    def _refuse_to_send(self) -> None:
        """Raise Terminal for a `send` after `close`, or in a process that did not create the producer. If no further
        batch may begin (`_is_closing`), first end the producer's threads, which waits for the batches in flight.
        Inside a signal handler that interrupts a call of the producer, the threads are not ended here: the
        interrupted call ends them.
        """
        self._demand_maker()
        if self._is_closing:
            self._end_unless_interrupted()
        raise self._closed()

    def _closed(self, error: Exception | None = None) -> Terminal:
        """Return, without raising it, the Terminal of a call during or after `close`. If no further batch may begin
        (`_is_closing`), the message gives the number of dropped messages, if there are any, and `error`, the reason
        why they were not stored.
        """
        name = f"the producer of {self._lanes.snapshot.name}"
        if not self._is_closing:
            return Terminal(f"{name} is being closed; create another producer")
        dropped = f" with {self._pending} message(s) that are not known to be stored" if self._pending else ""
        return Terminal(
            f"{name} was closed{dropped}{f' ({error})' if error else ''}; create another producer"
        )

    def _demand_stored(self) -> None:
        """Raise Terminal if the closed producer has dropped messages."""
        if self._pending:
            raise self._closed()

    def _work_until(self, is_done: Callable[[], bool], *, sends_all: bool) -> None:
        """Route and send messages until `is_done` returns True, which is called with the lock held. If `sends_all` is
        False, a batch that is not full is sent only while no batch is in flight.

        If the producer is closed by then, end its threads, which waits for the batches in flight, and raise Terminal
        if messages were dropped. Raises the errors of `_send_until`.
        """
        thread = threading.get_ident()
        self._storing_threads.add(thread)
        try:
            with self._busy():
                self._send_until(is_done, sends_all=sends_all)
        finally:
            self._storing_threads.discard(thread)
            if self._is_closing:
                self._end()
        if self._is_closing:
            self._demand_stored()

    def _send_until(self, is_done: Callable[[], bool], *, sends_all: bool) -> None:
        """Route and send until `is_done` returns True, or the producer is being closed. `is_done` is called under
        the lock. Unless `sends_all`, a lane sends only full batches while another lane is sending. Report segments
        that stay fenced.

        Raises the error of a lane, and the errors of `_route_all`. Raises SegmentTerminated if
        `send_timeout_seconds` after the call messages wait for the successor of a fenced segment, or for a
        missing log to be created again. Until then the layout is read again every LOOK_SECONDS without
        progress.
        """
        deadline = time.monotonic() + self._send_timeout_seconds
        while not self._is_closing:
            # cleared before the check, so that a change during the check sets it again
            self._progress.clear()
            with self._lock:
                is_routed = self._route_all()
                self._fenced.report(LOOK_SECONDS)
                self._demand_sent()
                if is_done():
                    return
                self._start_lanes(self._lanes, whole_batches=not sends_all)
                if not any(lane.is_sending for lane in self._lanes):
                    self._start_lanes(self._lanes)
                fenced = self._routing.waiting_for_successors() if is_routed else []
                due_at = min((lane.next_try_at for lane in self._lanes if lane.in_doubt), default=0.0)
            now = time.monotonic()
            if fenced and now >= deadline:
                raise SegmentTerminated(
                    f"{fenced[0].backing_topic} is {self._fenced.state_of(fenced[0].segment_id)} and {self._lanes.snapshot.name} has no successor "
                    f"for it after {self._send_timeout_seconds:g} s; check the topic's operations, then flush again"
                )
            limits = [
                LOOK_SECONDS,
                *([deadline - now] if fenced else []),
                *([due_at - now] if due_at > now else []),
            ]
            if not self._progress.wait(max(0.0, min(limits))) and fenced:
                self._routing.look_again()

    def _route_all(self) -> bool:
        """Call `SuccessorRouting.route_all`, but raise Terminal instead of its InvalidInput."""
        try:
            return self._routing.route_all()
        except InvalidInput as error:
            raise _of_queued(error) from error

    def _demand_sent(self) -> None:
        """Raise the error of the first lane that has an error, once: the lane forgets the error and is
        retried. If no lane has an error, clear `_has_failed`.
        """
        for lane in self._lanes:
            if lane.error is not None:
                error = lane.error
                lane.forget_failures()
                raise error
        self._has_failed = False

    def _send_due(self, delay_seconds: float) -> float | None:
        """Begin to send the next batch of each lane whose oldest message has waited for `delay_seconds`, and
        each batch in doubt, and report segments that stay fenced. Called by the thread of `DelayedSends`; the
        application's next call raises the errors.

        Return the time of the next call, in `time.monotonic` seconds: RETRY_SECONDS from now if routing has
        failed or must wait; otherwise the earliest time at which a lane is due (`_due_again_at`). None if there are
        no messages.
        """
        with self._lock:
            try:
                is_routed = self._routing.route_all()
            except CleaveError:
                return time.monotonic() + RETRY_SECONDS
            except Exception:  # noqa: BLE001 - the thread would end, and no later message would be sent
                _log.exception("cannot send delayed messages; retrying")
                return time.monotonic() + RETRY_SECONDS
            self._fenced.report(LOOK_SECONDS)
            now = time.monotonic()
            self._start_lanes(
                [
                    lane
                    for lane in self._lanes
                    if lane.in_doubt is not None or lane.since + delay_seconds <= now
                ]
            )
            if not is_routed:
                return now + RETRY_SECONDS
            waiting = [lane for lane in self._lanes if not lane.is_empty]
            return min((self._due_again_at(lane, delay_seconds, now) for lane in waiting), default=None)

    def _due_again_at(self, lane: SendLane, delay_seconds: float, now: float) -> float:
        """Return the time, in `time.monotonic` seconds, at which the thread of `DelayedSends` looks at the lane again.
        The lane has messages, and could not send more at the time `now`. While a batch is in flight, the time is
        `delay_seconds` from `now`, at most RETRY_SECONDS, because the thread does not hear of the end of the batch. It
        is RETRY_SECONDS from `now` if the lane is fenced or waits for its next try. Otherwise it is the time at which
        the oldest message has waited for `delay_seconds`.
        """
        if lane.is_sending:
            return now + min(RETRY_SECONDS, max(delay_seconds, SHORTEST_RETRY_SECONDS))
        if lane.in_doubt is not None or lane.segment_id in self._fenced or lane.next_try_at > now:
            return now + RETRY_SECONDS
        return lane.since + delay_seconds

    def _start_lanes(self, lanes: Iterable[SendLane], *, whole_batches: bool = False) -> None:
        """Begin to send the next batch of each lane that may send (`_start`). With `whole_batches`, only of
        lanes whose waiting messages fill a batch, or that have a batch in doubt. The caller holds the
        producer's lock.
        """
        for lane in lanes:
            if lane.in_doubt is not None or not whole_batches or self._is_full(lane):
                self._start(lane)

    def _is_full(self, lane: SendLane) -> bool:
        return len(lane.waiting) >= self._batch_messages or lane.waiting_bytes >= self._batch_bytes

    def _start(self, lane: SendLane) -> None:
        """Begin to send the lane's batch in doubt again; if there is no batch in doubt, take the next batch from the
        waiting messages, which is then in doubt. A thread of the producer waits for the response (`_send_batch`). If
        the log client can send at once (`_begin_append`), the batch is sent in the calling thread; otherwise that
        thread of the producer sends the batch too. The caller holds the producer's lock.

        Does nothing while the lane is sending or waits for its next try, if the lane has no message, if there is no
        batch in doubt and the segment is fenced, and once the producer is closing. If no thread can be started, the
        batch stays in doubt and is tried again like after DataPlaneUnavailable (`SendLane.fail`), because the process
        may have threads again before `send_timeout_seconds` are over.
        """
        if lane.is_sending or lane.next_try_at > time.monotonic() or self._is_closing:
            return
        if lane.in_doubt is None:
            if not lane.waiting or lane.segment_id in self._fenced:
                return
            lane.in_doubt = (next(self._numbers), lane.take(self._batch_messages, self._batch_bytes))
        number, batch = lane.in_doubt
        append = partial(
            self._logs.append,
            lane.backing_topic,
            batch,
            producer=lane.producer,
            sequence=number,
            bucket=lane.bucket,
        )
        lane.is_sending = True
        try:
            self._sends.submit(self._send_batch, lane, batch, self._begin_append(lane) or append)
        except RuntimeError as error:  # the result of the batch is unknown
            lane.is_sending = False
            if not self._is_closing:  # the process ends, or has too many threads
                lane.fail(
                    DataPlaneUnavailable(f"no thread sends queued messages: {error}"),
                    self._send_timeout_seconds,
                )
                self._has_failed = self._has_failed or lane.error is not None
                self._progress.set()

    def _begin_append(self, lane: SendLane) -> Callable[[], int] | None:
        """Send the lane's batch in doubt in this thread, and return the function that waits for the response and
        returns the number of stored messages. Return None if the log client is not eager, cannot send the batch at
        once, or raises a CleaveError; the caller then calls `append`, which sends the batch or raises the error.

        Sending in this thread is cheaper, because threads would compete for the interpreter.
        """
        if self._eager is None or lane.in_doubt is None:
            return None
        number, batch = lane.in_doubt
        try:
            return self._eager.begin_append(
                lane.backing_topic, batch, producer=lane.producer, sequence=number, bucket=lane.bucket
            )
        except CleaveError:  # `append` raises the error again
            return None

    def _send_batch(self, lane: SendLane, batch: list[OutgoingMessage], append: Callable[[], int]) -> None:
        """Call `append`, which sends the batch or only waits for its response and returns the number of stored
        messages; record the result in the lane; wake the waiting calls; and begin the lane's next batch if a full
        batch waits. Runs in a background thread. Raises nothing.

        A terminated log, and a missing log of a segment that is not active, has stored nothing of the batch
        (`_settle`). If the log of an active segment is missing, the batch stays in doubt until the log is created
        again (`SuccessorRouting.await_log`). After any other error the batch stays in doubt too, and `SendLane.fail`
        records the error, InvalidInput as Terminal, for the application's next call.
        """
        stored, is_missing = 0, False
        failure: Exception | None = None
        try:
            stored = append()
        except SegmentTerminated:
            pass
        # the log was deleted long after the fence, or was lost
        except SegmentNotFound:
            is_missing = True
        except InvalidInput as error:
            failure = _of_queued(error)
        except Exception as error:  # noqa: BLE001 - the application's next call raises it
            failure = error
        with self._lock:
            # a batch for which no thread could be started may be run later, besides its repetition
            if lane.in_doubt is None or lane.in_doubt[1] is not batch:
                return
            lane.is_sending = False
            if is_missing and self._routing.is_active(lane.segment_id):
                self._routing.await_log(lane)
            elif failure is None:
                self._settle(lane, batch, stored)
            else:
                lane.fail(failure, self._send_timeout_seconds)
            self._has_failed = self._has_failed or lane.error is not None
            if lane.error is None and self._is_full(lane):
                self._start(lane)
        self._progress.set()
        if self._delayed is not None:
            self._delayed.notify()

    def _settle(self, lane: SendLane, batch: list[OutgoingMessage], stored: int) -> None:
        """Record that the log has stored the first `stored` messages of the batch, and call `on_stored` with these
        messages, unless there are none. The batch is no longer in doubt, and the failures of the lane are cleared.
        The caller holds the producer's lock.

        If messages of the batch were not stored, the log refuses messages: the rest of the batch returns to the front
        of the lane, and the segment counts as fenced. The layout is then read again, unless a layout without the
        segment is known. If all messages are stored, a segment that was fenced because of a missing log is no longer
        fenced.

        An exception of `on_stored` becomes the error of the lane, which the application's next call raises; the
        messages count as stored.
        """
        lane.in_doubt = None
        lane.forget_failures()
        self._pending -= stored
        if stored < len(batch):
            self._routing.requeue(lane, batch[stored:])
        else:
            self._fenced.note_stored(lane.segment_id)
        if stored:
            client_metrics.PRODUCER_BATCHES.inc()
            client_metrics.PRODUCER_MESSAGES.inc(stored)
            try:
                self._on_stored(batch[:stored])
            except Exception as error:  # noqa: BLE001 - an exception of the application, which its next call raises
                lane.error = error
