"""Following the layout changes of all topics from outside: what a trigger of a scheduler does."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import Any, Self

from controller.domain.errors import InvalidInput
from controller.domain.names import topic_name
from controller.postgres.listener import Listener
from controller.services import asset_events
from controller.services.asset_events import LayoutFollower
from controller.tasks.access import Extras, cleave_at


class LayoutChanges:
    """A context manager for one thread; `interrupt` may come from any."""

    def __init__(
        self,
        *,
        dsn: str,
        extras: Extras,
        since: str | None = None,
        topics: Sequence[str] = (),
        kinds: Sequence[str] = (),
    ) -> None:
        """`since` is what `resume_at` was when somebody followed them before; None: from now on. No topics, no kinds: all.

        Raises InvalidInput.
        """
        self._topics, self._kinds = frozenset(map(topic_name, topics)), frozenset(kinds)
        try:
            begun = None if since is None else datetime.fromisoformat(since)
        except ValueError as error:
            raise InvalidInput(f"since={since!r} is no instant as `resume_at` gives it") from error
        with ExitStack() as opened:
            app = opened.enter_context(cleave_at(dsn, extras))
            listener = Listener(
                app.store.address, asset_events.CHANNELS, application_name="cleave-layout-changes"
            )
            self._follower = LayoutFollower(app.store, listener, since=begun)
            opened.callback(self._follower.close)
            self._open = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give back the connections; to be called where `wait` is."""
        self._open.close()

    @property
    def resume_at(self) -> str | None:
        """The instant to go on from another time; None before the first `wait`."""
        instant = self._follower.resume_at
        return None if instant is None else instant.isoformat()

    def wait(self, timeout_seconds: float) -> list[dict[str, Any]]:
        """Changes since the last call, oldest first, each as the `extra` of an asset event has it. Raises StoreUnavailable.

        Where nobody followed before, the first call gives `resume_at` and no change: keep it before the next call.
        """
        return [
            asset_events.document(one)
            for one in self._follower.wait(timeout_seconds)
            if (not self._topics or one.topic in self._topics)
            and (not self._kinds or one.kind in self._kinds)
        ]

    def interrupt(self) -> None:
        """Make the present or the next `wait` return at once."""
        self._follower.interrupt()
