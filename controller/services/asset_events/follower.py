"""Follows the layout changes of all topics for a process elsewhere, which stores how far it got.

The poster reports changes only while it listens. A follower also reports the changes that were made while no
process listened: when its connection is reopened, it continues where it stopped. Each change is returned at
least once. Changes of the last `OVERLAP` may be returned again after a restart, and earlier changes after the clock
of the database went back; topic and epoch identify a change.
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
"""Span that is read again when a connection begins. A change is stamped before it is committed, and changes
that were already returned may have been lost.
"""
PAGE = 500
"""Number of missed changes read at once."""


class LayoutFollower:
    """Follows the layout changes of all topics; `wait` returns the changes that were not returned before. Not
    thread-safe.
    """

    def __init__(self, store: Store, listener: Listener, *, since: datetime | None = None) -> None:
        """`listener` listens on `asset_events.CHANNELS` and is used by this follower alone; `interrupt` of the listener
        makes `wait` return, and the caller closes the listener. `since` is the
        `resume_at` of an earlier follower: `wait` returns the changes since that instant. With None, the first `wait`
        sets the instant from which changes are returned.
        """
        self._store, self._listener = store, listener
        self._begins_at = self._newest = since
        self._missed: Place | None = None
        """Position from which changes without notifications must be read; None while notifications name all
        changes.
        """
        self._clock_may_differ = False
        """True from a new connection until the next read: it may be to a server whose clock is behind."""
        self._returned: dict[tuple[int, int], datetime] = {}

    @property
    def resume_at(self) -> datetime | None:
        """The instant that a later follower can get as `since`, so that it misses no change that this follower has
        not returned. The later follower may return changes of the last `OVERLAP` again. None if this follower got no
        `since` and `wait` was not called yet. The instant advances with the changes that `wait` returns. The instant
        may also move back: while missed changes are still to be read, and when `wait` returns a change that was
        stamped before the beginning and committed later.
        """
        if self._begins_at is None or self._newest is None:
            return None
        unread = self._newest if self._missed is None else min(self._newest, self._missed[0])
        return max(self._begins_at, unread - OVERLAP)

    def wait(self, timeout_seconds: float) -> list[LayoutEvent]:
        """Wait up to `timeout_seconds` for notifications of layout changes, and return the changes that this follower
        has not returned yet, oldest first. The list is empty after the time-out, after an interrupt, and if all
        changes were returned before. Whenever the listener has connected, the changes since `resume_at` are read, in
        pages of `PAGE`, one page in each call; a call that continues with the next page does not wait.

        If the follower has no `since`, the first call only sets `resume_at` to the present time of the database and
        returns an empty list at once. The second call begins to listen. A caller that stores `resume_at` between
        these two calls misses no change from that instant on, even if the caller dies.

        Raises StoreUnavailable and the other errors of `Store.transaction`. After an error, the next call reads the
        changes that were not returned.
        """
        resume_at = self.resume_at
        if resume_at is None:
            self._begins_at = self._newest = self._store.in_transaction(database_now)
            return []
        begin: Place = resume_at, 0, 0  # All changes that may not have been returned can be read from here.
        notifications = self._listener.wait(0.0 if self._missed else timeout_seconds)
        if any(notification.is_resync for notification in notifications):
            self._missed, self._clock_may_differ = begin, True
        named_changes = _named(notifications)
        if not (named_changes or self._missed):
            return []
        position = self._missed
        # The position is set first, in case the next statement loses the database.
        self._missed = self._missed or begin
        with self._store.transaction() as tx:
            if self._clock_may_differ:
                position = self._missed = self._begin_by_clock(self._missed[0], database_now(tx))
            page = layout_changes.since(tx, position, PAGE) if position else []
            changes = page + layout_changes.events(tx, named_changes)
        last = page[-1] if len(page) == PAGE else None
        self._missed = (last.committed_at, last.topic_id, last.epoch) if last else None
        self._clock_may_differ = False
        return self._unreturned(changes)

    def _begin_by_clock(self, begin: datetime, now: datetime) -> Place:
        """Return the position from which changes must be read after a new connection: `begin`, or up to `OVERLAP`
        before `now`, the present time of the database, if the clock of the database went back behind `begin`. Changes
        since then have earlier times than the changes before. `resume_at` then moves back as well.
        """
        if self._begins_at is None or self._begins_at > now:
            self._begins_at = now - OVERLAP
        self._newest = min(self._newest or now, now)
        return min(begin, max(self._begins_at, now - OVERLAP)), 0, 0

    def _unreturned(self, changes: list[LayoutEvent]) -> list[LayoutEvent]:
        """Return those of `changes` that this follower has not returned before, oldest first, each once. Remember
        these changes as returned, and forget changes that are older than the newest change by more than twice the
        `OVERLAP`. `resume_at` moves forward with the newest change. A change that was stamped before the beginning
        and committed later moves the beginning, and so may move `resume_at` back.
        """
        new_changes = {
            (change.topic_id, change.epoch): change
            for change in changes
            if (change.topic_id, change.epoch) not in self._returned
        }
        self._returned |= {key: change.committed_at for key, change in new_changes.items()}
        if new_changes:
            instants = [change.committed_at for change in new_changes.values()]
            # A change may be stamped before the beginning and committed after it.
            self._begins_at = min(self._begins_at or instants[0], *instants)
            self._newest = max(self._newest or instants[0], *instants)
            self._returned = {
                key: committed_at
                for key, committed_at in self._returned.items()
                if committed_at >= self._newest - 2 * OVERLAP
            }
        return sorted(
            new_changes.values(), key=lambda change: (change.committed_at, change.topic_id, change.epoch)
        )


def _named(notifications: list[Notification]) -> list[tuple[int, int]]:
    """Return topic id and epoch of each layout change that a notification names. Notifications that do not carry
    exactly two ids, such as a resync, are ignored.
    """
    id_lists = (notification.ids for notification in notifications)
    return [(ids[0], ids[1]) for ids in id_lists if len(ids) == 2]
