"""A round of the feeds in which a feed fails."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import Mock

import pytest

from controller.domain.errors import StoreUnavailable
from controller.postgres.notification import Notification
from controller.services.watches.feeds import Feeds
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
