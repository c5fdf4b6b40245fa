"""Describes topics that applications created before Cleave, so that they can be adopted.

The protocol is separate from `base`, because the embedded logs have no such topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A plain or partitioned topic. `producers` and `consumers` are sentences that name each client and its
    address.
    """

    name: str
    logs: tuple[str, ...]
    """The topic itself, or its partitions in order."""
    missing: tuple[str, ...]
    """Partitions that were never used: they do not exist as topics."""
    terminated: tuple[str, ...]
    """Logs that are terminated, in the order of `logs`."""
    producers: tuple[str, ...]
    consumers: tuple[str, ...]
    subscriptions: Mapping[str, bool]
    """Durable subscriptions by name, except names that begin with `__`: True if the subscription is read as a queue,
    False if it is read in order or its type is unknown.
    """


@runtime_checkable
class Adoptable(Protocol):
    """A data plane with topics that applications created before Cleave."""

    def describe_topic(self, name: str) -> TopicDescription:
        """Return the description of the topic. A short name is completed: `x` is
        `persistent://public/default/x`. Raises TopicNotFound, and InvalidInput for a topic that cannot be
        adopted: it is not persistent, is a single partition, or has too many partitions.
        """
