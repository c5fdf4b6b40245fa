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
