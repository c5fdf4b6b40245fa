"""How far something that was not done was from being done: one sentence from a refusal's figures.

The one place that words them. What prints a refusal (commands, pages, reports) takes the sentence from here, whether
it was decided now or stands in the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from controller.domain.decision import RefusalReason
from controller.domain.shown import duration

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
"""How the value must lie to the one needed, by reason."""


def how_far(refusal: Mapping[str, Any], now: int | None = None) -> str:
    """The sentence; empty where a reason has no figures.

    `refusal` is as `Refusal.to_document` has it: `reason`, `metric`, `value`, `needed`, `not_before`, each but the first
    may be absent or None. `now` (milliseconds since the Unix epoch) is what time is left from; without it only the
    instants are told.
    """
    metric, value, needed = (refusal.get(name) for name in ("metric", "value", "needed"))
    reason = str(refusal["reason"])
    if reason == RefusalReason.IN_FLIGHT and value is not None:
        return f"operation {_number(value)} holds it"
    if reason == RefusalReason.AWAITING_APPROVAL:
        return f"a person has to approve this {metric} of {_number(value)} segments"
    if str(metric).endswith(INSTANTS):
        return _of_instants(reason, str(metric), value, needed, now)
    said = " ".join(filter(None, (metric, _number(value))))
    if needed is not None:
        said += f", needs {_bound(reason, metric, value, needed)}"
    left = _left(refusal.get("not_before"), now)
    return f"{said}; {left}" if said and left else said or left


def _bound(reason: str, metric: str | None, value: Any, needed: Any) -> str:
    """The value needed, how the found one must lie to it, and how far from there it is."""
    relation = _relation(reason, metric)
    bound = f"{relation} {_number(needed)}".strip()
    if not _is_figure(value) or not _is_figure(needed):
        return bound
    if value == needed:
        return f"{bound} (is at it)" if relation in ("below", "above") else bound
    ratio = f", {value / needed:.2f} times that" if needed > 0 else ""
    return f"{bound} ({_number(abs(value - needed))} too {'high' if value > needed else 'low'}{ratio})"


def _relation(reason: str, metric: str | None) -> str:
    """Of scores the hotter one wins, and of warmths the colder pair."""
    if reason == RefusalReason.LOWER_SCORE:
        return "below" if metric == "warmth" else "above"
    return _RELATIONS.get(reason, "")


def _of_instants(reason: str, metric: str, began: Any, ends: Any, now: int | None) -> str:
    if not _is_figure(began):
        return f"{metric} is not known"
    said = f"{metric} {_instant(began)}"
    if not _is_figure(ends):
        return said
    if reason == RefusalReason.STALE_LOAD:
        late = "" if now is None else f" ({duration((now - ends) / 1000)} too old)"
        return f"{said}, counted until {_instant(ends)}{late}"
    left = _left(ends, now)
    of = f" ({left} of {duration((ends - began) / 1000)})" if left else ""
    return f"{said}, needs {_instant(ends)}{of}"


def _left(ends: Any, now: int | None) -> str:
    if now is None or not _is_figure(ends):
        return ""
    return f"{duration(max(0, ends - now) / 1000)} left"


def _is_figure(value: Any) -> bool:
    """Whether it is a number; what no JSON has a number for is written as text."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: Any) -> str:
    """To three digits or one decimal, whichever is more; integers whole."""
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
    """In UTC; what lies beyond the calendar stays a number."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, ArithmeticError, OSError):
        return str(milliseconds)
