"""Reads time spans from text: times, or ages."""

from __future__ import annotations

from datetime import UTC, datetime

from controller.domain.durations import is_duration, parse_duration
from controller.domain.errors import InvalidInput
from controller.domain.formatting import shown
from controller.domain.whole_numbers import from_digits

EVER = (datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC))


def instant(text: str, now: datetime) -> datetime:
    """Return the time of a text in ISO 8601 (UTC without a time zone), or of an age before `now`: 90min, 12h, 7d,
    2w.

    Raises InvalidInput for other texts, and for an age that reaches before the year 1.
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
    default: tuple[datetime, datetime] = EVER,
) -> tuple[datetime, datetime]:
    """Return the start (inclusive) and the end (exclusive) of a span, each from a text with a time or an age. A missing
    text is replaced by the start or the end of `default` (any time); `now` is the time from which ages count (None: the
    present). Raises InvalidInput for a text that is neither a time nor an age, and for an empty span.
    """
    now = now or datetime.now(UTC)
    begins = default[0] if since is None else instant(since, now)
    ends = default[1] if until is None else instant(until, now)
    demand_span(begins, ends)
    return begins, ends


def demand_span(begins: datetime, ends: datetime) -> None:
    """Raise InvalidInput unless `begins` is earlier than `ends`."""
    if begins >= ends:
        raise InvalidInput(
            f"the span from {begins.isoformat()} to {ends.isoformat()} is empty; give the earlier time as from"
        )


def moment(text: str) -> int | datetime:
    """Return the epoch of a text that is a whole number, otherwise the time of a text in ISO 8601 (UTC without a
    time zone). Raises InvalidInput for other texts.
    """
    if (epoch := from_digits(text)) is not None:
        return epoch
    try:
        instant = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(
            f"{shown(text)} is neither an epoch (7) nor an instant (2026-11-21T03:00:00Z)"
        ) from error
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)
