"""What commands ask of Cleave, by subject: the port behind which are the database (`direct`) and a server (`over_http`).

Answers are documents as the commands print them, with instants as `datetime`; the columns of lists are named here, so that both ways give
the same. Errors are those of `domain.errors`, whichever way they came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from controller.domain.layout import SegmentLayout

Row = dict[str, Any]

TOPIC = ("topic", "state", "epoch", "data_plane")
OPERATION = (
    "operation_id",
    "topic",
    "topic_id",
    "kind",
    "state",
    "live",
    "origin",
    "actor",
    "reason",
    "decision_id",
    "parents",
    "children",
    "epoch",
    "attempts",
    "last_error",
    "claimed_by",
    "claim_term",
    "claim_expires_at",
    "not_before",
    "intended_at",
    "fenced_at",
    "committed_at",
    "finished_at",
    "deadline",
    "age_seconds",
    "fenced_seconds",
    "request_key",
    "parameters",
    "creates",
)
STUCK_OPERATION = (
    "operation_id",
    "topic",
    "kind",
    "state",
    "stuck_because",
    "age_seconds",
    "attempts",
    "last_error",
    "claimed_by",
    "claim_expires_at",
    "not_before",
    "deadline",
    "parents",
    "children",
    "creates",
)

SUBSCRIPTION = (
    "topic",
    "topic_id",
    "subscription",
    "kind",
    "state",
    "created_epoch",
    "created_at",
    "parents_block",
    "drain_consumers",
    "consumers",
    "consumer_names",
)


@dataclass(frozen=True, slots=True)
class How:
    """How a change is to be made. `wait_seconds` None: it is not waited for its operation; in a rehearsal there is none."""

    reason: str
    dry_run: bool
    wait_seconds: float | None


@dataclass(frozen=True, slots=True)
class Planned:
    """What a rehearsal says would be made: segments with their buckets and logs, of a reshape on the layout of `epoch`."""

    epoch: int | None
    segments: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Changed:
    """What a change led to: its operation as `output.operation_document` has it, and of a rehearsal what it planned."""

    operation: Row
    planned: Planned | None = None


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """A topic with its layout."""

    name: str
    state: str
    data_plane: str
    properties: Mapping[str, Any]
    layout: SegmentLayout


class Topics(Protocol):
    """Topics, and their layouts now and then. Each names its topic in full, and raises TopicNotFound."""

    def list(self, *, namespace: str | None, prefix: str, limit: int) -> Sequence[Row]:
        """Those that are not deleted, by name, with the columns `TOPIC`."""

    def find(self, topic: str) -> FoundTopic:
        """One, in whatever state but deleted."""

    def layout(self, topic: str, at: int | datetime | None) -> SegmentLayout:
        """Its layout now, or at an epoch or instant. Raises NotFound where it had none then."""

    def create(
        self, topic: str, how: How, *, segments: int, data_plane: str, properties: Mapping[str, str]
    ) -> Changed:
        """Raises as `services.topic_admin.create_topic`."""

    def delete(self, topic: str, how: How) -> Changed:
        """With every log behind it. Raises TopicNotLive."""


@dataclass(frozen=True, slots=True)
class Split:
    """At the midpoint, at cut points (each the first hash of a child), or into `parts` of equal width."""

    segment_id: int
    at: Sequence[int]
    parts: int | None


@dataclass(frozen=True, slots=True)
class Merge:
    """Two neighbours into one."""

    first_id: int
    second_id: int


@dataclass(frozen=True, slots=True)
class Rebucket:
    """The same range with another number of entry buckets."""

    segment_id: int
    bucket_count: int


class Segments(Protocol):
    """Segments by hand."""

    def reshape(self, topic: str, act: Split | Merge | Rebucket, how: How) -> Changed:
        """Raises as `services.segment_admin.submit`."""


class Operations(Protocol):
    """The journal."""

    def list(self, *, topic: str | None, live: bool, limit: int) -> Sequence[Row]:
        """Newest first, with the columns `OPERATION`. Raises TopicNotFound for a name that no topic ever had."""

    def stuck(self, *, topic: str | None, limit: int) -> Sequence[Row]:
        """Those that make no progress, and why, newest first, with the columns `STUCK_OPERATION`."""


class Subscriptions(Protocol):
    """Who reads a topic. Each names its topic in full, and raises TopicNotFound."""

    def list(self, topic: str) -> Sequence[Row]:
        """Those of a topic with their consumers, by name, with the columns `SUBSCRIPTION`."""


class ControlPlane(Protocol):
    """All of it. Whoever has it may be asked by one thread at a time."""

    @property
    def topics(self) -> Topics:
        """See `Topics`."""

    @property
    def segments(self) -> Segments:
        """See `Segments`."""

    @property
    def operations(self) -> Operations:
        """See `Operations`."""

    @property
    def subscriptions(self) -> Subscriptions:
        """See `Subscriptions`."""
