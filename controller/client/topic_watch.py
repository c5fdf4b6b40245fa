"""The live topics of a namespace, for an application that takes on whatever is there: one consumer for each, for instance."""

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


class _Told(msgspec.Struct):
    """All topics, or what changed."""

    hash: str
    topics: list[str] | None = None
    removed: list[str] = []
    added: list[str] = []


# Made here: two threads that decode a type for the first time end the process.
_TOLD = msgspec.json.Decoder(_Told)


@checks_arguments
class TopicWatch(OneProcess):
    """Follows the topics of a namespace from construction to `close`. While no worker answers, `topics` stays as it was.

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
        """Topics of `namespace` (`tenant/namespace`) with all these properties, as far as the token is for them.

        `on_change` is told what went and what came, in the watch's thread, and must not block; the first set is there when this
        returns and is not told. What it raises is logged, and the change is told again.
        Raises InvalidInput, AccessDenied, StoreUnavailable.
        """
        tenant, _, name = namespace.partition("/")
        if not tenant or not name or "/" in name:
            raise InvalidInput(f"{namespace!r} is no namespace; name it as tenant/namespace")
        path = f"/api/v1/namespaces/{path_part(tenant)}/{path_part(name)}/topics"
        wanted = [f"{key}={value}" for key, value in (properties or {}).items()]
        self._on_change, self._lock = on_change, threading.Lock()
        first = msgspec.convert(servers.ask("GET", path, query={"property": wanted}), _TOLD.type)
        self._hash, self._topics = first.hash, frozenset(first.topics or ())
        self._watch = EventWatch(
            servers, f"{path}/watch", self._hear, query=lambda: {"property": wanted, "hash": self._hash}
        )

    @property
    def topics(self) -> frozenset[str]:
        """Names as `topic://tenant/namespace/name`."""
        with self._lock:
            return self._topics

    def close(self) -> None:
        """Stop following. Safe to repeat."""
        self._watch.close()

    def _hear(self, _event: str, data: str) -> None:
        told = _TOLD.decode(data)
        before = self.topics
        after = self._after(before, told)
        self._adopt(after)
        if after != before:
            try:
                self._on_change(before - after, after - before)
            except BaseException:
                self._adopt(before)  # with the hash of before: the next stream says all of it anew
                raise
        self._hash = told.hash

    def _adopt(self, topics: frozenset[str]) -> None:
        with self._lock:
            self._topics = topics

    @staticmethod
    def _after(before: Collection[str], told: _Told) -> frozenset[str]:
        if told.topics is not None:
            return frozenset(told.topics)
        return frozenset(before).difference(told.removed).union(told.added)  # in this order
