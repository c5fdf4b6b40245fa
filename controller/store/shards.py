"""Shards: the division of topics among workers.

The shard of a topic is the topic id modulo the number of shards, in Python and in SQL alike. A worker holds a shard by a
lease (store/leases.py). This module only computes which topics belong to which shard.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shards:
    """The shards that a worker holds, out of `count`. Statements filter by `topic_id % :shard_count = ANY(:shards)`."""

    count: int
    held: frozenset[int]

    def owns(self, topic_id: int) -> bool:
        """Return True if the topic belongs to a held shard."""
        return topic_id % self.count in self.held

    @classmethod
    def of(cls, count: int, held: Collection[int]) -> Shards:
        """Return the shards `held`, possibly none, out of `count`. Raises ValueError unless each number is within 0..`count` - 1."""
        if count < 1 or any(not 0 <= shard < count for shard in held):
            raise ValueError(f"shards {sorted(held)} are not all within 0..{count - 1}")
        return cls(count, frozenset(held))

    @property
    def parameters(self) -> dict[str, object]:
        """Bound parameters of the filter on topic ids."""
        return {"shard_count": self.count, "shards": sorted(self.held)}


def filter_of(shards: Shards | None) -> dict[str, object]:
    """Return the bound parameters of a filter that None switches off."""
    return {"shard_count": None, "shards": None} if shards is None else shards.parameters
