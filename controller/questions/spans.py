"""Reads time spans from text: times, or ages."""

from __future__ import annotations

from datetime import UTC, datetime

from controller.domain.durations import is_duration, parse_duration
from controller.domain.errors import InvalidInput
from controller.domain.formatting import shown
from controller.domain.whole_numbers import from_digits

EVER = (datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC))


def instant(text: str, now: datetime) -> datetime:
    """Return the time of a text in ISO 8601 (UTC without a time zone), or of an age before `now`: 90min, 12h, 7d, 2w.

    Raises InvalidInput.
    """
    try:
        if is_duration(text):
            return now - parse_duration(text)
        parsed = datetime.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        raise InvalidInput(
            f"{shown(text)} is neither an instant (2026-11-21T03:00:00Z) nor a time ago (90min, 12h, 7d, 2w)"
        ) from error
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def span(
    since: str | None,
    until: str | None,
    *,
    now: datetime | None = None,
    unless_given: tuple[datetime, datetime] = EVER,
) -> tuple[datetime, datetime]:
    """Return the start (inclusive) and the end (exclusive). Raises InvalidInput if the span is empty."""
    now = now or datetime.now(UTC)
    begins = unless_given[0] if since is None else instant(since, now)
    ends = unless_given[1] if until is None else instant(until, now)
    demand_span(begins, ends)
    return begins, ends


def demand_span(begins: datetime, ends: datetime) -> None:
    """Raise InvalidInput unless `begins` is earlier than `ends`."""
    if begins >= ends:
        raise InvalidInput(
            f"the span from {begins.isoformat()} to {ends.isoformat()} is empty; give the earlier time as from"
        )


def moment(text: str) -> int | datetime:
    """Return the epoch of a number, or the time of a text in ISO 8601 (UTC without a time zone). Raises InvalidInput."""
    if (epoch := from_digits(text)) is not None:
        return epoch
    try:
        instant = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(
            f"{shown(text)} is neither an epoch (7) nor an instant (2026-11-21T03:00:00Z)"
        ) from error
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)
