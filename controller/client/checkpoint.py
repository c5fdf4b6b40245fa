"""Represents the position of an application in a topic as one value: a position in every segment that the
topic had at one epoch.

A segment is either done or has a position. A position is that of the last delivered message, a place before
the first message, or None for the beginning of the segment. The application stores the value, as bytes, with
its results. In a group of consumers each member has a value of its own, and `merged` computes the position of the
group: which position of a segment counts if several members have one.

If logs have timelines, a position names the timeline of its log. A log that became shorter is then read on
from the point where its history leaves that of the position.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Self

from controller.client.arguments import checked, checks_arguments
from controller.dataplane.log_client import Position
from controller.domain.errors import InvalidInput
from controller.domain.formatting import shown
from controller.domain.utf8 import utf8
from controller.domain.whole_numbers import MOST, from_digits, whole

VERSION, OF_A_MEMBER = 1, 2
"""Versions of the format of `to_bytes`. The checkpoint of a group member also has generations, which older
libraries cannot read.
"""
MOST_DONE = 2**22
"""Largest number of done segments in a checkpoint. A damaged checkpoint could name more than fit into
memory.
"""


@checks_arguments
@dataclass(frozen=True)
class Checkpoint:
    """A position in every segment of a topic. Immutable, safe to share between threads. The constructor raises
    InvalidInput for a segment with a generation and no position.
    """

    topic_id: int
    """Number of the topic."""
    topic: str
    """Full name of the topic."""
    epoch: int
    """Epoch of the layout that the position is in."""
    positions: Mapping[int, Position | None]
    """Position of each segment that is not read to its end; None: its beginning."""
    done: frozenset[int]
    """Segments that are read to their end."""
    generations: Mapping[int, int] = field(default_factory=dict)
    """Generation at which a member of a group acquired each of its segments. Of two checkpoints with one
    segment, the later owner's position counts.
    """

    def __post_init__(self) -> None:
        if missing := self.generations.keys() - self.positions.keys():
            raise InvalidInput(
                f"segment {min(missing)} has a generation and no position; give the position, or no generation"
            )

    def to_bytes(self) -> bytes:
        """Return the checkpoint as bytes, to be stored. Their form is private to this library."""
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
        """Return the checkpoint that is stored in `kept`, bytes that `to_bytes` returned, also in an earlier version
        of this library. Raises InvalidInput for other bytes, for a damaged checkpoint, and for a checkpoint that a
        newer library has written in a later format.
        """
        try:
            document = json.loads(kept, object_pairs_hook=_without_repeats)
            version = whole(document["cleave_checkpoint"], "version")
        except (ValueError, KeyError, TypeError, RecursionError, InvalidInput):
            raise InvalidInput(
                f"{shown(kept)} is not a checkpoint; give the bytes that `Checkpoint.to_bytes` returned"
            ) from None
        if version not in (VERSION, OF_A_MEMBER):
            raise InvalidInput(
                f"a checkpoint has version {shown(version)}, and this library reads versions up to {OF_A_MEMBER}; install a newer library"
            )
        try:
            return cls._from_document(document)
        except (ValueError, KeyError, TypeError, AttributeError, InvalidInput) as error:
            raise InvalidInput(f"the checkpoint is damaged ({error}); give an earlier checkpoint") from None

    @classmethod
    def _from_document(cls, document: Mapping[str, Any]) -> Self:
        """Return the checkpoint of the parsed JSON of `to_bytes`, whose version was checked. Raises
        ValueError, KeyError, TypeError, AttributeError or InvalidInput for a damaged document.
        """
        positions = {_segment_id(i): _position(at) for i, at in document["positions"].items()}
        done = _segments_of(document["done"])
        if done & positions.keys():
            raise ValueError(
                f"segment {min(done & positions.keys())} is listed both as done and with a position"
            )
        generations = {
            _segment_id(i): whole(at, "generation") for i, at in document.get("generations", {}).items()
        }
        topic_id, epoch = whole(document["topic_id"], "topic_id"), whole(document["epoch"], "epoch")
        return cls(topic_id, utf8(document["topic"], "topic").decode(), epoch, positions, done, generations)


@checked
def merged(kept: Iterable[Checkpoint]) -> Checkpoint:
    """Return the checkpoint of a group whose members have stored the checkpoints `kept`, one or more. The result has
    the highest epoch.

    A segment that is done in any of the checkpoints is done in the result. The position of any other segment is that
    of its latest owner: the position with the highest generation. A position without a generation counts as earlier
    than every position with a generation. Of equal generations the later position counts; None, the beginning, is the
    earliest.

    Raises InvalidInput for checkpoints of different topics, and if `kept` is empty.
    """
    values = list(kept)
    if not values:
        raise InvalidInput("no checkpoint to merge; give at least one")
    newest = max(values, key=lambda value: value.epoch)
    if any(value.topic_id != newest.topic_id for value in values):
        raise InvalidInput("checkpoints of different topics; give those of one group")
    done = frozenset[int]().union(*(value.done for value in values))
    latest: dict[int, tuple[int, Position]] = {}
    positions: dict[int, Position | None] = {}
    for value in values:
        for segment_id, position in value.positions.items():
            owner_and_position = value.generations.get(segment_id, 0), position or ()
            if segment_id not in done and owner_and_position >= latest.get(segment_id, owner_and_position):
                latest[segment_id], positions[segment_id] = owner_and_position, position
    generations = {i: generation for i, (generation, _) in latest.items() if generation}
    return Checkpoint(newest.topic_id, newest.topic, newest.epoch, positions, done, generations)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of the names and values of a JSON object. Raises ValueError for a repeated name,
    because one of its values would be lost.
    """
    document = dict(pairs)
    if len(document) < len(pairs):
        raise ValueError("a name is repeated in an object")
    return document


