"""Watches the live topics of a namespace, for an application that handles each of them, for instance with one
consumer each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping

import msgspec

from controller.client.arguments import checks_arguments
from controller.client.event_watch import EventWatch
from controller.client.servers import Servers, path_part
from controller.domain.errors import InvalidInput
from controller.forks import OneProcess

Change = Callable[[frozenset[str], frozenset[str]], None]


class _TopicEvent(msgspec.Struct):
    """All topics, or the changes since the last event if `topics` is None. `hash` identifies the set of
    topics after the event.
    """

    hash: str
    topics: list[str] | None = None
    removed: list[str] = []
    added: list[str] = []


# The decoder is created here because two threads that first decode a type at the same time end the process.
_TOPIC_EVENT = msgspec.json.Decoder(_TopicEvent)


@checks_arguments
class TopicWatch(OneProcess):
    """The topics of a namespace, followed from construction to `close`. While no worker responds, `topics`
    does not change.

    Safe to share between threads.
    """

    def __init__(
        self,
        servers: Servers,
        namespace: str,
        *,
        properties: Mapping[str, str] | None = None,
        on_change: Change = lambda _removed, _added: None,
    ) -> None:
        """Follow the topics of `namespace` (`tenant/namespace`) that have all of `properties` (None: any) and that
        the token may see. `topics` is complete when the constructor returns.

        `on_change` is called in the watch's thread with the names of the removed and of the added topics, and must
        not block. The first call reports the topics that exist already as added, unless there are none. An error of
        `on_change` is logged, and the change is reported again.

        Raises InvalidInput for a namespace that does not have the form `tenant/namespace`; StoreUnavailable if no
        worker responds; or the error by which a worker refuses the request, such as AccessDenied.
        """
        tenant, _, name = namespace.partition("/")
        if not tenant or not name or "/" in name:
            raise InvalidInput(f"{namespace!r} is not a namespace; name it as tenant/namespace")
        path = f"/api/v1/namespaces/{path_part(tenant)}/{path_part(name)}/topics"
        property_filters = [f"{key}={value}" for key, value in (properties or {}).items()]
        self._on_change, self._lock = on_change, threading.Lock()
        first = msgspec.convert(
            servers.ask("GET", path, query={"property": property_filters}), _TOPIC_EVENT.type
        )
        self._topics = frozenset(first.topics or ())
        # without a hash, the first event of the stream has all topics, which `_handle` reports as added
        self._hash, self._reported = "", frozenset[str]()
        self._watch = EventWatch(
            servers,
            f"{path}/watch",
            self._handle,
            query=lambda: {"property": property_filters, "hash": self._hash},
        )

    @property
    def topics(self) -> frozenset[str]:
        """Names of the topics, as `topic://tenant/namespace/name`."""
        with self._lock:
            return self._topics

    def close(self) -> None:
        """Stop following the topics. Idempotent."""
        self._watch.close()

    def _handle(self, _event: str, data: str) -> None:
        """Adopt an event: update the topics, and call `on_change` with the difference from the topics that were
        reported before, if there is any. `data` is the JSON of a `_TopicEvent`; the name of the event does not
        matter.

        If `on_change` raises, `_reported` and `_hash` keep their values, so that the next stream repeats the
        change, and the error is raised.
        """
        event = _TOPIC_EVENT.decode(data)
        before = self._reported
        after = self._after(before, event)
        with self._lock:
            self._topics = after
        if after != before:
            self._on_change(before - after, after - before)
        self._reported, self._hash = after, event.hash

    @staticmethod
    def _after(before: Collection[str], event: _TopicEvent) -> frozenset[str]:
        """Return the topics after an event: the topics that the event lists, or the earlier topics with the
        changes of the event. A topic that is both removed and added stays.
        """
        if event.topics is not None:
            return frozenset(event.topics)
        # the order matters for a topic that is in both
        return frozenset(before).difference(event.removed).union(event.added)
