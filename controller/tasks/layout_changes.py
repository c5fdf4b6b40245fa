"""Follows the layout changes of all topics from outside Cleave, for a trigger of a scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import Any

from controller.domain.errors import InvalidInput
from controller.domain.names import topic_name
from controller.postgres.listener import Listener
from controller.services import asset_events
from controller.services.asset_events import LayoutFollower
from controller.tasks.application_of_connection import Extras, cleave_at


class LayoutChanges:
    """A reader of layout changes, in their order. Not thread-safe, except `interrupt`."""

    def __init__(
        self,
        *,
        dsn: str,
        extras: Extras,
        since: str | None = None,
        topics: Sequence[str] = (),
        kinds: Sequence[str] = (),
    ) -> None:
        """`since` is the `resume_at` of an earlier follower; None starts with the first `wait`. Empty
        `topics` or `kinds` stand for all. Opens a pool of connections to the database, which `close` closes.

        Raises InvalidInput for an invalid `since`, topic name or setting.
        """
        self._topics, self._kinds = frozenset(map(topic_name, topics)), frozenset(kinds)
        try:
            since_instant = None if since is None else datetime.fromisoformat(since)
        except ValueError as error:
            raise InvalidInput(f"since={since!r} is not an instant; give a value of `resume_at`") from error
        with ExitStack() as resources:
            app = resources.enter_context(cleave_at(dsn, extras))
            self._listener = Listener(
                app.store.address, asset_events.CHANNELS, application_name="cleave-layout-changes"
            )
            resources.callback(self._listener.close)
            self._follower = LayoutFollower(app.store, self._listener, since=since_instant)
            self._open = resources.pop_all()

    def close(self) -> None:
        """Close the connections. Call it in the thread that calls `wait`."""
        self._open.close()

    @property
    def resume_at(self) -> str | None:
        """The instant from which another follower can continue; None before the first `wait`."""
        instant = self._follower.resume_at
        return None if instant is None else instant.isoformat()

    def wait(self, timeout_seconds: float) -> list[dict[str, Any]]:
        """Wait up to `timeout_seconds`, and return the changes since the last call, oldest first. Each has
        the form of the `extra` of an asset event. Empty after the time-out, an interrupt, or changes of other
        topics and kinds. Raises StoreUnavailable.

        If there was no earlier follower, the first call only sets `resume_at` and returns no changes: store
        `resume_at` before the next call.
        """
        return [
            asset_events.document(change)
            for change in self._follower.wait(timeout_seconds)
            if (not self._topics or change.topic in self._topics)
            and (not self._kinds or change.kind in self._kinds)
        ]

    def interrupt(self) -> None:
        """Make the current or the next `wait` return at once."""
        self._listener.interrupt()
