"""Decides if a log may be deleted: the journal must have created the log, and no message in it may be
unread.
"""

from __future__ import annotations

from controller.dataplane.base import LogReport, LogState
from controller.domain.log_origin import Ownership

FOREIGN = "another journal, or another program, created this log"


def reason_to_keep(report: LogReport, ownership: Ownership) -> str | None:
    """Return the reason why the log must not be deleted, as a clause for messages; None if the log may be deleted
    without the loss of an unread message. `ownership` is the journal's record of logs with this name.

    The first reason that applies is returned. The log must be kept if this journal neither created nor adopted it. An
    unused log (`LogReport.is_unused`) may otherwise be deleted. Any other log must be kept if a subscription has
    unread messages (the reason names the first such subscription by name), if the log is open, or if the log has no
    subscription and its segment was never part of a layout. A MISSING log has no origin, so it usually counts as
    created by another program.
    """
    if not ownership.created(report.origin):
        return FOREIGN
    if report.is_unused:
        return None
    unread = {name: cursor.unread for name, cursor in sorted(report.cursors.items()) if cursor.unread > 0}
    if unread:
        name, count = next(iter(unread.items()))
        return f"subscription {name} has {count} unread message(s)"
    if report.state is LogState.OPEN:
        return "the log holds messages and still accepts appends"
    if not report.cursors and not ownership.was_active:
        return "the log holds messages, and no subscription shows that they were read"
    return None
