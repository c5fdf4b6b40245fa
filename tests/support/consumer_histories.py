"""Random histories of a topic and its consumers, and the moves of an assignment in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from random import Random

from controller.domain.assignment import Assignment, SegmentBucket
from controller.domain.drain_barrier import candidates
from controller.domain.errors import InvalidLayoutChange
from controller.domain.layout import SegmentLayout
from tests.support.least_moves import least_moves, moves

EVENTS = ("join", "leave", "split", "merge", "rebucket")

Assign = Callable[[SegmentLayout, Collection[int], Collection[str], Mapping[SegmentBucket, str]], Assignment]


@dataclass(frozen=True)
class Step:
    """An event, and the topic after it; every sealed segment is drained."""

    event: str
    layout: SegmentLayout
    consumers: frozenset[str]

    @property
    def drained(self) -> set[int]:
        return {i for i, segment in self.layout.segments.items() if not segment.is_active}

    @property
    def regime(self) -> str:
        return "whole_segments" if len(self.consumers) <= len(self.layout.active) else "shared_segments"


@dataclass
class BucketMoves:
    """Number of moved buckets, the smallest possible number, and the steps with more moves than that."""

    steps: int = 0
    moves: int = 0
    least: int = 0
    steps_above_least: int = 0

    def add(self, moves: int, least: int) -> None:
        self.steps += 1
        self.moves += moves
        self.least += least
        self.steps_above_least += moves > least


def history(random: Random, steps: int, *, max_segments: int, max_consumers: int) -> Iterator[Step]:
    """Yield the topic after its creation, then up to `steps` events."""
    segments = random.randint(1, max_segments // 2)
    layout = SegmentLayout.initial(segments, bucket_budget=random.randint(1, 16), now=0)
    consumers = frozenset(f"c{i:03}" for i in range(random.randint(1, max_consumers - 1)))
    yield Step("begin", layout, consumers)
    for now in range(1, steps + 1):
        event = random.choice(EVENTS)
        if event == "join" and len(consumers) < max_consumers:
            consumers |= {f"c{random.randrange(1000):03}"}
        elif event == "leave" and len(consumers) > 1:
            consumers -= {random.choice(sorted(consumers))}
        elif event in {"split", "merge", "rebucket"}:
            changed = _changed(random, layout, event, now, max_segments)
            if changed is layout:
                continue
            layout = changed
        else:
            continue
        yield Step(event, layout, consumers)


def _changed(random: Random, layout: SegmentLayout, event: str, now: int, max_segments: int) -> SegmentLayout:
    """Return the layout after the event, or the same layout if the event is impossible."""
    index = random.randrange(len(layout.active))
    segment_id = layout.active[index].segment_id
    try:
        if event == "rebucket":
            return layout.rebucket(segment_id, random.randint(1, 8), now)
        if event == "split":
            return layout.split(segment_id, now) if len(layout.active) < max_segments else layout
        if index + 1 == len(layout.active):
            return layout
        return layout.merge(segment_id, layout.active[index + 1].segment_id, now, 16)
    except InvalidLayoutChange:
        return layout


def play(
    steps: Iterable[Step], assign: Assign, moved: Mapping[tuple[str, str], BucketMoves] | None = None
) -> dict[tuple[str, str], BucketMoves]:
    """Return the moves and the fewest possible moves by regime and event, added to those of `moved`, which is not to be used afterwards.
    Each assignment begins with the owners that the previous one left.
    """
    counts: defaultdict[tuple[str, str], BucketMoves] = defaultdict(BucketMoves, moved or {})
    owners: dict[SegmentBucket, str] = {}
    for step in steps:
        shares = assign(step.layout, step.drained, step.consumers, owners)
        ready = candidates(step.layout, step.drained)
        least = least_moves(step.layout, ready, step.consumers, owners, share_buckets=True)
        counts[step.regime, step.event].add(moves(step.layout, owners, shares), least)
        owners = {unit: name for name, share in shares.items() for unit in share}
    return dict(counts)
