"""Decides if a log may be deleted: the journal must have created the log, and no message in it may be
unread.
"""

from __future__ import annotations

from controller.dataplane.base import LogReport, LogState
from controller.domain.log_origin import Ownership

FOREIGN = "another journal, or another program, created this log"


def reason_to_keep(report: LogReport, ownership: Ownership) -> str | None:
    """Return the reason for which the log must not be deleted: this journal did not create the log, or the
    log has held a message and a subscription has unread messages, the log is open, or no subscription shows
    that the messages were read. None if the deletion loses nothing, as for an own log that never held a
    message.

    A log without a subscription does not show that its messages were read, unless its segment was once part
    of a layout. A MISSING log has no origin, so it usually counts as created by another program.
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
