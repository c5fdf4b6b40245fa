"""Cooldowns: the time after an action in which no other action of the same kind begins.

There are three: for splits, merges and rebuckets. A cooldown counts from the start of the last action, which may
still be running. Each lane checks its own cooldown, and a refusal names the instant at which the cooldown ends. The load
plan of the profile `adaptive` has no cooldowns, because it prices actions instead (`adaptive`), and a merge also waits
after a split (`pip483.merge_conditions`).
"""

from __future__ import annotations

from typing import NamedTuple, Self

from controller.domain.decision import Lane, Refusal, RefusalReason
from controller.domain.evaluation_input import EvaluationInput
from controller.domain.reshape import ReshapeKind

# A recut both divides and joins, so it counts for two cooldowns. A repair changes no range and counts for none.
_SPLITTING = (ReshapeKind.SPLIT, ReshapeKind.RECUT)
_MERGING = (ReshapeKind.MERGE, ReshapeKind.RECUT)
_REBUCKETING = (ReshapeKind.REBUCKET,)


class Pause(NamedTuple):
    """A period in which an action is refused: its start and its end, in milliseconds since the Unix epoch, and the reason
    and the metric of the refusal.
    """

    reason: RefusalReason
    metric: str
    began: int
    ends_at: int

    def refusal(self, lane: Lane, segment_id: int | None, other_id: int | None = None) -> Refusal:
        """Return the refusal to report during the pause. The caller checks that the pause lasts. The ids are fields of
        `Refusal`.
        """
        return Refusal(
            segment_id=segment_id,
            lane=lane,
            reason=self.reason,
            metric=self.metric,
            value=self.began,
            needed=self.ends_at,
            not_before=self.ends_at,
            other_id=other_id,
        )


class Cooldowns(NamedTuple):
    """The cooldowns of a topic; None if there was no action of the kind. A cooldown may have ended already. A recut
    counts as a split and as a merge.
    """

    split: Pause | None
    merge: Pause | None
    rebucket: Pause | None

    @classmethod
    def of(cls, situation: EvaluationInput) -> Self:
        """Return the cooldowns under the policy, from the last actions and the running reshapes."""
        policy, last = situation.policy, situation.history
        split_at = _latest(situation, _SPLITTING, last.last_split_at)
        merge_at = _latest(situation, _MERGING, last.last_merge_at)
        rebucket_at = _latest(situation, _REBUCKETING, last.last_rebucket_at)
        reason = RefusalReason
        return cls(
            _pause(reason.SPLIT_COOLDOWN, "last_split_at", split_at, policy.split_cooldown_seconds),
            _pause(reason.MERGE_COOLDOWN, "last_merge_at", merge_at, policy.merge_cooldown_seconds),
            _pause(
                reason.REBUCKET_COOLDOWN, "last_rebucket_at", rebucket_at, policy.rebucket_cooldown_seconds
            ),
        )


def _latest(situation: EvaluationInput, kinds: tuple[ReshapeKind, ...], last: int | None) -> int | None:
    """Return the start of the latest operation of these kinds, `last` or a running reshape, in milliseconds since
    the Unix epoch; None if there was none.
    """
    if not situation.in_flight:
        return last
    starts = [reshape.started_at for reshape in situation.in_flight if reshape.kind in kinds]
    return max(starts if last is None else [last, *starts], default=None)


def _pause(reason: RefusalReason, metric: str, began: int | None, seconds: int) -> Pause | None:
    """Return the pause of this length that began at `began`, in milliseconds since the Unix epoch; None if `began` is
    None.
    """
    return None if began is None else Pause(reason, metric, began, began + seconds * 1000)
