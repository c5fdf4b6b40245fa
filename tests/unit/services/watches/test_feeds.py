"""A round of the feeds in which a feed fails, and watchers that go while their subject is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from unittest.mock import Mock

import pytest

from controller.domain.errors import StoreUnavailable
from controller.postgres.notification import Notification
from controller.services.watches.feeds import Feed, Feeds
from tests.support.manual_clock import ManualClock


class CountingFeed:
    """Counts its turns, and fails in each if it has an error."""

    due_in_seconds = 0.0

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self.turns = 0

    def notice(self, notifications: Sequence[Notification], *, is_sweep: bool) -> None:
        """Nothing is noted."""

    def notify(self) -> None:
        """As `Feed.notify`."""
        self.turns += 1
        if self._error is not None:
            raise self._error

    def end_all(self, reason: str) -> None:
        """There are no watches."""


@pytest.mark.parametrize("error", [StoreUnavailable("injected", 0.0), RuntimeError("injected")], ids=type)
def test_a_feed_that_fails_in_every_round_takes_no_turn_from_the_others(error: Exception) -> None:
    first, failing, last = CountingFeed(), CountingFeed(error), CountingFeed()
    silent = Mock(**{"wait.return_value": []})  # In place of `Listener`: nothing is notified.
    feeds = Feeds(silent, [first, failing, last], clock=ManualClock())

    with pytest.raises(type(error), match="injected"):
        feeds._round()

    assert (first.turns, failing.turns, last.turns) == (1, 1, 1)


class DepartingFeed(Feed[str, str]):
    """Its last watcher goes while the subject is read, and the reading then has this result."""

    subject_field = "subject"

    def __init__(self, result: str | Exception) -> None:
        super().__init__(lambda: None, ManualClock())
        self.watcher, self._result = Mock(), result
        self.watch("a", self.watcher)

    def look(self, subject: str) -> str:
        """As `Feed.look`."""
        self.forget(subject, self.watcher)
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    def _concerned(self, notifications: Sequence[Notification]) -> Callable[[str], bool]:
        return lambda subject: True

    def keeps_anything(self) -> bool:
        """Return True if the feed still knows anything about a subject."""
        return any((self._watchers, self._new, self._due, self._pushed))


def test_a_watcher_that_goes_while_its_subject_is_read_is_told_nothing_and_leaves_nothing() -> None:
    feed = DepartingFeed("value")

    feed.notify()

    feed.watcher.push.assert_not_called()
    assert not feed.keeps_anything()


def test_a_subject_whose_watcher_goes_while_it_cannot_be_read_is_not_read_again() -> None:
    feed = DepartingFeed(StoreUnavailable("injected", 0.0))

    with pytest.raises(StoreUnavailable):
        feed.notify()

    assert not feed.keeps_anything()
    assert feed.due_in_seconds == math.inf
