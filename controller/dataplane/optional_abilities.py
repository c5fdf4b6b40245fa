"""Defines optional abilities of a data plane: observing consumers, sampling many logs in one call,
sampling keys, and describing topics that applications created before Cleave.

The protocols are separate from `base`, because not every plane has all of them. Callers test with
`isinstance`. The embedded logs observe no consumers, because their consumers register, and have no pages and no
topics that can be adopted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from controller.domain.observed_consumers import ObservedConsumer


@runtime_checkable
class ObservesConsumers(Protocol):
    """A data plane that sees consumers of applications without Cleave's client."""

    def consumers(self, backing_topics: Sequence[str]) -> Mapping[str, Sequence[ObservedConsumer]]:
        """Return the consumers attached to each log, by the log's name. Consumers of non-durable
        subscriptions, and of the broker's own, do not count. A missing log has an empty sequence; a log that
        did not respond is absent. A broker that keeps the layout counts consumers by topic: they are all listed
        with the first requested log of the topic.

        Raises Retryable if no log responded.
        """


@runtime_checkable
class SamplesByPage(Protocol):
    """A data plane whose `sample` costs about the same for one log and for all."""

    @property
    def sample_limit(self) -> int:
        """Largest number of logs that one call of `sample` should name."""


@dataclass(frozen=True, slots=True)
class KeySample:
    """The keys of the latest messages of one log."""

    hashes: tuple[int, ...]
    """Segment hashes (0 to 65535), one per message."""
    keyless: int
    """Number of messages without a key, or with a key longer than `LONGEST_KEY_BYTES`."""


LONGEST_KEY_BYTES = 4_096
"""Longest key that is sampled, so that a sample of some thousand keys stays small in memory."""


@runtime_checkable
class SamplesKeys(Protocol):
    """A data plane that can read messages of an open log without moving a subscription."""

    def sample_keys(self, backing_topic: str, *, most: int) -> KeySample:
        """Return the keys of at most `most` (at least 1) of the latest messages, fewer if they are large or
        the call runs out of time. The sample of a log without messages is empty.

        Raises SegmentNotFound; SegmentTerminated for a terminated log, whose keys belong to its successors;
        Unsupported if this process cannot read messages.
        """


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