def _segment_id(text: str) -> int:
    """Return the segment id that the decimal digits of `text` name. Raises ValueError for any other text, and
    for leading zeros.
    """
    number = from_digits(text)
    if number is None or str(number) != text:
        raise ValueError(f"segment {shown(text)}")
    return number


def _segments_of(runs: Any) -> frozenset[int]:
    """Return the ids of the segments in `runs`, a list of pairs as `_runs` returns them: the first and the last id of
    each run, both inclusive.

    Raises ValueError for runs that overlap or are not in ascending order, and for more than `MOST_DONE` segments in
    all. The number is checked before the ids are created. Raises InvalidInput for an id that is not a valid number,
    and ValueError or TypeError for a value that is not a list of pairs.
    """
    pairs = [
        (whole(first, "first segment"), whole(last, "last segment", least=first)) for first, last in runs
    ]
    if any(later[0] <= earlier[1] for earlier, later in pairwise(pairs)):
        raise ValueError("a segment is done twice")
    if sum(last - first + 1 for first, last in pairs) > MOST_DONE:
        raise ValueError(f"more than {MOST_DONE} segments are done")
    return frozenset(i for first, last in pairs for i in range(first, last + 1))


def _position(at: Any) -> Position | None:
    """Return the position of a JSON value: a list of whole numbers that is not empty, or None for the
    beginning of the segment. Raises ValueError or InvalidInput for another value.
    """
    if at is None:
        return None
    if not at or not isinstance(at, list):
        raise ValueError(f"position {shown(at)}")
    return tuple(whole(part, "a part of a position", least=-MOST) for part in at)


def _runs(numbers: frozenset[int]) -> list[tuple[int, int]]:
    """Return the runs of successive numbers, in ascending order, each as its first and last number; both are
    inclusive. `1, 2, 3, 7` gives `(1, 3), (7, 7)`, and no numbers give an empty list. Runs are short to store: the
    done segments of a topic that was reshaped often are long runs.
    """
    ordered = sorted(numbers)
    breaks = [(a, b) for a, b in pairwise(ordered) if b != a + 1]
    return list(
        zip([*ordered[:1], *(b for _, b in breaks)], [*(a for a, _ in breaks), *ordered[-1:]], strict=True)
    )
