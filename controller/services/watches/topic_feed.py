"""The watchers of namespaces' topics (`feeds` waits and calls).

A watcher receives the whole set of names; it decides whether to send the set or the changes to its client.
Changes within `GATHER_SECONDS` are read once, so a topic that is created and deleted within that time is
never reported.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import text

from controller import client_metrics, telemetry
from controller.clock import Clock
from controller.domain.errors import InvalidInput, Retryable
from controller.postgres.notification import Notification
from controller.services.watches.feeds import Watcher
from controller.store.postgres.engine import Store

log = telemetry.get_logger(__name__)

CHANNEL = "cleave_topics"
GATHER_SECONDS = 0.05
"""Seconds from the first notification of a change until the names are read."""
_NAMES = text("""
    SELECT name FROM cleave.topic
     WHERE namespace = :namespace AND state = 'live' AND properties @> CAST(:properties AS jsonb) ORDER BY name
""")
Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicFilter:
    """The live topics of a namespace (`tenant/namespace`) that have all of these properties."""

    namespace: str
    properties: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, namespace: str, properties: Iterable[str]) -> TopicFilter:
        """Build a filter for the namespace (`tenant/namespace`, not checked) and the properties that a topic must
        have, given as `key=value` texts. No properties select all live topics of the namespace. The value may be
        empty, and may contain `=`. Raises InvalidInput for a text without `=` or with a NUL, which PostgreSQL cannot
        store, for an empty key, and for a key that is given twice, even with the same value.
        """
        pairs = []
        for pair in properties:
            key, is_pair, value = pair.partition("=")
            if not is_pair or not key or "\0" in pair:
                raise InvalidInput(
                    f"property {pair!r} must have the form key=value without NUL, for example team=billing"
                )
            pairs.append((key, value))
        if len(dict(pairs)) < len(pairs):
            raise InvalidInput("a property was given two values; give each property once")
        return cls(namespace, tuple(sorted(pairs)))


def snapshot_hash(names: Iterable[str]) -> str:
    """Return a hash of the set of names, independent of their order."""
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:16]


class TopicFeed:
    """Sends the topic names of each watched filter to its watchers, and reads single filters on request.
    `watch` and `forget` are thread-safe.
    """

    def __init__(self, store: Store, wake: Callable[[], None], *, clock: Clock) -> None:
        """`wake` makes the feeds' thread start its next round at once."""
        self._store, self._wake, self._clock = store, wake, clock
        self._lock = threading.Lock()
        self._watchers: dict[TopicFilter, set[Watcher[Names]]] = {}
        self._due: dict[TopicFilter, float] = {}

    def look(self, topic_filter: TopicFilter) -> Names:
        """Return the present names of the live topics that the filter selects, sorted; empty if there are none or the
        namespace does not exist. Raises the errors of `Store.transaction`, such as StoreUnavailable.
        """
        with self._store.transaction() as tx:
            parameters = {
                "namespace": topic_filter.namespace,
                "properties": json.dumps(dict(topic_filter.properties)),
            }
            return tuple(tx.execute(_NAMES, parameters).scalars())

    def watch(self, topic_filter: TopicFilter, watcher: Watcher[Names]) -> None:
        """Add a watcher of the filter, and wake the feeds' thread, which reads the present names and sends them to
        all watchers of this filter, the earlier watchers included.
        """
        with self._lock:
            self._watchers.setdefault(topic_filter, set()).add(watcher)
            self._due[topic_filter] = -math.inf
        self._wake()

    def forget(self, topic_filter: TopicFilter, watcher: Watcher[Names]) -> None:
        """Remove the watcher without a notification to the watcher; no effect if it is not watching the filter. A
        filter without watchers is no longer read.
        """
        with self._lock:
            watching = self._watchers.get(topic_filter, set())
            watching.discard(watcher)
            if not watching:
                self._watchers.pop(topic_filter, None)
                self._due.pop(topic_filter, None)

    @property
    def due_in_seconds(self) -> float:
        """Seconds until the feed has something to read: 0 or less at once, infinity for nothing."""
        with self._lock:
            return min(self._due.values(), default=math.inf) - self._clock.monotonic_seconds()

    def notice(self, notifications: Sequence[Notification], *, is_sweep: bool) -> None:
        """Note which watched filters must be read again: filters of the namespaces in the notifications,
        `GATHER_SECONDS` from now; in a sweep, all filters at once. A filter that is due earlier keeps its time. Reads
        and sends nothing.
        """
        named_namespaces = {
            notification.payload for notification in notifications if notification.channel == CHANNEL
        }
        due_at = self._clock.monotonic_seconds() + (0.0 if is_sweep else GATHER_SECONDS)
        with self._lock:
            for topic_filter in self._watchers:
                if is_sweep or topic_filter.namespace in named_namespaces:
                    self._due[topic_filter] = min(due_at, self._due.get(topic_filter, math.inf))

    def notify(self) -> None:
        """Read the names of each filter that is due once, and send the names to all watchers of the filter, even if
        the names are unchanged. A Retryable error of a reading, such as StoreUnavailable, is raised, and the next
        call then reads all watched filters. Any other error of a filter is logged and counted, and the next sweep
        reads that filter again; the other filters are not affected.
        """
        for topic_filter in self._take_due():
            try:
                names = self.look(topic_filter)
            except Retryable:
                with self._lock:
                    self._due = dict.fromkeys(self._watchers, -math.inf)
                raise
            except Exception:
                # The next sweep reads this namespace again; the watchers of others are notified.
                client_metrics.LOOP_ERRORS.labels("watchers not notified").inc()
                log.exception("watchers not notified", namespace=topic_filter.namespace)
                continue
            for watcher in self._watching(topic_filter):
                watcher.push(names)

    def end_all(self, reason: str) -> None:
        """End all watches with the reason. The watchers are not removed."""
        with self._lock:
            watchers = [watcher for of_filter in self._watchers.values() for watcher in of_filter]
        for watcher in watchers:
            watcher.end(reason)

    def _take_due(self) -> list[TopicFilter]:
        """Return the filters that are due, possibly none. These filters are due again only after the next
        notification, sweep or `watch`.
        """
        now = self._clock.monotonic_seconds()
        with self._lock:
            due_filters = [topic_filter for topic_filter, due_at in self._due.items() if due_at <= now]
            for topic_filter in due_filters:
                del self._due[topic_filter]
        return due_filters

    def _watching(self, topic_filter: TopicFilter) -> tuple[Watcher[Names], ...]:
        with self._lock:
            return tuple(self._watchers.get(topic_filter, ()))


