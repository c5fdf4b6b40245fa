"""Follows the layout changes of all topics for somebody elsewhere, who remembers how far it got.

The poster tells what happens while it listens. A follower also tells what happened while nobody did: when its connection
begins anew it reads on from where it was. Each change is told at least once, those of the last `OVERLAP` perhaps again
after a restart; topic and epoch say which change it is.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from controller.postgres.listener import Listener
from controller.postgres.notification import Notification
from controller.store.postgres.clock import database_now
from controller.store.postgres.engine import Store
from controller.store.topics import layout_changes
from controller.store.topics.layout_changes import LayoutEvent, Place

OVERLAP = timedelta(minutes=1)
"""Read again when a connection begins: a change is stamped before it is committed, and what was told may have been lost."""
PAGE = 500
"""Changes read at once of those that were missed."""


class LayoutFollower:
    """For one thread; `interrupt` may come from any."""

    def __init__(self, store: Store, listener: Listener, *, since: datetime | None = None) -> None:
        """`listener` listens on `CHANNELS` and is used by this follower alone. `since` is what `resume_at` was when somebody
        followed before; None: from the first `wait` on.
        """
        self._store, self._listener = store, listener
        self._floor = self._newest = since
        self._missed: Place | None = None
        """From where changes are to be read that nobody was told of; None while notifications name them all."""
        self._told: dict[tuple[int, int], datetime] = {}

    @property
    def resume_at(self) -> datetime | None:
        """The instant to go on from elsewhere; None before the first `wait`."""
        if self._floor is None or self._newest is None:
            return None
        unread = self._newest if self._missed is None else min(self._newest, self._missed[0])
        return max(self._floor, unread - OVERLAP)

    def wait(self, timeout_seconds: float) -> list[LayoutEvent]:
        """Changes that were not told before, oldest first; none after the time-out or an interrupt. Raises StoreUnavailable.

        Where nobody followed before, the first call does nothing but give `resume_at`. Whoever keeps it before the next call,
        which is the first to listen, misses nothing from that instant on, whatever happens to him.
        """
        if self.resume_at is None:
            self._begin()
            return []
        heard = self._listener.wait(0.0 if self._missed else timeout_seconds)
        if any(one.is_resync for one in heard):
            self._missed = self._from_where_it_was()
        named = _named(heard)
        if not (named or self._missed):
            return []
        place = self._missed
        self._missed = self._missed or self._from_where_it_was()  # should the database go away now
        with self._store.transaction() as tx:
            page = layout_changes.since(tx, place, PAGE) if place else []
            found = page + layout_changes.events(tx, named)
        last = page[-1] if len(page) == PAGE else None
        self._missed = (last.committed_at, last.topic_id, last.epoch) if last else None
        return self._fresh(found)

    def interrupt(self) -> None:
        """Make the present or the next `wait` return."""
        self._listener.interrupt()

    def close(self) -> None:
        """Give back the connection."""
        self._listener.close()

    def _begin(self) -> datetime:
        with self._store.transaction() as tx:
            self._floor = self._newest = now = database_now(tx)
        return now

    def _from_where_it_was(self) -> Place:
        return self.resume_at or self._begin(), 0, 0

    def _fresh(self, found: list[LayoutEvent]) -> list[LayoutEvent]:
        fresh = {
            (one.topic_id, one.epoch): one for one in found if (one.topic_id, one.epoch) not in self._told
        }
        self._told |= {key: one.committed_at for key, one in fresh.items()}
        if fresh:
            instants = [one.committed_at for one in fresh.values()]
            # One may be stamped before the beginning and committed after it.
            self._floor = min(instants) if self._floor is None else min(self._floor, *instants)
            self._newest = max(instants) if self._newest is None else max(self._newest, *instants)
            self._told = {key: at for key, at in self._told.items() if at >= self._newest - 2 * OVERLAP}
        return sorted(fresh.values(), key=lambda one: (one.committed_at, one.topic_id, one.epoch))


def _named(heard: list[Notification]) -> list[tuple[int, int]]:
    """The changes that notifications name, by topic id and epoch."""
    named = (one.ids for one in heard)
    return [(ids[0], ids[1]) for ids in named if len(ids) == 2]
