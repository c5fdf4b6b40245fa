"""Decides when an approval lapses: a pending approval without an answer, or an approved action that was not performed
in time.

A pending approval lapses at its `expires_at`, for an operation `approval_wait_seconds` of the policy after the
proposal; then the default is its answer. An approved operation lapses `VALID_MS` after the answer. A pending approval
also lapses when its subject is gone. `services.approval_answers` applies these rules to the rows that `store.approvals`
finds. This module calls no other component and reads no clock.
"""

from __future__ import annotations

from controller.domain.approval_states import ApprovalState, Subject

VALID_MS = 3_600_000
"""Milliseconds for which an approval is valid: one hour, because a person approves the action for the topic as it
was shown.
"""


def why_subject_ended(subject: Subject) -> str:
    """Return as text why an approval with this kind of subject has lost its subject: for an operation, the layout
    changed; for a bundle proposal or a promotion, the topic is no longer live.
    """
    if subject is Subject.OPERATION:
        return "the layout changed: the segments are no longer as they were proposed"
    return "the topic is no longer live"


def end_of_wait(
    subject: Subject, state: ApprovalState, default_answer: str, *, has_subject: bool
) -> tuple[ApprovalState, str]:
    """Return the next state of an approval whose time is over or whose subject has ended, and the reason as text.
    Nothing is stored. `state` is the present state: pending or, for an operation only, approved.

    An approval in the state approved expires, whether or not it still has its subject. A pending approval expires if
    its subject has ended (`has_subject` False). Any other pending approval gets the answer `default_answer`: the
    value `approve` approves, and every other value rejects.
    """
    if state is ApprovalState.APPROVED:
        return (
            ApprovalState.EXPIRED,
            "the policy did not choose the action again within an hour of the approval",
        )
    if not has_subject:
        return ApprovalState.EXPIRED, why_subject_ended(subject)
    answer = ApprovalState.APPROVED if default_answer == "approve" else ApprovalState.REJECTED
    return answer, "no answer was given in time"
