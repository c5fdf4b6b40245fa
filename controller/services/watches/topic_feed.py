"""The watchers of namespaces' topics (`feeds` waits and calls).

A watcher receives the whole set of names; it decides whether to send the set or the changes to its client.
Changes within `GATHER_SECONDS` are read once, so a topic that is created and deleted within that time is
never reported.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import text

from controller.clock import Clock
from controller.domain.errors import InvalidInput
from controller.postgres.notification import Notification
from controller.services.watches.feeds import Feed
from controller.store.postgres.engine import Store

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


NO_TOPICS = TopicFilter("")
"""Filter of a namespace that cannot exist."""


def snapshot_hash(names: Iterable[str]) -> str:
    """Return a hash of the set of names, independent of their order."""
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:16]


class TopicFeed(Feed[TopicFilter, Names]):
    """Sends the topic names of each watched filter to its watchers, and reads single filters on request."""

    subject_field = "topic_filter"

    def __init__(self, store: Store, wake: Callable[[], None], *, clock: Clock) -> None:
        """`wake` makes the feeds' thread start its next round at once."""
        super().__init__(wake, clock, gather_seconds=GATHER_SECONDS)
        self._store = store

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

    def _concerned(self, notifications: Sequence[Notification]) -> Callable[[TopicFilter], bool]:
        """Return a function that returns True for a filter of a namespace in the notifications."""
        namespaces = {
            notification.payload for notification in notifications if notification.channel == CHANNEL
        }
        return lambda topic_filter: topic_filter.namespace in namespaces


class TopicChanges:
    """The messages to one watcher's client about the names that its token allows: first all names, then the
    changes.
    """

    def __init__(self, is_allowed: Callable[[str], bool], known_hash: str = "") -> None:
        """`known_hash` is the hash of the client's set of names. If it equals the hash of the present set,
        nothing is sent first.
        """
        self._is_allowed, self._known_hash = is_allowed, known_hash
        self._seen: Names = ()
        self._sent: frozenset[str] | None = None

    def document(self, names: Names) -> Mapping[str, object] | None:
        """Return the next message to the client as a JSON object, given the present names, and remember the allowed
        names among them as sent. Names that the token does not allow are left out; only names that were not among those
        of the last call are checked. The first message has the keys `hash` and `topics` (all allowed names, sorted).
        Each later message has `hash`, `removed` and `added`. `hash` is the `snapshot_hash` of all allowed names.

        Return None if no message is necessary: the allowed names are those of the last call, or, in the first call,
        their hash is the hash that the client already knows.
        """
        present = frozenset(names)
        is_first, sent_names = self._sent is None, self._sent or frozenset()
        added = frozenset(filter(self._is_allowed, present.difference(self._seen)))
        removed = sent_names - present
        self._seen, self._sent = names, (sent_names - removed) | added
        if not (is_first or added or removed):
            return None
        # The names arrive in order, and sorting them again is fast as long as they are in order.
        allowed_names = [name for name in names if name in self._sent]
        current_hash = snapshot_hash(allowed_names)
        if not is_first:
            return {"hash": current_hash, "removed": sorted(removed), "added": sorted(added)}
        is_known = current_hash == self._known_hash
        return None if is_known else {"hash": current_hash, "topics": sorted(allowed_names)}
