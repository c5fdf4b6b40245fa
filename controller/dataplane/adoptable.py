"""What a data plane can say of a topic that applications made before Cleave, so that it can be adopted.

Beside the protocol in `base`: the embedded logs have no such topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTopic:
    """A plain or partitioned topic. `producers` and `consumers` are sentences that name each one and where it is."""

    name: str
    logs: tuple[str, ...]
    """The topic itself, or its partitions in order."""
    missing: tuple[str, ...]
    """Partitions nobody has used yet: they do not exist as topics."""
    terminated: tuple[str, ...]
    producers: tuple[str, ...]
    consumers: tuple[str, ...]
    subscriptions: Mapping[str, bool]
    """Whether each is read as a queue."""


@runtime_checkable
class Adoptable(Protocol):
    """A data plane with topics that applications made before Cleave."""

    def describe_topic(self, name: str) -> FoundTopic:
        """The topic as it is. Raises TopicNotFound, InvalidInput."""
