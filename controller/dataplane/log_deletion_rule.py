"""Decides if a log may be deleted: the journal must have created the log, and no message in it may be
unread.
"""

from __future__ import annotations

from controller.dataplane.base import LogReport, LogState
from controller.domain.log_origin import Ownership

FOREIGN = "another journal, or another program, created this log"


def reason_to_keep(report: LogReport, ownership: Ownership) -> str | None:
    """Return the reason for which the log must not be deleted, a clause for messages; None if the deletion
    loses nothing. `ownership` is the journal's record of the log's name.

    The first reason that applies is returned: this journal neither created nor adopted the log; a
    subscription has unread messages (the first such subscription by name is named); the log is open; the log
    has no subscription, and its segment was never part of a layout. For an unused log (`LogReport.is_unused`)
    only the first reason is checked. A MISSING log has no origin, so it usually counts as created by another
    program.
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
