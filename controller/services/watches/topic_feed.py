"""Who watches the topics of which namespace, and what each was told (`feeds` waits and calls).

A watcher is pushed the whole set of names; what it says to its client, the set or what changed, is its own. What happens within
`GATHER_SECONDS` is read once, so a topic that comes and goes in that time is never told of.
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
from controller.domain.errors import CleaveError, InvalidInput
from controller.postgres.notification import Notification
from controller.services.watches.feeds import Watcher
from controller.store.postgres.engine import Store

log = telemetry.get_logger(__name__)

CHANNEL = "cleave_topics"
GATHER_SECONDS = 0.05
_NAMES = text("""
    SELECT name FROM cleave.topic
     WHERE namespace = :namespace AND state = 'live' AND properties @> CAST(:properties AS jsonb) ORDER BY name
""")
Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicFilter:
    """Live topics of a namespace (`tenant/namespace`) that have all of these properties."""

    namespace: str
    properties: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, namespace: str, properties: Iterable[str]) -> TopicFilter:
        """From `key=value` texts. Raises InvalidInput."""
        pairs = []
        for given in properties:
            key, is_pair, value = given.partition("=")
            if not is_pair or not key:
                raise InvalidInput(f"property {given!r} is no key=value; give one such as team=billing")
            pairs.append((key, value))
        if len(dict(pairs)) < len(pairs):
            raise InvalidInput("one property is asked for with two values; no topic has both")
        return cls(namespace, tuple(sorted(pairs)))


def snapshot_hash(names: Iterable[str]) -> str:
    """The same for the same set of names, in any order."""
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:16]


class TopicFeed:
    """`watch` and `forget` are for any thread."""

    def __init__(self, store: Store, wake: Callable[[], None], *, clock: Clock) -> None:
        """`wake` has the feeds' thread look at once."""
        self._store, self._wake, self._clock = store, wake, clock
        self._lock = threading.Lock()
        self._watchers: dict[TopicFilter, set[Watcher[Names]]] = {}
        self._due: dict[TopicFilter, float] = {}

    def look(self, wanted: TopicFilter) -> Names:
        """The names as they are now, sorted."""
        with self._store.transaction() as tx:
            parameters = {"namespace": wanted.namespace, "properties": json.dumps(dict(wanted.properties))}
            return tuple(tx.execute(_NAMES, parameters).scalars())

    def watch(self, wanted: TopicFilter, watcher: Watcher[Names]) -> None:
        """From now on; it is told the present names first."""
        with self._lock:
            self._watchers.setdefault(wanted, set()).add(watcher)
            self._due[wanted] = -math.inf
        self._wake()

    def forget(self, wanted: TopicFilter, watcher: Watcher[Names]) -> None:
        """Tell it no more."""
        with self._lock:
            watching = self._watchers.get(wanted, set())
            watching.discard(watcher)
            if not watching:
                self._watchers.pop(wanted, None)
                self._due.pop(wanted, None)

    @property
    def due_in_seconds(self) -> float:
        """See `Feed`."""
        with self._lock:
            return min(self._due.values(), default=math.inf) - self._clock.monotonic_seconds()

    def notice(self, notifications: Sequence[Notification], *, is_sweep: bool) -> None:
        """See `Feed`."""
        named = {one.payload for one in notifications if one.channel == CHANNEL}
        due = self._clock.monotonic_seconds() + (0.0 if is_sweep else GATHER_SECONDS)
        with self._lock:
            for wanted in self._watchers:
                if is_sweep or wanted.namespace in named:
                    self._due[wanted] = min(due, self._due.get(wanted, math.inf))

    def tell(self) -> None:
        """Read each set once, and push it; whoever was told the same says nothing."""
        for wanted in self._take_due():
            try:
                names = self.look(wanted)
            except CleaveError:
                with self._lock:
                    self._due = dict.fromkeys(self._watchers, -math.inf)
                raise
            except (
                Exception
            ):  # The next sweep reads this namespace again; the watchers of others are notified.
                client_metrics.LOOP_ERRORS.labels("watchers not notified").inc()
                log.exception("watchers not notified", namespace=wanted.namespace)
                continue
            for watcher in self._watching(wanted):
                watcher.push(names)

    def end_all(self, reason: str) -> None:
        """See `Feed`."""
        with self._lock:
            watching = [one for those in self._watchers.values() for one in those]
        for watcher in watching:
            watcher.end(reason)

    def _take_due(self) -> list[TopicFilter]:
        now = self._clock.monotonic_seconds()
        with self._lock:
            due = [wanted for wanted, at in self._due.items() if at <= now]
            for wanted in due:
                del self._due[wanted]
        return due

    def _watching(self, wanted: TopicFilter) -> tuple[Watcher[Names], ...]:
        with self._lock:
            return tuple(self._watchers.get(wanted, ()))


class TopicChanges:
    """What one watcher's client is to be told of the names that its token allows: all of them first, then what changed."""

    def __init__(self, is_allowed: Callable[[str], bool], known_hash: str = "") -> None:
        """`known_hash` is that of the set which the client has: if it is the present one, nothing is said."""
        self._is_allowed, self._known_hash = is_allowed, known_hash
        self._told: frozenset[str] | None = None

    def document(self, names: Names) -> Mapping[str, object] | None:
        """As JSON; None for nothing."""
        now = frozenset(filter(self._is_allowed, names))
        before, self._told = self._told, now
        if before == now:
            return None
        found = snapshot_hash(now)
        if before is None:
            return None if found == self._known_hash else {"hash": found, "topics": sorted(now)}
        return {"hash": found, "removed": sorted(before - now), "added": sorted(now - before)}
