"""A span of time as a person asks for it: instants, or how long ago."""

from __future__ import annotations

from datetime import UTC, datetime

from controller.domain.durations import is_duration, parse_duration
from controller.domain.errors import InvalidInput
from controller.domain.shown import shown
from controller.domain.whole_numbers import from_digits

EVER = (datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC))


def instant(text: str, now: datetime) -> datetime:
    """An instant in ISO 8601 (without a time zone it is UTC), or how long before `now`: 90min, 12h, 7d, 2w."""
    try:
        if is_duration(text):
            return now - parse_duration(text)
        found = datetime.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        raise InvalidInput(
            f"{shown(text)} is neither an instant (2026-11-21T03:00:00Z) nor a time ago (90min, 12h, 7d, 2w)"
        ) from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def span(
    since: str | None,
    until: str | None,
    *,
    now: datetime | None = None,
    unless_given: tuple[datetime, datetime] = EVER,
) -> tuple[datetime, datetime]:
    """From when (inclusive) until when (exclusive). Raises InvalidInput where nothing lies between."""
    now = now or datetime.now(UTC)
    begins = unless_given[0] if since is None else instant(since, now)
    ends = unless_given[1] if until is None else instant(until, now)
    demand_span(begins, ends)
    return begins, ends


def demand_span(begins: datetime, ends: datetime) -> None:
    """Raise InvalidInput unless `begins` is earlier than `ends`."""
    if begins >= ends:
        raise InvalidInput(
            f"nothing lies between {begins.isoformat()} and {ends.isoformat()}: give the earlier instant as from"
        )


def moment(text: str) -> int | datetime:
    """An epoch, or an instant in ISO 8601; without a time zone it is UTC."""
    if (epoch := from_digits(text)) is not None:
        return epoch
    try:
        instant = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(
            f"{shown(text)} is neither an epoch (7) nor an instant (2026-11-21T03:00:00Z)"
        ) from error
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)
