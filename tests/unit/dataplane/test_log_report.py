"""The conclusions that a deletion draws from the report on a log."""

from __future__ import annotations

import pytest

from controller.dataplane.base import MISSING_LOG, CursorReport, LogReport, LogState

READ, UNREAD = CursorReport(0), CursorReport(1, is_queue=True)


@pytest.mark.parametrize(
    ("state", "has_carried", "cursors", "is_unused", "is_read_to_end"),
    [
        (LogState.TERMINATED, True, {"a": READ, "b": READ}, False, True),
        (LogState.TERMINATED, True, {"a": READ, "b": UNREAD}, False, False),
        (LogState.TERMINATED, True, {}, False, True),
        (LogState.TERMINATED, False, {"a": READ}, True, True),
        (LogState.OPEN, True, {"a": READ}, False, False),
        (LogState.OPEN, False, {}, True, False),
        (LogState.TERMINATED, True, {"a": CursorReport(-1)}, False, False),
    ],
)
def test_only_a_closed_log_that_every_subscription_has_is_read_to_its_end(
    state: LogState,
    has_carried: bool,
    cursors: dict[str, CursorReport],
    is_unused: bool,
    is_read_to_end: bool,
) -> None:
    report = LogReport(state, None, has_carried, cursors)

    assert (report.is_unused, report.is_read_to_end) == (is_unused, is_read_to_end)


def test_a_missing_log_is_neither_unused_nor_read() -> None:
    assert (MISSING_LOG.is_unused, MISSING_LOG.is_read_to_end) == (False, False)