class TopicChanges:
    """The messages to one watcher's client about the names that its token allows: first all names, then the
    changes.
    """

    def __init__(self, is_allowed: Callable[[str], bool], known_hash: str = "") -> None:
        """`known_hash` is the hash of the client's set of names. If it equals the hash of the present set,
        nothing is sent first.
        """
        self._is_allowed, self._known_hash = is_allowed, known_hash
        self._sent: frozenset[str] | None = None

    def document(self, names: Names) -> Mapping[str, object] | None:
        """Return the next message to the client as a JSON object, given the present names, and remember the allowed
        names among them as sent. Names that the token does not allow are left out. The first message has the keys
        `hash` and `topics` (all allowed names, sorted). Each later message has `hash`, `removed` and `added`. `hash`
        is the `snapshot_hash` of all allowed names.

        Return None if no message is necessary: the allowed names are those of the last call, or, in the first call,
        their hash is the hash that the client already knows.
        """
        allowed_names = frozenset(filter(self._is_allowed, names))
        sent_names, self._sent = self._sent, allowed_names
        if sent_names == allowed_names:
            return None
        current_hash = snapshot_hash(allowed_names)
        if sent_names is None:
            return (
                None
                if current_hash == self._known_hash
                else {"hash": current_hash, "topics": sorted(allowed_names)}
            )
        return {
            "hash": current_hash,
            "removed": sorted(sent_names - allowed_names),
            "added": sorted(allowed_names - sent_names),
        }
