"""A value that describes the worker's next work, and can be combined with `|`."""

from __future__ import annotations

from dataclasses import dataclass

from controller.domain.decision import Lane


@dataclass(frozen=True, slots=True)
class Work:
    """The next work: lanes to evaluate, for some topics or (None) for all topics that are due. `operations`: run the
    operations that are due in the journal.
    """

    lanes: frozenset[Lane] = frozenset()
    topic_ids: frozenset[int] | None = frozenset()
    operations: bool = False

    def __or__(self, other: Work) -> Work:
        """Return the work of both: every lane of both, for every topic of both."""
        topics = (
            None if self.topic_ids is None or other.topic_ids is None else self.topic_ids | other.topic_ids
        )
        return Work(self.lanes | other.lanes, topics, self.operations or other.operations)


NOTHING = Work()
