"""A topic's segments as consumers without a session follow them: sealed ones included, or those that a queue has still to read.

A thread asks for the list whenever the stream of layout changes says so, and every `LIST_SECONDS`. The owner takes the newest one
when it is ready to: a worker that does not answer holds up no reading.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller.client.event_watch import LEAVES_WITHIN_SECONDS, EventWatch
from controller.client.patience import Backoff
from controller.client.servers import Servers, path_part, topic_path
from controller.domain.errors import CleaveError, Retryable, TopicNotFound
from controller.domain.hash_range import HashRange

LIST_SECONDS = 10.0
_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.1, 5.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ListedSegment:
    """A segment, and the log behind it. `parent_ids` are those of parents that are not pruned."""

    segment_id: int
    hash_range: HashRange
    is_sealed: bool
    parent_ids: tuple[int, ...]
    created_epoch: int
    backing_topic: str


@dataclass(frozen=True, slots=True)
class SegmentList:
    """Segments at one epoch. `as_of` stands for where a queue is, None where none was asked for."""

    topic_id: int
    topic: str
    epoch: int
    segments: Mapping[int, ListedSegment]
    as_of: str | None


class SegmentWatch:
    """Follows the list from construction to `close`. `take` is for one thread at a time."""

    def __init__(
        self, servers: Servers, topic: str, *, queue: str | None = None, on_change: Callable[[], None]
    ) -> None:
        """Asks at once: of all segments, or of those that the subscription `queue` has to read. Raises NotFound, TopicNotLive,
        StoreUnavailable; Conflict where the subscription is no queue. `on_change` runs in another thread and must not block.
        """
        self._servers, self._on_change = servers, on_change
        self._path = f"{topic_path(topic)}/segments"
        if queue is not None:
            self._path = f"{topic_path(topic)}/subscriptions/{path_part(queue)}/queue"
        self._topic_id: int | None = None
        self.found = self._newest = self.ask()
        self._topic_id = self.found.topic_id
        self._failure: CleaveError | None = None
        self._changed, self._closed = threading.Event(), threading.Event()
        self._changed.set()  # it may have changed between the look and the watch
        self._watch = EventWatch(
            servers,
            f"{topic_path(topic)}/layout/watch",
            lambda _event, _data: self._changed.set(),
            on_refusal=self._changed.set,
        )
        self._thread = threading.Thread(target=self._run, name="cleave-segment-list", daemon=True)
        self._thread.start()

    def ask(self) -> SegmentList:
        """The list as it is now. Raises as the constructor; TopicNotFound also when another topic has the name by now."""
        found = _segment_list(self._servers.ask("GET", self._path))
        if self._topic_id is not None and found.topic_id != self._topic_id:
            raise TopicNotFound(f"{found.topic} was deleted and created anew; open it again")
        return found

    def take(self) -> bool:
        """Have `found` be the newest list; True when it is another one. Raises what the last asking did, but StoreUnavailable."""
        if self._failure is not None:
            raise self._failure
        newest = self._newest
        is_new = newest is not self.found
        self.found = newest
        return is_new

    def look_again(self) -> None:
        """Have it asked for now."""
        self._changed.set()

    def say_drained(self, segment_ids: Sequence[int], as_of: str | None) -> None:
        """Of a queue: these sealed segments are settled to their end, as found after a list with that `as_of` was given. Raises
        LostRace when it was moved since, else as the constructor.
        """
        document = {"as_of": as_of, "segment_ids": sorted(segment_ids)}
        self._servers.ask("POST", f"{self._path}/drained", document=document)

    def close(self) -> None:
        """Follow no more."""
        self._closed.set()
        self._changed.set()
        self._watch.close()
        self._thread.join(LEAVES_WITHIN_SECONDS)

    def _run(self) -> None:
        backoff = Backoff(_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS)
        while not self._closed.is_set():
            self._changed.wait(LIST_SECONDS)
            if self._closed.is_set():
                return
            self._changed.clear()  # before asking: a change from here on rings again
            try:
                self._newest, self._failure = self.ask(), None
                backoff.reset()
            except CleaveError as error:
                self._failure = None if isinstance(error, Retryable) else error
                self._changed.set()
                self._closed.wait(backoff.next_seconds())
            except Exception:  # noqa: BLE001 - the thread would end, and no change would be told any more
                _log.exception("no list of segments from %s; asking again", self._path)
                self._closed.wait(_LONGEST_RETRY_SECONDS)
            self._on_change()


def _segment_list(document: Mapping[str, Any]) -> SegmentList:
    return SegmentList(
        document["topic_id"],
        document["topic"],
        document["epoch"],
        {
            one["segment_id"]: ListedSegment(
                segment_id=one["segment_id"],
                hash_range=HashRange(one["range_start"], one["range_end"]),
                is_sealed=one["state"] == "SEALED",
                parent_ids=tuple(one["parent_ids"]),
                created_epoch=one["created_epoch"],
                backing_topic=one["backing_topic"],
            )
            for one in document["segments"]
        },
        document.get("as_of"),
    )
