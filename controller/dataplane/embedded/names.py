"""Checks the names of logs and subscriptions, names logs of dead letters, and creates the errors for missing logs and
subscriptions.
"""

from __future__ import annotations

from controller.domain.errors import InvalidInput, SegmentNotFound, SubscriptionNotFound
from controller.domain.formatting import shown
from controller.domain.utf8 import utf8

ARRIVALS = "embedded_arrivals"
"""Notification channel; the payload is the log's id. Sent for messages, a fence, and a moved or released
cursor.
"""
MAX_NAME_BYTES = 1000
"""Longest name in bytes. Names are index keys, and an index row of PostgreSQL holds 2.7 kB."""


def checked(kind: str, name: str) -> str:
    """Return the name itself. Raises InvalidInput if it is empty, longer than `MAX_NAME_BYTES` or contains
    characters that PostgreSQL cannot store: NUL, or half of a surrogate pair. `kind` says in the message what
    the name is of.
    """
    if not name or "\0" in name or len(utf8(name, f"{kind} name")) > MAX_NAME_BYTES:
        raise InvalidInput(
            f"{kind} name {shown(name)} ({len(name)} characters): give 1 to {MAX_NAME_BYTES} bytes without NUL"
        )
    return name


def dead_letter_topic(topic: str, subscription: str) -> str:
    """Return the name of the log that stores the dead letters of the subscription of `topic://t/n/x`."""
    return f"dead-letters://{topic.removeprefix('topic://')}/{subscription}"


def no_log(backing_topic: str) -> SegmentNotFound:
    """Return the error for a log that does not exist."""
    return SegmentNotFound(
        f"no log {backing_topic}; it was deleted or never created: look up the layout again"
    )


def no_cursor(backing_topic: str, subscription: str) -> SubscriptionNotFound:
    """Return the error for a log without a cursor of the subscription."""
    return SubscriptionNotFound(
        f"subscription {subscription!r} has no cursor on {backing_topic}; create the subscription first"
    )
