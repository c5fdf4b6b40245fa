"""What a data plane can tell besides, where it can: who consumes, counters a page at a time, which keys a log has.

It stands beside the protocol in `base`, since not every plane has all of it. Callers ask with `isinstance`. The embedded
logs see no consumers, since theirs register, and have no pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from controller.domain.observed_consumers import ObservedConsumer


@runtime_checkable
class ObservesConsumers(Protocol):
    """A data plane that sees the consumers of applications which know nothing of Cleave."""

    def consumers(self, backing_topics: Sequence[str]) -> Mapping[str, Sequence[ObservedConsumer]]:
        """Consumers attached to each log; a missing log has none, one that is absent was silent.

        Raises Retryable when nobody answered.
        """


@runtime_checkable
class SamplesByPage(Protocol):
    """A data plane whose `sample` costs about the same for one log and for all."""

    @property
    def sample_limit(self) -> int:
        """The most logs one call of `sample` should name."""


@dataclass(frozen=True, slots=True)
class KeySample:
    """The keys of the newest messages of one log."""

    hashes: tuple[int, ...]
    """Segment hashes (0..65535), one a message."""
    keyless: int
    """Messages without a key, or with one longer than `LONGEST_KEY_BYTES`."""


LONGEST_KEY_BYTES = 4_096
"""A sample of some thousand keys stays small in memory."""


@runtime_checkable
class SamplesKeys(Protocol):
    """A data plane that can look into an open log without moving any subscription."""

    def sample_keys(self, backing_topic: str, *, most: int) -> KeySample:
        """At most `most` (>= 1) of the newest messages, fewer where they are large or the call's time is over.

        Raises SegmentNotFound; SegmentTerminated for a closed log, whose keys are its successors' by now; Unsupported
        where this process cannot read messages.
        """
