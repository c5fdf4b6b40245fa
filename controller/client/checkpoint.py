"""Where an application is in a topic, as one value: a place in every segment that the topic had at one epoch.

A segment is done, or has a position: that of the last message handed out, a place before the first one, or None for its very
beginning. The value is the application's to keep, as bytes, beside its results. A group of consumers has one value for each member,
which say together where the group is (`merged`). A position names the timeline of its log where logs have timelines, so a log that
became shorter is read on where its history leaves that of the position.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Self

from controller.dataplane.base import Position
from controller.domain.errors import InvalidInput
from controller.domain.shown import shown

VERSION, OF_A_MEMBER = 1, 2
"""Of what `to_bytes` gives; that of a member of a group has generations, too, which an older library would not know of."""


@dataclass(frozen=True)
class Checkpoint:
    """Immutable; equal where the places are."""

    topic_id: int
    topic: str
    epoch: int
    positions: Mapping[int, Position | None]
    """Of each segment that is not read to its end."""
    done: frozenset[int]
    generations: Mapping[int, int] = field(default_factory=dict)
    """Of the segments of a group's member when it got each; of two values that name one the later owner's is right."""

    def to_bytes(self) -> bytes:
        """To keep; what is in it is this library's affair."""
        document: dict[str, object] = {
            "cleave_checkpoint": OF_A_MEMBER if self.generations else VERSION,
            "topic_id": self.topic_id,
            "topic": self.topic,
            "epoch": self.epoch,
            "positions": {str(i): at for i, at in sorted(self.positions.items())},
            "done": _runs(self.done),
        }
        if self.generations:
            document["generations"] = {str(i): at for i, at in sorted(self.generations.items())}
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
        if version not in (VERSION, OF_A_MEMBER):
            raise InvalidInput(
                f"a checkpoint of version {shown(version)}, and this library reads up to {OF_A_MEMBER}; install a newer one"
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
        generations = {int(i): int(at) for i, at in document.get("generations", {}).items()}
        if generations.keys() - positions.keys():
            raise ValueError(f"segment {min(generations.keys() - positions.keys())} has no position")
        topic_id, epoch = int(document["topic_id"]), int(document["epoch"])
        return cls(topic_id, str(document["topic"]), epoch, positions, done, generations)


def merged(kept: Iterable[Checkpoint]) -> Checkpoint:
    """Where a group is whose members have kept these, one or more; one without generations is from before all of them.

    What anybody has read to its end is done. Any other segment is where its latest owner left it. Raises InvalidInput for values of
    different topics.
    """
    values = list(kept)
    newest = max(values, key=lambda one: one.epoch)
    if any(one.topic_id != newest.topic_id for one in values):
        raise InvalidInput("checkpoints of different topics; give those of one group")
    done = frozenset[int]().union(*(one.done for one in values))
    found: dict[int, tuple[int, Position]] = {}
    positions: dict[int, Position | None] = {}
    for one in values:
        for segment_id, position in one.positions.items():
            place = one.generations.get(segment_id, 0), position or ()
            if segment_id not in done and place >= found.get(segment_id, place):
                found[segment_id], positions[segment_id] = place, position
    generations = {i: generation for i, (generation, _) in found.items() if generation}
    return Checkpoint(newest.topic_id, newest.topic, newest.epoch, positions, done, generations)


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
