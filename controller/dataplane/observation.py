"""What a data plane with a real broker can tell besides: who consumes, and that counters are read a page at a time.

It stands beside the protocol in `base`, since not every plane has it. Callers ask with `isinstance`. The embedded logs
have neither; their consumers register.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
