"""Shards: which topics are a worker's to look after.

A topic's shard is its id modulo the number of shards, in Python and in SQL alike. Holding a shard is a lease
(store/leases.py); this module only says who belongs where.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shards:
    """The shards held now, out of `count`. Statements filter by `topic_id % :shard_count = ANY(:shards)`."""

    count: int
    held: frozenset[int]

    def owns(self, topic_id: int) -> bool:
        """Whether the topic belongs to a held shard."""
        return topic_id % self.count in self.held

    @classmethod
    def of(cls, count: int, held: Collection[int]) -> Shards:
        """Build one, refusing shard numbers that do not exist."""
        if count < 1 or any(not 0 <= shard < count for shard in held):
            raise ValueError(f"shards {sorted(held)} are not all within 0..{count - 1}")
        return cls(count, frozenset(held))

    @property
    def parameters(self) -> dict[str, object]:
        """Bound parameters of the filter."""
        return {"shard_count": self.count, "shards": sorted(self.held)}
