"""Words a refusal as one sentence: which value it has, which value it needs, and how far it is from there.

Only this module words refusals. Commands, pages and reports print the sentence from here, for current refusals as
well as for those in the decision log.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from controller.domain.decision import RefusalReason
from controller.domain.formatting import duration

INSTANTS = ("_at", "_since")
"""Endings of metrics whose value is an instant, in milliseconds since the Unix epoch."""

_RELATIONS: Mapping[str, str] = {
    RefusalReason.AT_MAX_SEGMENTS: "below",
    RefusalReason.AT_MIN_SEGMENTS: "above",
    RefusalReason.AT_MAX_BUCKETS: "at least",
    RefusalReason.ENOUGH_BUCKETS: "below",
    RefusalReason.MERGE_DEPTH: "below",
    RefusalReason.WIDTH_ONE: "at least",
    RefusalReason.WOULD_IDLE_CONSUMER: "at least",
    RefusalReason.WOULD_SPLIT_AGAIN: "at most",
    RefusalReason.NO_LOAD_RECORD: "at most",
    RefusalReason.NOT_COLD: "below",
    RefusalReason.TOLERATED_OVERLOAD: "at least",
    RefusalReason.SAVING_BELOW_PRICE: "above",
    RefusalReason.UNSPLITTABLE: "at most",
    RefusalReason.RECONNECTION_BUDGET: "at most",
}
"""Relation in which the value must be to the value needed, by reason."""


def how_far(refusal: Mapping[str, Any], now: int | None = None) -> str:
    """Return the figures of a refusal in words: the metric, the value, the value needed, the distance between the two
    values, and the remaining time. A figure that the refusal does not have is left out; without any figure the text
    is empty. For a refusal because of a running operation or an awaited approval, the text names only the operation
    or the approval. If the metric is an instant (`INSTANTS`) and has no value, the text calls the metric unknown.

    `refusal` has the fields of `Refusal.to_document`. `reason` is required; `metric`, `value`, `needed` and
    `not_before` may be absent or None. `now` (milliseconds since the Unix epoch) is the time from which the remaining
    time is counted; without `now` the text has no remaining time.
    """
    metric, value, needed = (refusal.get(name) for name in ("metric", "value", "needed"))
    reason = str(refusal["reason"])
    if reason == RefusalReason.IN_FLIGHT and value is not None:
        return f"busy in operation {_number(value)}"
    if reason == RefusalReason.AWAITING_APPROVAL:
        return f"this {metric} of {_number(value)} segments awaits approval"
    if str(metric).endswith(INSTANTS):
        return _instant_sentence(reason, str(metric), value, needed, now)
    figures = " ".join(filter(None, (metric, _number(value))))
    if needed is not None:
        figures += f", needs {_bound(reason, metric, value, needed)}"
    remaining_time = _remaining_time(refusal.get("not_before"), now)
    return f"{figures}; {remaining_time}" if figures and remaining_time else figures or remaining_time


def _bound(reason: str, metric: str | None, value: Any, needed: Any) -> str:
    """Return as text the relation and the value needed, then in parentheses by how much the current value is too high
    or too low, and the ratio of the current value to the value needed if the value needed is above 0, as in `below 5 (2
    too high, 1.40 times that)`. A reason without a relation gives the value needed alone.

    If both are equal, the parentheses say "is at it" after "below" and "above". There are no parentheses after another
    relation to an equal value, or if one of the two is not a number.
    """
    relation = _relation(reason, metric)
    bound = f"{relation} {_number(needed)}".strip()
    if not _is_figure(value) or not _is_figure(needed):
        return bound
    if value == needed:
        return f"{bound} (is at it)" if relation in ("below", "above") else bound
    ratio = f", {value / needed:.2f} times that" if needed > 0 else ""
    return f"{bound} ({_number(abs(value - needed))} too {'high' if value > needed else 'low'}{ratio})"


def _relation(reason: str, metric: str | None) -> str:
    """Return the relation in which the value must be to the value needed, such as `below`; empty if the reason has
    none. A refusal with LOWER_SCORE needs a warmth below that of the chosen pair, or a score above that of the chosen
    segment.
    """
    if reason == RefusalReason.LOWER_SCORE:
        return "below" if metric == "warmth" else "above"
    return _RELATIONS.get(reason, "")


def _instant_sentence(reason: str, metric: str, began: Any, ends: Any, now: int | None) -> str:
    """Return the sentence of a refusal whose `metric` is an instant. The refusal lasts from `began` to `ends`; these
    two and `now` are in milliseconds since the Unix epoch.

    The sentence says how much of the period remains; for a stale load record (`reason` STALE_LOAD) it says for how
    long the record has been too old. Without `now` the sentence has neither. If `began` is not a number, the sentence
    only says that the metric is unknown. If `ends` is not a number, the sentence names `began` only.
    """
    if not _is_figure(began):
        return f"{metric} is unknown"
    sentence = f"{metric} {_instant(began)}"
    if not _is_figure(ends):
        return sentence
    if reason == RefusalReason.STALE_LOAD:
        overdue = "" if now is None else f" ({duration((now - ends) / 1000)} too old)"
        return f"{sentence}, counted until {_instant(ends)}{overdue}"
    remaining_time = _remaining_time(ends, now)
    remaining = f" ({remaining_time} of {duration((ends - began) / 1000)})" if remaining_time else ""
    return f"{sentence}, needs {_instant(ends)}{remaining}"


def _remaining_time(ends: Any, now: int | None) -> str:
    """Return the time from `now` to `ends` (milliseconds since the Unix epoch) as text, such as `5 min left`, and `0 s
    left` after `ends`. Empty without `now` or if `ends` is not a number.
    """
    if now is None or not _is_figure(ends):
        return ""
    return f"{duration(max(0, ends - now) / 1000)} left"


def _is_figure(value: Any) -> bool:
    """Return True for a number. A number that JSON cannot write is stored as text and is no figure."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: Any) -> str:
    """Return the number as text with thousands separators and without trailing zeros: at most one decimal if its
    absolute value is 10 or more, two from 1 on, otherwise three; four significant digits from 1e15 on. None gives an
    empty text, any other value its text.
    """
    if value is None:
        return ""
    if not _is_figure(value):
        return str(value)
    if abs(value) >= 1e15:
        return f"{value:.4g}"
    digits = 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _instant(milliseconds: float) -> str:
    """Return the instant as text: date and time in UTC, or the number itself if it is beyond the calendar."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, ArithmeticError, OSError):
        return str(milliseconds)
