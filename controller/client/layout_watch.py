"""Keeps the newest known layout of one topic, for a producer or consumer that routes or reads by it.

A notification only sets a flag. The owner reads the layout in its own thread, with `refresh_if_changed`. A
lost notification delays the change until the owner's next periodic read (`look_again`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from controller.client.layout_source import LayoutSource, TopicSnapshot
from controller.domain.errors import TopicNotFound


class LayoutWatch:
    """The layout of one topic, followed from construction to `close`. `refresh_if_changed` is for one thread
    at a time.
    """

    def __init__(
        self, source: LayoutSource, topic: str, *, on_change: Callable[[], None] = lambda: None
    ) -> None:
        """Read the topic at once. The first `refresh_if_changed` reads it again, because a change may have
        come in between. `on_change` is called in the source's thread after each notification, and must not
        block. Raises the errors of `LayoutSource.topic`, such as TopicNotFound, TopicNotLive,
        StoreUnavailable.
        """
        self._source, self._on_change = source, on_change
        self._changed = threading.Event()
        self.snapshot: TopicSnapshot = source.topic(topic)
        self._watch = source.watch(self.snapshot.topic_id, self._mark_changed)
        self._changed.set()  # the topic may have changed between the read and the start of the watch

    @property
    def changed(self) -> bool:
        """True if `refresh_if_changed` would read."""
        return self._changed.is_set()

    def refresh_if_changed(self) -> bool:
        """Read the topic, store the result as `snapshot`, and return True, even if the layout is the same. The topic
        is read at the first call, and if a change was notified or `look_again` was called since the last read.
        Otherwise return False without reading.

        Raises the errors of `LayoutSource.topic`, such as TopicNotFound, TopicNotLive and StoreUnavailable, and
        TopicNotFound if the topic was deleted and another topic has its name. After an error, `snapshot` is
        unchanged, and the next call reads again.
        """
        if not self._changed.is_set():
            return False
        self._changed.clear()  # cleared before reading, so that a change during the read sets the flag again
        try:
            snapshot = self._source.topic(self.snapshot.name)
            if snapshot.topic_id != self.snapshot.topic_id:
                raise TopicNotFound(f"{snapshot.name} was deleted and created again; open it again")
        except Exception:
            self._changed.set()
            raise
        self.snapshot = snapshot
        return True

    def look_again(self) -> None:
        """Make the next `refresh_if_changed` read, even without a notification."""
        self._changed.set()

    def close(self) -> None:
        """Stop following the topic."""
        self._watch.close()

    def _mark_changed(self) -> None:
        self._changed.set()
        self._on_change()
