"""Operations: kinds, states and parameters of a change, and the row of the journal that records it.

An operation is recorded as a row before its first effect. `next_step` decides which step follows which state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from controller.domain.hash_range import HashRange
from controller.domain.log_origin import LogOrigin
from controller.domain.reshape import ChildPlan, ReshapeKind
from controller.domain.segment import segment_of_log


class OperationKind(StrEnum):
    """Kind of an operation, as people, cooldowns and metrics name it."""

    CREATE = "create"
    SPLIT = "split"
    MERGE = "merge"
    REBUCKET = "rebucket"
    RECUT = "recut"
    HEAL = "heal"
    ADOPT = "adopt"
    PRUNE = "prune"
    DELETE = "delete"
    ATTACH = "attach"
    DETACH = "detach"
    SUBSCRIPTION_CREATE = "subscription_create"
    SUBSCRIPTION_DELETE = "subscription_delete"
    SEEK = "seek"

    @property
    def is_reshape(self) -> bool:
        """True if parents are sealed and children take over."""
        return self.value in ReshapeKind._value2member_map_

    @property
    def succeeds_logs(self) -> bool:
        """True if older logs are closed in favour of new ones: for a reshape, and for a topic adopted from plain topics."""
        return self.is_reshape or self is OperationKind.ADOPT


class OperationState(StrEnum):
    """The last step that is known to be done. `done` and `aborted` are final; every other state is live."""

    INTENDED = "intended"
    PREPARED = "prepared"
    FENCING = "fencing"
    FENCED = "fenced"
    COMMITTED = "committed"
    DONE = "done"
    ABORTING = "aborting"
    ABORTED = "aborted"

    @property
    def is_live(self) -> bool:
        """True if a step remains to be performed."""
        return self not in (OperationState.DONE, OperationState.ABORTED)


class Origin(StrEnum):
    """The source of the request for an operation."""

    AUTO = "auto"
    MANUAL = "manual"
    API = "api"
    RECONCILER = "reconciler"


SUBSCRIPTION = "subscription"
"""Parameter with the name of the subscription to which an operation applies."""
UNDOES = "undoes"
"""Parameter of a deletion that removes the remains of an aborted creation: the id of the creation's operation."""
FROM_LATEST = "from_latest"
"""Parameter that marks the creation of a subscription which begins after all messages published so far."""
CONSUMERS = "consumers"
"""Parameter of the creation of a subscription that standard consumers read, with their kind. Absent for consumers of Cleave."""
SEEK_TARGET, RELEASE_SECONDS = "sought_ms", "release_seconds"
"""Parameters of a seek: its target (`SeekTarget.sought`), and the seconds that consumers have to release their buckets.
"""
ADOPTED = "adopted"
"""Parameter with the plain topics that an adoption takes over, in the order of their partitions."""
STOCK = "stock"
"""Parameter with the subscriptions that standard consumers continue to read after an adoption, in the order of their names."""
CHILD_RANGES = "child_ranges"
"""Parameter with the hash ranges of the children of a reshape that a broker performs, as texts."""
MIRRORED = "on_broker"
"""Parameter, under its stored name, that marks an operation on a mirrored topic: a broker keeps the topic's layout.
"""


@dataclass(frozen=True, slots=True)
class ReservedChild:
    """A child of an operation as its intent reserved it: the planned segment, and the name of its log (`backing_topic`).
    Neither is ever computed again.
    """

    plan: ChildPlan
    backing_topic: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the journal, with its parents and reserved children.

    `parent_topics`: names of the parents' logs, in the order of `parent_ids`. `request_key`: identifier of the request;
    a repeated request with the key returns this operation. `claim_term`: term of the last claim, 0 before the first.
    `subscription_version`: version of the topic's subscriptions that the children have; None before it is recorded.
    `attempts`: number of failed attempts since the last recorded step. `deadline_at_ms`: time, in milliseconds since
    the Unix epoch, at which an operation that can still be aborted is given up; a seek is not. `epoch`: layout epoch
    that the operation committed; None before, and for an operation that changes no layout.
    """

    operation_id: int
    topic_id: int
    topic_name: str
    data_plane: str
    kind: OperationKind
    state: OperationState
    origin: Origin
    actor: str
    reason: str
    request_key: str
    parent_ids: tuple[int, ...] = ()
    parent_topics: tuple[str, ...] = ()
    children: tuple[ReservedChild, ...] = ()
    parameters: Mapping[str, object] = field(default_factory=dict)
    subscription_version: int | None = None
    claim_term: int = 0
    attempts: int = 0
    last_error: str | None = None
    """Reason why the last attempt failed, or why the operation was given up."""
    deadline_at_ms: int = 0
    epoch: int | None = None
    token: str | None = None
    """Token stored with each log that the operation creates; None for an operation from before tokens were recorded.
    """

    @property
    def fenced_topics(self) -> tuple[str, ...]:
        """Logs to be closed: those of the parents, or the topics that are being adopted."""
        adopted = self.parameters.get(ADOPTED)
        return tuple(map(str, adopted)) if isinstance(adopted, list | tuple) else self.parent_topics

    def origin_of(self, child: ReservedChild, topic_epoch: int) -> LogOrigin | None:
        """Return the creation record to store with the log of `child`. The result is None for an operation without a
        token. `topic_epoch` is the layout epoch of the topic before the operation commits.

        The record has the operation's token, the epoch `topic_epoch` + 1, the child's bucket boundaries, and the ids
        of the child's parents in the order of `parent_ids`. A parent of the operation counts as a parent of the child
        if its range overlaps the child's range. The range is taken from the name of the parent's log; a parent whose
        log has a name without a range (no segment descriptor) always counts. Raises InvalidRange for a descriptor
        whose range is not valid.
        """
        if self.token is None:
            return None
        parents = zip(self.parent_ids, map(segment_of_log, self.parent_topics), strict=True)
        replaced = (
            i
            for i, descriptor in parents
            if descriptor is None or descriptor[0].overlaps(child.plan.hash_range)
        )
        return LogOrigin(self.token, topic_epoch + 1, tuple(replaced), child.plan.bucket_splits)

    @property
    def ranges_on_broker(self) -> tuple[HashRange, ...] | None:
        """Hash ranges of the children of a reshape that a broker performs, in the order of the plan. None if the operation
        names no ranges, or a newer program has stored them in another form. Raises InvalidRange for an invalid range.
        """
        ranges = self.parameters.get(CHILD_RANGES)
        return (
            tuple(HashRange.parse(str(text)) for text in ranges) if isinstance(ranges, list | tuple) else None
        )

    @property
    def is_mirrored(self) -> bool:
        """True if a broker keeps the topic's layout: the broker reserves the ids and creates the epoch."""
        return self.parameters.get(MIRRORED) is True
