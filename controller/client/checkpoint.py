"""Where an application is in a topic, as one value: a place in every segment that the topic had at one epoch.

A segment is done, or has a position: that of the last message handed out, a place before the first one, or None for its very
beginning. The value is the application's to keep, as bytes, beside its results.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

from controller.dataplane.base import Position
from controller.domain.errors import InvalidInput
from controller.domain.shown import shown

VERSION = 1


@dataclass(frozen=True)
class Checkpoint:
    """Immutable; equal where the places are."""

    topic_id: int
    topic: str
    epoch: int
    positions: Mapping[int, Position | None]
    """Of each segment that is not read to its end."""
    done: frozenset[int]

    def to_bytes(self) -> bytes:
        """To keep; what is in it is this library's affair."""
        document = {
            "cleave_checkpoint": VERSION,
            "topic_id": self.topic_id,
            "topic": self.topic,
            "epoch": self.epoch,
            "positions": {str(i): at for i, at in sorted(self.positions.items())},
            "done": _runs(self.done),
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, kept: bytes) -> Self:
        """What `to_bytes` gave. Raises InvalidInput for anything else, and for what a newer version wrote."""
        try:
            document = json.loads(kept)
            version = document["cleave_checkpoint"]
        except (ValueError, KeyError, TypeError):
            raise InvalidInput(
                f"{shown(kept)} is no checkpoint; give what `Checkpoint.to_bytes` gave"
            ) from None
        if version != VERSION:
            raise InvalidInput(
                f"a checkpoint of version {shown(version)}, and this library reads {VERSION}; install a newer one"
            )
        try:
            return cls._from_document(document)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(f"a checkpoint that is damaged ({error}); give an earlier one") from None

    @classmethod
    def _from_document(cls, document: Mapping[str, Any]) -> Self:
        positions = {int(i): _position(at) for i, at in document["positions"].items()}
        done = frozenset(i for first, last in document["done"] for i in range(int(first), int(last) + 1))
        if done & positions.keys():
            raise ValueError(f"segment {min(done & positions.keys())} is done and is not")
        return cls(int(document["topic_id"]), str(document["topic"]), int(document["epoch"]), positions, done)


def _position(at: Any) -> Position | None:
    if at is None:
        return None
    if not at or not all(type(part) is int for part in at):
        raise ValueError(f"position {at!r}")
    return tuple(at)


def _runs(numbers: frozenset[int]) -> list[tuple[int, int]]:
    """First and last of each run of successive numbers: a topic that was reshaped often has long ones."""
    found = sorted(numbers)
    breaks = [(a, b) for a, b in pairwise(found) if b != a + 1]
    return list(
        zip([*found[:1], *(b for _, b in breaks)], [*(a for a, _ in breaks), *found[-1:]], strict=True)
    )
