"""What a verdict means outside the domain: whether it says anything new."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2s
from json import dumps

from controller.domain.decision import Decision, Evaluation, Lane, Refusal, RefusalReason, lane_of, sealed_by


def digest(refusals: Sequence[Refusal], lanes: Collection[Lane], previous: str | None) -> str | None:
    """One word for each lane that refuses something. The words of lanes that were not asked stay as they were. None if
    no lane refuses.

    Measured values are left out: the same refusal at another rate is not a new one. What is weighed anew at each tick
    counts once, whichever segments it names.
    """
    told = {lane: [_without_value(r) for r in refusals if r.lane in (lane, None)] for lane in lanes}
    return _words(told, previous)


def shadow_digest(evaluation: Evaluation, lanes: Collection[Lane], previous: str | None) -> str | None:
    """The same of a verdict that nobody carries out, so that its acts come again and again: they count too.

    Figures, cuts and instants are left out, since those follow the load: what counts is what would be done to which
    segments, and what is refused for which reason.
    """
    told = {
        lane: [_without_figures(r) for r in evaluation.refusals if r.lane in (lane, None)]
        + [_without_cuts(act) for act in evaluation.decisions if lane_of(act) is lane]
        for lane in lanes
    }
    return _words(told, previous)


def _words(told: Mapping[Lane, Sequence[dict[str, object]]], previous: str | None) -> str | None:
    words = dict(word.split("=") for word in (previous or "").split())
    for lane, documents in told.items():
        texts = sorted({dumps(one, sort_keys=True) for one in documents})
        if texts:
            words[lane.value] = blake2s("\n".join(texts).encode(), digest_size=8).hexdigest()
        else:
            words.pop(lane.value, None)
    return " ".join(f"{lane}={words[lane]}" for lane in sorted(words)) or None


_WEIGHED = frozenset({RefusalReason.SAVING_BELOW_PRICE, RefusalReason.TOLERATED_OVERLOAD})


def _without_value(refusal: Refusal) -> dict[str, object]:
    if refusal.reason in _WEIGHED:
        return {"reason": refusal.reason.value}
    return {name: held for name, held in refusal.to_document().items() if name != "value"}


_FIGURES = ("value", "needed", "not_before")


def _without_figures(refusal: Refusal) -> dict[str, object]:
    return {name: held for name, held in _without_value(refusal).items() if name not in _FIGURES}


def _without_cuts(act: Decision) -> dict[str, object]:
    return {"act": type(act).__name__, "segments": [*sealed_by(act)], "reason": act.reason}
