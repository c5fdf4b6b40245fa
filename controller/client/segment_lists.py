"""Follows the segments of a topic for consumers without a session: all segments, including sealed ones, or
those that a queue reads.

A thread requests the list after every layout change, and every `LIST_SECONDS`. The owner takes the newest
list when it is ready, so a worker that does not respond does not delay reading.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller.client.event_watch import (
    FIRST_RETRY_SECONDS,
    LEAVES_WITHIN_SECONDS,
    LONGEST_RETRY_SECONDS,
    EventWatch,
)
from controller.client.retry import Backoff
from controller.client.servers import Servers, path_part, topic_path
from controller.domain.errors import CleaveError, Retryable, TopicNotFound
from controller.domain.hash_range import HashRange

LIST_SECONDS = 10.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ListedSegment:
    """A segment and its log. `parent_ids` contains only parents that are not pruned."""

    segment_id: int
    hash_range: HashRange
    is_sealed: bool
    parent_ids: tuple[int, ...]
    created_epoch: int
    backing_topic: str


@dataclass(frozen=True, slots=True)
class SegmentList:
    """The segments at one epoch. `as_of` identifies the state of the queue; None for a list of all
    segments.
    """

    topic_id: int
    topic: str
    epoch: int
    segments: Mapping[int, ListedSegment]
    as_of: str | None


class SegmentWatch:
    """The list of a topic's segments, followed from construction to `close`. `take` is for one thread at a
    time.
    """

    def __init__(
        self, servers: Servers, topic: str, *, queue: str | None = None, on_change: Callable[[], None]
    ) -> None:
        """Request the list at once, store it as `current`, and start to follow the list in a background thread. The
        list has all segments of the topic, or, if `queue` names a queue subscription, only the segments that this
        subscription reads.

        `on_change` is called in the background thread after each later request, also after a failed request, and must
        not block. Raises NotFound for a missing topic or subscription; TopicNotLive; StoreUnavailable; Conflict if
        the subscription is not a queue; InvalidInput for an invalid name; or another error by which a worker refuses
        the request.
        """
        self._servers, self._on_change = servers, on_change
        self._path = f"{topic_path(topic)}/segments"
        if queue is not None:
            self._path = f"{topic_path(topic)}/subscriptions/{path_part(queue)}/queue"
        self._topic_id: int | None = None
        self.current = self._newest = self.ask()
        self._topic_id = self.current.topic_id
        self._failure: CleaveError | None = None
        self._changed, self._closed = threading.Event(), threading.Event()
        self._changed.set()  # the list may have changed between the request and the start of the watch
        self._watch = EventWatch(
            servers,
            f"{topic_path(topic)}/layout/watch",
            lambda _event, _data: self._changed.set(),
            on_refusal=self._changed.set,
        )
        self._thread = threading.Thread(target=self._run, name="cleave-segment-list", daemon=True)
        self._thread.start()

    def ask(self) -> SegmentList:
        """Request the list from a worker, and return it. `current` and the result of `take` do not change. Raises the
        errors of the constructor, and TopicNotFound if the topic was deleted and another topic has its name.
        """
        segment_list = _segment_list(self._servers.ask("GET", self._path))
        if self._topic_id is not None and segment_list.topic_id != self._topic_id:
            raise TopicNotFound(f"{segment_list.topic} was deleted and created again; open it again")
        return segment_list

    def take(self) -> bool:
        """Set `current` to the newest list. Return True if a list was received since the last call, even if its
        segments are the same; otherwise False. After a Retryable error of the last request, the newest list is the
        list that was received before.

        If the last request failed with an error that is not Retryable, raise this error, and leave `current`
        unchanged. The background thread repeats the request in either case.
        """
        if self._failure is not None:
            raise self._failure
        newest = self._newest
        is_new = newest is not self.current
        self.current = newest
        return is_new

    def look_again(self) -> None:
        """Make the thread request the list at once."""
        self._changed.set()

    def report_drained(self, segment_ids: Sequence[int], as_of: str | None) -> None:
        """Report to a worker that the queue has drained these sealed segments. The logs were queried after
        the list with this `as_of` was read.

        Raises LostRace if the queue was moved since; otherwise the errors of the constructor.
        """
        document = {"as_of": as_of, "segment_ids": sorted(segment_ids)}
        self._servers.ask("POST", f"{self._path}/drained", document=document)

    def close(self) -> None:
        """Stop following the list. Waits for the end of the change stream and of the background thread, at most
        `LEAVES_WITHIN_SECONDS` for each. A request or a call of `on_change` that is in progress may end later.
        Idempotent.
        """
        self._closed.set()
        self._changed.set()
        self._watch.close()
        self._thread.join(LEAVES_WITHIN_SECONDS)

    def _run(self) -> None:
        """Request the list after each change of the layout, after `look_again`, and every `LIST_SECONDS`,
        until `close`, and keep the list, or an error that is not Retryable, for `take`. A request that failed
        is repeated after a delay. Call `on_change` after each request; after a failed request, at the end of
        its delay.
        """
        backoff = Backoff(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS)
        while not self._closed.is_set():
            self._changed.wait(LIST_SECONDS)
            if self._closed.is_set():
                return
            # cleared before the request, so that a change during the request sets it again
            self._changed.clear()
            try:
                self._newest, self._failure = self.ask(), None
                backoff.reset()
            except CleaveError as error:
                self._failure = None if isinstance(error, Retryable) else error
                self._changed.set()
                self._closed.wait(backoff.next_seconds())
            except Exception:  # noqa: BLE001 - the thread would end, and later changes would be missed
                _log.exception("cannot read the segment list %s; retrying", self._path)
                self._changed.set()
                self._closed.wait(LONGEST_RETRY_SECONDS)
            self._on_change()


def _segment_list(document: Mapping[str, Any]) -> SegmentList:
    """Return the list in a worker's response."""
    return SegmentList(
        document["topic_id"],
        document["topic"],
        document["epoch"],
        {
            row["segment_id"]: ListedSegment(
                segment_id=row["segment_id"],
                hash_range=HashRange(row["range_start"], row["range_end"]),
                is_sealed=row["state"] == "SEALED",
                parent_ids=tuple(row["parent_ids"]),
                created_epoch=row["created_epoch"],
                backing_topic=row["backing_topic"],
            )
            for row in document["segments"]
        },
        document.get("as_of"),
    )
