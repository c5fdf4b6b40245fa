"""Merges the checkpoints of a group's members into one: which position of a segment counts if several members
have one.
"""

from __future__ import annotations

from collections.abc import Iterable

from controller.client.arguments import checked
from controller.client.checkpoint import Checkpoint
from controller.dataplane.log_client import Position
from controller.domain.errors import InvalidInput


@checked
def merged(kept: Iterable[Checkpoint]) -> Checkpoint:
    """Return the position of a group whose members have stored these checkpoints, one or more.

    A segment that any member has read to its end is done. Any other segment is where its latest owner left
    it, the member with the highest generation of the segment; a position without a generation counts as
    earlier than every position with a generation. Of equal generations the later position counts. The result
    has the highest epoch. Raises InvalidInput for checkpoints of different topics, and if there is no
    checkpoint.
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
