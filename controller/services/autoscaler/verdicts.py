"""What a verdict means outside the domain: its lane, and whether it says anything new."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from hashlib import blake2s
from json import dumps

from controller.domain.decision import Decision, Lane, Merge, Rebucket, Recut, Refusal, RefusalReason
from controller.domain.profiles.adaptive import COLD


def digest(refusals: Sequence[Refusal], lanes: Collection[Lane], previous: str | None) -> str | None:
    """One word for each lane that refuses something. The words of lanes that were not asked stay as they were. None if
    no lane refuses.

    Measured values are left out: the same refusal at another rate is not a new one. What is weighed anew at each tick
    counts once, whichever segments it names.
    """
    words = dict(word.split("=") for word in (previous or "").split())
    for lane in lanes:
        told = sorted({dumps(_without_value(r), sort_keys=True) for r in refusals if r.lane in (lane, None)})
        if told:
            words[lane.value] = blake2s("\n".join(told).encode(), digest_size=8).hexdigest()
        else:
            words.pop(lane.value, None)
    return " ".join(f"{lane}={words[lane]}" for lane in sorted(words)) or None


_WEIGHED = frozenset({RefusalReason.SAVING_BELOW_PRICE, RefusalReason.TOLERATED_OVERLOAD})


def _without_value(refusal: Refusal) -> dict[str, object]:
    if refusal.reason in _WEIGHED:
        return {"reason": refusal.reason.value}
    return {name: held for name, held in refusal.to_document().items() if name != "value"}


def lane_of(act: Decision) -> Lane:
    """The lane that found the act."""
    if isinstance(act, Merge) or (isinstance(act, Recut) and act.reason == COLD):
        return Lane.MERGE
    return Lane.CONSUMER if isinstance(act, Rebucket) or act.reason == "consumer-count" else Lane.LOAD
