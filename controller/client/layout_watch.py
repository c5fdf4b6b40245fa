"""The newest known layout of one topic, for the producer or consumer that routes or reads by it.

A notification only leaves a mark. The owner reads the layout in its own thread, with `refresh_if_changed`. A lost
notification costs no more than the owner's next timed look (`look_again`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from controller.client.layout_source import LayoutSource, TopicSnapshot, Watch
from controller.domain.errors import TopicNotFound


class LayoutWatch:
    """Follows one topic from construction to `close`. `refresh_if_changed` is for one thread at a time."""

    def __init__(
        self, source: LayoutSource, topic: str, *, on_change: Callable[[], None] = lambda: None
    ) -> None:
        """Reads the topic at once; `on_change` runs in the source's thread and must not block."""
        self._source, self._on_change = source, on_change
        self._changed = threading.Event()
        self.snapshot: TopicSnapshot = source.topic(topic)
        self._watch: Watch = source.watch(self.snapshot.topic_id, self._ring)
        self._changed.set()  # it may have changed between the look and the watch

    @property
    def changed(self) -> bool:
        """Whether `refresh_if_changed` would read."""
        return self._changed.is_set()

    def refresh_if_changed(self) -> bool:
        """Read the topic again if something changed since; True when it was read.

        TopicNotFound when it is deleted, even if another topic has its name by now.
        """
        if not self._changed.is_set():
            return False
        self._changed.clear()  # before reading: a change from here on rings again
        try:
            found = self._source.topic(self.snapshot.name)
        except Exception:
            self._changed.set()
            raise
        if found.topic_id != self.snapshot.topic_id:
            raise TopicNotFound(f"{found.name} was deleted and created anew; open it again")
        self.snapshot = found
        return True

    def look_again(self) -> None:
        """Have the next `refresh_if_changed` read, whether something was notified or not."""
        self._changed.set()

    def close(self) -> None:
        """Follow no more."""
        self._watch.close()

    def _ring(self) -> None:
        self._changed.set()
        self._on_change()
