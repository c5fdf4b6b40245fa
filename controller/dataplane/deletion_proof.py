"""Decides whether a log may be deleted: the journal created the log, and no message in it is unread."""

from __future__ import annotations

from controller.dataplane.base import LogReport, LogState
from controller.domain.log_origin import Ownership

FOREIGN = "another journal, or another program, created this log"


def reason_to_keep(report: LogReport, ownership: Ownership) -> str | None:
    """Return the reason for which the log must not be deleted; None if the deletion loses nothing.

    Without a subscription the messages of a segment that was part of a layout have no reader.
    """
    if not ownership.created(report.origin):
        return FOREIGN
    if report.is_unused:
        return None
    unread = {name: one.unread for name, one in sorted(report.cursors.items()) if one.unread > 0}
    if unread:
        name, count = next(iter(unread.items()))
        return f"subscription {name} has {count} unread message(s)"
    if report.state is LogState.OPEN:
        return "the log holds messages and still accepts appends"
    if not report.cursors and not ownership.was_active:
        return "the log holds messages, and no subscription shows that they were read"
    return None
