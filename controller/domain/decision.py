"""The verdict on a topic: the acts to carry out, and a reason for everything that was left alone.

Values only, written to the ledger as JSON and read back by people through SQL. `evaluator` makes them,
the autoscaler turns acts into operations.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from controller.domain.policy_parameters import write_parameter


class Lane(StrEnum):
    """The three questions of an evaluation, in the order they are asked."""

    CONSUMER = "consumer"
    LOAD = "load"
    MERGE = "merge"


class RefusalReason(StrEnum):
    """Why something was not done. The comment says what `value` and `needed` hold."""

    # The whole topic.
    DISABLED = "disabled"
    INVALID_POLICY = "invalid-policy"  # the parameter's value, the bound it breaks; or a sentence as `metric`
    FOREIGN_CONTROLLER = "foreign-controller"  # the broker's own auto-scaler is on; None, None
    TOPIC_HELD = "topic-held"  # its logs are ahead of the journal, or not yet compared with it; None, None
    # Limits: waiting does not help.
    AT_MAX_SEGMENTS = "at-max-segments"  # segments, those in flight included; the cap
    AT_MIN_SEGMENTS = "at-min-segments"  # segments, those in flight included; what there must be more than
    AT_MAX_BUCKETS = "at-max-buckets"  # buckets of the topic, 64 a segment at most; consumers
    ENOUGH_BUCKETS = "enough-buckets"  # buckets of the topic, 64 a segment at most; consumers
    MERGE_DEPTH = "merge-depth"  # merges in the side's ancestry; the cap it must be below
    WIDTH_ONE = "width-one"  # hashes covered; hashes a split needs
    WOULD_IDLE_CONSUMER = "would-idle-consumer"  # places for consumers after the merge; consumers served now
    WOULD_SPLIT_AGAIN = "would-split-again"  # the figure of the merged layout; the most it may be
    # Load.
    NO_LOAD_RECORD = "no-load-record"  # segments without a record (or None for one side of a pair); 0
    STALE_LOAD = "stale-load"  # when the source was last heard of; until when that counted
    NOT_COLD = "not-cold"  # the rate of the neighbour that is nearest to cold; the merge threshold
    # Gates of time: when the gate began to count and when it opens, milliseconds since the Unix epoch.
    SPLIT_COOLDOWN = "split-cooldown"
    MERGE_COOLDOWN = "merge-cooldown"
    REBUCKET_COOLDOWN = "rebucket-cooldown"
    BUCKET_IDLE_WINDOW = "bucket-idle-window"
    CONSUMERS_JOINING = "consumers-joining"
    KEPT_APART = "kept-apart"
    COLD_WINDOW = "cold-window"  # began None: the record was not written as cold under these thresholds
    # What the profile `adaptive` weighs; segment-seconds are segments kept for a second.
    TOLERATED_OVERLOAD = "tolerated-overload"  # what the overload has cost so far; the price of a reshape
    SAVING_BELOW_PRICE = "saving-below-price"  # what a reshape would have saved; its price
    UNSPLITTABLE = "unsplittable"  # the load on what no cut divides, as a share of the capacity; 1
    RECONNECTION_BUDGET = "reconnection-budget"  # clients that would reconnect; how many still may
    # Others go first.
    AWAITING_APPROVAL = "awaiting-approval"  # segments the act seals or makes, whichever are more; None
    APPROVAL_REFUSED = "approval-refused"  # when somebody said no; until when that holds
    IN_FLIGHT = "in-flight"  # the operation that holds the segment; None
    LOWER_SCORE = "lower-score"  # score, the score of the one chosen
    OTHER_ACT = "other-act"  # an earlier lane acted; None, None


@dataclass(frozen=True, slots=True)
class Split:
    """One segment into two or more; `at` as in `plan_split`, empty for the midpoint.

    `reason` is Pulsar's: `consumer-count` or the metric (`msgRateIn`, `byteRateIn`, `msgRateOut`, `byteRateOut`).
    `otherwise` is where it would be cut if the data plane could cut anywhere. It is None where the data plane can,
    since the cut is made there. `buckets`: entry buckets of each child; None for its share of the parent's.
    """

    segment_id: int
    at: tuple[int, ...] = ()
    reason: str = ""
    otherwise: tuple[int, ...] | None = None
    buckets: int | None = None


@dataclass(frozen=True, slots=True)
class Merge:
    """Two neighbours into one; `left_id` has the lower range. `reason` is `cold`."""

    left_id: int
    right_id: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Rebucket:
    """One segment to `bucket_count` entry buckets: `consumer-count` (under `pip483` `at-max-segments` or `below-split-rate-floor`) where
    consumers lack some, `idle-buckets` where nobody needs so many.
    """

    segment_id: int
    bucket_count: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Recut:
    """Adjacent segments cut anew at `at`, without any cut point joined; no profile of Pulsar's makes one.

    `reason` is the metric, as of a split, or `cold`, as of a merge. `buckets`: entry buckets of each child; None for its share of the
    parents'.
    """

    segment_ids: tuple[int, ...]
    at: tuple[int, ...]
    reason: str = ""
    buckets: int | None = None


Decision = Split | Merge | Rebucket | Recut


def sealed_by(act: Decision) -> tuple[int, ...]:
    """The segments that the act seals."""
    match act:
        case Merge(left_id, right_id):
            return left_id, right_id
        case Recut(segment_ids):
            return segment_ids
        case _:
            return (act.segment_id,)


COLD = "cold"
"""The reason of acts that give capacity back."""
CONSUMER_COUNT = "consumer-count"
"""The reason of acts for consumers that have nothing to read."""


def is_for_consumers(kind: str, reason: str) -> bool:
    """Return True for an operation that gives consumers places."""
    return kind == "rebucket" or reason == CONSUMER_COUNT


def lane_of(act: Decision) -> Lane:
    """The lane that found the act."""
    if isinstance(act, Merge) or (isinstance(act, Recut) and act.reason == COLD):
        return Lane.MERGE
    return Lane.CONSUMER if isinstance(act, Rebucket) or act.reason == CONSUMER_COUNT else Lane.LOAD


@dataclass(frozen=True, slots=True)
class Refusal:
    """One thing that was not done, and the figure that decided it.

    `segment_id` None speaks of the whole topic, `lane` None of every lane. In a pair `segment_id` is the side that is
    the reason (the left one where neither is) and `other_id` its neighbour. What `value` and `needed` hold: see
    `RefusalReason`; `metric` names their kind. `not_before` is the earliest instant (milliseconds since the Unix epoch)
    at which this reason ends with no new input, None if only new input ends it. Nothing in it depends on when the
    question was asked, so equal verdicts are equal values.
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
        """JSON values by field name; what is None is left out."""
        return _document(self)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Acts on disjoint segments, refusals, and how long the answer holds.

    `proposals` are acts that wait for a person whom nobody has asked yet. They are no part of the document: each has its
    refusal there, and what was asked is kept by itself.

    `valid_until` is in milliseconds since the Unix epoch. Asked at any instant before it, the same question has this
    very answer. None means until an input changes.
    """

    decisions: tuple[Decision, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    valid_until: int | None = None
    proposals: tuple[Decision, ...] = ()

    def to_document(self) -> dict[str, Any]:
        """JSON values; each act carries its `kind`."""
        acts = [{"kind": type(act).__name__.lower()} | _document(act) for act in self.decisions]
        return {
            "decisions": acts,
            "refusals": [refusal.to_document() for refusal in self.refusals],
            "valid_until": self.valid_until,
        }

    def to_json(self) -> str:
        """Canonical: sorted keys, no spaces, integral numbers as integers."""
        return json.dumps(self.to_document(), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _document(value: Decision | Refusal) -> dict[str, Any]:
    pairs = ((name, getattr(value, name)) for name in value.__slots__)
    return {
        name: write_parameter(held) if isinstance(held, float) else held
        for name, held in pairs
        if held is not None
    }
