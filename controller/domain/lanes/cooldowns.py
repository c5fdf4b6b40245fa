"""Cooldowns: for how long after an act of a kind no other of that kind is begun.

There are three: of splits, of merges and of rebuckets. A cooldown counts from the start of the last act, which may
still be under way. The lanes ask for theirs, and a refusal names the instant at which it ends.
"""

from __future__ import annotations

from typing import NamedTuple, Self

from controller.domain.decision import Lane, Refusal, RefusalReason
from controller.domain.reshape import ReshapeKind
from controller.domain.situation import Situation

# A re-cut both divides and joins, so it counts for two cooldowns. A heal changes no range and counts for none.
_SPLITTING = (ReshapeKind.SPLIT, ReshapeKind.RECUT)
_MERGING = (ReshapeKind.MERGE, ReshapeKind.RECUT)
_REBUCKETING = (ReshapeKind.REBUCKET,)


class Pause(NamedTuple):
    """A time in which something is refused: from when it counts until when, milliseconds since the Unix epoch."""

    reason: RefusalReason
    metric: str
    began: int
    ends_at: int

    def refusal(self, lane: Lane, segment_id: int | None, other_id: int | None = None) -> Refusal:
        """What is refused while it lasts; ids as in `Refusal`."""
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
    """The cooldowns of a topic; None where there was no such act. They may have ended."""

    split: Pause | None
    merge: Pause | None
    rebucket: Pause | None

    @classmethod
    def of(cls, situation: Situation) -> Self:
        """By the policy, the last acts and those under way."""
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


def _latest(situation: Situation, kinds: tuple[ReshapeKind, ...], last: int | None) -> int | None:
    if not situation.in_flight:
        return last
    starts = [reshape.started_at for reshape in situation.in_flight if reshape.kind in kinds]
    return max(starts if last is None else [last, *starts], default=None)


def _pause(reason: RefusalReason, metric: str, began: int | None, seconds: int) -> Pause | None:
    return None if began is None else Pause(reason, metric, began, began + seconds * 1000)
