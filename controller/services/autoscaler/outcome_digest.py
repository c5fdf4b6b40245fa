"""Digests of evaluations, which show whether an evaluation differs from the previous one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2s
from json import dumps

from controller.domain.decision import Decision, Evaluation, Lane, Refusal, RefusalReason, lane_of, sealed_by


def digest(refusals: Sequence[Refusal], lanes: Collection[Lane], previous: str | None) -> str | None:
    """Return a digest of the refusals, which shows whether an evaluation of `lanes` refuses something other than the
    previous evaluation. The digest has one word `lane=hash` for each lane that refuses something, separated by
    spaces; None without such a lane. `previous` is the digest of the previous evaluation (None: there is none), from
    which the words of lanes outside `lanes` are copied. A refusal without a lane counts for each of `lanes`.

    Measured values, and the order and number of equal refusals, do not change the digest: the same refusal at another
    rate is not new. Of refusals with a reason in `_COUNTED`, only the named fields count: a saving below its price is the
    same refusal whichever segments it names.
    """
    documents_by_lane = {
        lane: [_without_value(refusal) for refusal in refusals if refusal.lane in (lane, None)]
        for lane in lanes
    }
    return _words(documents_by_lane, previous)


def shadow_digest(evaluation: Evaluation, lanes: Collection[Lane], previous: str | None) -> str | None:
    """Return a digest of the refusals and actions of a shadow evaluation of `lanes`, in the form that `digest`
    returns; None if no lane refuses or acts. The words of lanes outside `lanes` are copied from `previous`, the
    digest of the candidate's previous evaluation (None: there is none). The actions are covered because they are
    never performed, so that each evaluation chooses them again.

    Figures, cut points and instants are left out, because they follow the load. The digest covers the kind, the
    segments and the reason of each action, and the other fields of each refusal, such as its reason.
    """
    documents_by_lane = {
        lane: [_without_figures(refusal) for refusal in evaluation.refusals if refusal.lane in (lane, None)]
        + [_without_cuts(decision) for decision in evaluation.decisions if lane_of(decision) is lane]
        for lane in lanes
    }
    return _words(documents_by_lane, previous)


def _words(documents_by_lane: Mapping[Lane, Sequence[dict[str, object]]], previous: str | None) -> str | None:
    """Return a digest with one word `lane=hash` for each lane with documents, whose order and repetitions do
    not count. The words of lanes that are not in `documents_by_lane` are copied from `previous`. None without
    words.
    """
    words = dict(word.split("=") for word in (previous or "").split())
    for lane, documents in documents_by_lane.items():
        texts = sorted({dumps(document, sort_keys=True) for document in documents})
        if texts:
            words[lane.value] = blake2s("\n".join(texts).encode(), digest_size=8).hexdigest()
        else:
            words.pop(lane.value, None)
    return " ".join(f"{lane}={words[lane]}" for lane in sorted(words)) or None


_COUNTED = {
    RefusalReason.TOLERATED_OVERLOAD: ("reason", "segment_id"),
    RefusalReason.SAVING_BELOW_PRICE: ("reason",),
}
"""Fields that count, by reason, of refusals that are weighed at each tick. The price follows the number of clients, and
the segments of the best scale-in follow small changes of the load: with these fields, most evaluations would be new.
"""


def _without_value(refusal: Refusal) -> dict[str, object]:
    """Return the refusal as a document without its measured value; of a reason in `_COUNTED`, only the fields that
    count.
    """
    document = refusal.to_document()
    counted = _COUNTED.get(refusal.reason, document.keys() - {"value"})
    return {name: value for name, value in document.items() if name in counted}


_FIGURES = ("value", "needed", "not_before")


def _without_figures(refusal: Refusal) -> dict[str, object]:
    """Return the refusal as a document without its measured and needed values and its earliest instant; of a reason
    in `_COUNTED`, only the fields that count.
    """
    return {name: value for name, value in _without_value(refusal).items() if name not in _FIGURES}


def _without_cuts(decision: Decision) -> dict[str, object]:
    """Return the action as a document with its kind, the segments that it seals, and its reason, but without
    cut points.
    """
    return {"act": type(decision).__name__, "segments": [*sealed_by(decision)], "reason": decision.reason}
