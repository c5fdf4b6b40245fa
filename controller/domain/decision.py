"""The evaluation of a topic: the actions to perform, and a refusal for everything that was left unchanged.

Values only. The decision log stores them as JSON, which people read through SQL. `evaluator` creates them; the
autoscaler turns the actions into operations.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from controller.domain.policy_parameters import write_parameter


class Lane(StrEnum):
    """The three questions of an evaluation, in the order in which they are evaluated."""

    CONSUMER = "consumer"
    LOAD = "load"
    MERGE = "merge"


class RefusalReason(StrEnum):
    """Reason why no action was taken. The comment after each reason says what `value` and `needed` hold."""

    # The whole topic.
    DISABLED = "disabled"
    INVALID_POLICY = "invalid-policy"  # the parameter's value, its bound; or a sentence as `metric`
    FOREIGN_CONTROLLER = "foreign-controller"  # the broker's own auto-scaler is enabled; None, None
    TOPIC_HELD = "topic-held"  # the topic's logs are ahead of the journal, or not compared yet; None, None
    # Limits: waiting does not help.
    AT_MAX_SEGMENTS = "at-max-segments"  # segments, with those of running and new reshapes; the limit
    AT_MIN_SEGMENTS = "at-min-segments"  # segments, with those of running reshapes; the number to exceed
    AT_MAX_BUCKETS = "at-max-buckets"  # places of the topic, 64 a segment at most; consumers
    ENOUGH_BUCKETS = "enough-buckets"  # buckets of the topic, 64 a segment at most; consumers
    MERGE_DEPTH = "merge-depth"  # merges in the ancestry of one side; the limit that must not be reached
    WIDTH_ONE = "width-one"  # hashes in the range; hashes that a split needs
    WOULD_IDLE_CONSUMER = "would-idle-consumer"  # places after the action; consumers with a place
    WOULD_SPLIT_AGAIN = "would-split-again"  # the value after the merge; its maximum
    # Load.
    NO_LOAD_RECORD = "no-load-record"  # segments without a record (None if the refusal names a segment); 0
    STALE_LOAD = "stale-load"  # time of the last reading; time until which the reading counted
    NOT_COLD = "not-cold"  # the rate of the neighbour that is closest to cold; the merge threshold
    # Waiting times: their start and their end, milliseconds since the Unix epoch.
    SPLIT_COOLDOWN = "split-cooldown"
    MERGE_COOLDOWN = "merge-cooldown"
    REBUCKET_COOLDOWN = "rebucket-cooldown"
    BUCKET_IDLE_WINDOW = "bucket-idle-window"
    CONSUMERS_JOINING = "consumers-joining"
    KEPT_APART = "kept-apart"
    COLD_WINDOW = "cold-window"  # start None: the record was not written as cold under these thresholds
    # Costs that the profile `adaptive` compares: a segment-second is the cost of one segment for one second.
    TOLERATED_OVERLOAD = "tolerated-overload"  # cost of the overload so far; cost of a reshape
    SAVING_BELOW_PRICE = "saving-below-price"  # saving that a reshape would have brought; its cost
    UNSPLITTABLE = "unsplittable"  # load that no cut can divide, as a share of the capacity; 1
    RECONNECTION_BUDGET = "reconnection-budget"  # clients that would reconnect; clients that still may
    # Another action or operation has priority.
    AWAITING_APPROVAL = "awaiting-approval"  # segments sealed or created, whichever number is larger; None
    APPROVAL_REFUSED = "approval-refused"  # time of the rejection; its end
    IN_FLIGHT = "in-flight"  # the operation that holds the segment; None
    LOWER_SCORE = "lower-score"  # score; the score of the chosen candidate
    OTHER_ACT = "other-act"  # an earlier lane chose an action; None, None


@dataclass(frozen=True, slots=True)
class Split:
    """A split of one segment into two or more. `at`: the first hash of each child except the first; empty for a split at
    the midpoint.

    `reason` is Pulsar's: `consumer-count` or the metric (`msgRateIn`, `byteRateIn`, `msgRateOut`, `byteRateOut`).
    `otherwise` is the cut that would be made if the data plane could cut anywhere. It is None if the data plane can,
    because the cut is then made there, and under `adaptive`, which records no such cut. `buckets`: entry buckets of
    each child; None for the child's share of the parent's buckets.
    """

    segment_id: int
    at: tuple[int, ...] = ()
    reason: str = ""
    otherwise: tuple[int, ...] | None = None
    buckets: int | None = None


@dataclass(frozen=True, slots=True)
class Merge:
    """A merge of two neighbours into one; `left_id` has the lower range. `reason` is `cold`. Under `adaptive`, it is a
    metric if one plan for a hot run at the segment limit needs fewer segments.
    """

    left_id: int
    right_id: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Rebucket:
    """A change of one segment to `bucket_count` entry buckets. `reason` is `consumer-count` (under `pip483`
    `at-max-segments` or `below-split-rate-floor`) if consumers need more buckets, and `idle-buckets` if fewer buckets
    suffice.
    """

    segment_id: int
    bucket_count: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Recut:
    """Adjacent segments that get other boundaries: `at` has the first hash of each child except the first, and is empty
    if all segments are joined into one. Pulsar has no such action.

    `reason` is the metric, as for a split, or `cold`, as for a merge. `buckets`: entry buckets of each child; None
    for the child's share of the parents' buckets.
    """

    segment_ids: tuple[int, ...]
    at: tuple[int, ...]
    reason: str = ""
    buckets: int | None = None


Decision = Split | Merge | Rebucket | Recut


def sealed_by(action: Decision) -> tuple[int, ...]:
    """Return the ids of the segments that the action seals, in the order of their ranges."""
    match action:
        case Merge(left_id, right_id):
            return left_id, right_id
        case Recut(segment_ids):
            return segment_ids
        case _:
            return (action.segment_id,)


COLD = "cold"
"""Reason of actions that reduce the number of segments."""
CONSUMER_COUNT = "consumer-count"
"""Reason of actions for consumers that have nothing to read."""


def is_for_consumers(kind: str, reason: str) -> bool:
    """Return True for an operation that gives consumers places: every operation of kind `rebucket` (also if it gives up
    buckets), and any operation whose reason is `consumer-count`.
    """
    return kind == "rebucket" or reason == CONSUMER_COUNT


def kind_of(action: Decision) -> str:
    """Return the kind of the action: `split`, `merge`, `rebucket` or `recut`."""
    return type(action).__name__.lower()


def parts_of(action: Decision) -> int:
    """Return the number of segments that the action creates; for a rebucket, which creates one segment, the number of its
    entry buckets.
    """
    match action:
        case Merge():
            return 1
        case Rebucket():
            return action.bucket_count
        case Split():
            return len(action.at) + 1 if action.at else 2
        case Recut():
            return len(action.at) + 1


def action_text(action: Decision) -> str:
    """Return a short description of the action: `merge segments 3, 4 into 1`, `split segment 3 into 2`, `rebucket
    segment 3 to 8 entry buckets`.
    """
    sealed = sealed_by(action)
    noun = "segment" if len(sealed) == 1 else "segments"
    result = (
        f"to {parts_of(action)} entry buckets" if isinstance(action, Rebucket) else f"into {parts_of(action)}"
    )
    return f"{kind_of(action)} {noun} {', '.join(map(str, sealed))} {result}"


def size_of(action: Decision) -> int:
    """Return the number of segments that the action seals or the number that it creates, whichever is larger; 1 for a
    rebucket.
    """
    return max(len(sealed_by(action)), 1 if isinstance(action, Rebucket) else parts_of(action))


def lane_of(action: Decision) -> Lane:
    """Return the lane that chose the action: the merge lane for a merge and for a recut with the reason `cold`; the
    consumer lane for a rebucket and for the reason `consumer-count`; the load lane for the others.
    """
    if isinstance(action, Merge) or (isinstance(action, Recut) and action.reason == COLD):
        return Lane.MERGE
    return Lane.CONSUMER if isinstance(action, Rebucket) or action.reason == CONSUMER_COUNT else Lane.LOAD


@dataclass(frozen=True, slots=True)
class Refusal:
    """One action that was not taken, and the value that decided it.

    `segment_id` None refers to the whole topic, `lane` None to every lane. For a pair, `segment_id` is the side that
    causes the refusal (the left side if neither does) and `other_id` its neighbour. `RefusalReason` says what `value`
    and `needed` hold; `metric` names their kind. `not_before` is the earliest instant (milliseconds since the Unix
    epoch) at which this reason ends without a change of the input; None if only another input ends it. No field
    depends on the time of the evaluation, so equal evaluations are equal values.
    """

    segment_id: int | None
    lane: Lane | None
    reason: RefusalReason
    metric: str | None = None
    value: float | None = None
    needed: float | None = None
    not_before: int | None = None
    other_id: int | None = None

    def to_document(self) -> dict[str, Any]:
        """Return the fields as JSON values by name; fields that are None are left out."""
        return _document(self)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Actions on disjoint segments, refusals, and the time until which the result is valid.

    `proposals` are held actions for which an approval is to be requested. They are not part of the document: each has a
    refusal in the document, and requested approvals are stored separately.

    `valid_until` is in milliseconds since the Unix epoch. An evaluation of the same input at any instant before it
    gives the same result. None means until an input changes.
    """

    decisions: tuple[Decision, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    valid_until: int | None = None
    proposals: tuple[Decision, ...] = ()

    def to_document(self) -> dict[str, Any]:
        """Return the evaluation as JSON values; each action has its `kind`. The proposals are left out."""
        actions = [{"kind": type(action).__name__.lower()} | _document(action) for action in self.decisions]
        return {
            "decisions": actions,
            "refusals": [refusal.to_document() for refusal in self.refusals],
            "valid_until": self.valid_until,
        }

    def to_json(self) -> str:
        """Return the document as canonical text: sorted keys, no spaces, integral numbers as integers."""
        return json.dumps(self.to_document(), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _document(value: Decision | Refusal) -> dict[str, Any]:
    """Return the fields as JSON values by name, without fields that are None. An integral float becomes an integer, and a
    float that is not finite a text.
    """
    pairs = ((name, getattr(value, name)) for name in value.__slots__)
    return {
        name: write_parameter(field_value) if isinstance(field_value, float) else field_value
        for name, field_value in pairs
        if field_value is not None
    }
