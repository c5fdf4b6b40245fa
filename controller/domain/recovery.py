"""Rebuilds the layout of a topic whose logs are ahead of the journal, from what the logs say about themselves. Pure.

After a restore or an asynchronous fail-over the journal lacks the newest reshapes, while their logs exist. A reshape took
effect if a parent is closed: a parent is closed only after the fence of its operation, from where every runner goes
forward. A reshape also took effect if a child holds messages: clients append to a child only after they received the layout
in which the child is active. The parents are open in this case if the logs went back in time together with the journal.
Everything else (children of an operation that never reached its fence) is left as it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from controller.domain.errors import InvariantViolated
from controller.domain.hash_range import HashRange
from controller.domain.layout import SegmentLayout
from controller.domain.segment import Segment, SegmentState
from controller.domain.segment_graph import SegmentGraph


@dataclass(frozen=True, slots=True)
class SegmentLog:
    """One log of the topic as the data plane shows it. `is_closed`: terminated, or deleted after it had been read."""

    segment_id: int
    hash_range: HashRange
    backing_topic: str
    is_closed: bool
    has_carried_messages: bool
    token: str = ""
    """Token of the operation that created the log; empty for logs of segments that the journal has."""
    epoch: int = 0
    parent_ids: tuple[int, ...] = ()
    bucket_splits: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """The layout that the logs show, as a difference to the journal's.

    `problems` is empty if the logs tell enough; otherwise nothing of the plan may be carried out.
    """

    layout: SegmentLayout
    added: Mapping[int, SegmentLog] = field(default_factory=dict)
    """Segments that the journal lacks, by id, those that are sealed in the new layout included."""
    sealed: tuple[int, ...] = ()
    """Segments that the journal has as ACTIVE and that other segments have replaced."""
    to_terminate: tuple[str, ...] = ()
    """Logs of sealed segments that still accept appends: their operation stopped in the middle of its fence."""
    problems: tuple[str, ...] = ()

    @property
    def is_needed(self) -> bool:
        """True if the logs are ahead of the journal."""
        return bool(self.added or self.sealed or self.problems)


def plan_recovery(
    journal: SegmentLayout,
    logs: Mapping[int, SegmentLog],
    found: Sequence[SegmentLog],
    now: int,
    *,
    highest_id: int = -1,
) -> RecoveryPlan:
    """Return the layout that the logs show. Its next segment id is above `highest_id`, too.

    `journal` holds the segments that are not pruned, `logs` their logs by segment id. `found` are logs that no segment of
    the journal has: created by operations that the journal lost, or by live operations that it has in an earlier state.
    `now` in milliseconds since the Unix epoch.
    """
    taken, to_terminate, problems = _effective(journal, logs, found)
    epoch = _first_epoch_nobody_has_seen(journal, [*logs.values(), *found])
    replaced = {i for log in taken for i in log.parent_ids}
    sealed = tuple(sorted(i for i, s in journal.segments.items() if s.is_active and i in replaced))
    sealed += _replaced_by_descendants(journal, logs, taken, sealed)
    segments = {i: _sealed(s, epoch, now) if i in sealed else s for i, s in journal.segments.items()}
    for log in sorted(taken, key=lambda one: one.segment_id):
        segments[log.segment_id] = _segment(log, segments, epoch, now, is_sealed=log.segment_id in replaced)
    highest_id = max((highest_id, *(one.segment_id for one in found)))
    layout = SegmentLayout.from_selection(
        epoch, max(journal.next_segment_id, highest_id + 1), segments.values()
    )
    if not problems and (taken or sealed):
        problems = _broken_laws(layout)
    return RecoveryPlan(
        layout,
        {log.segment_id: log for log in taken},
        tuple(sorted(sealed)),
        tuple(sorted(to_terminate)),
        tuple(problems),
    )


def _effective(
    journal: SegmentLayout, logs: Mapping[int, SegmentLog], found: Sequence[SegmentLog]
) -> tuple[list[SegmentLog], set[str], list[str]]:
    """The found logs that belong to the layout, parents that are still to be closed, and what contradicts itself."""
    by_id = {**logs, **{one.segment_id: one for one in found}}
    groups: defaultdict[str, list[SegmentLog]] = defaultdict(list)
    for log in found:
        groups[log.token].append(log)
    taken: list[SegmentLog] = []
    to_terminate: set[str] = set()
    problems = _shared_ids(logs, found)
    replaced = {i for i, segment in journal.segments.items() if not segment.is_active}
    for children in sorted(groups.values(), key=_used_and_newest, reverse=True):
        parent_ids = {i for child in children for i in child.parent_ids}
        parents = [by_id[i] for i in sorted(parent_ids & by_id.keys())]
        used = [one.backing_topic for one in children if one.has_carried_messages]
        if parent_ids & replaced:
            problems += [f"{name} holds messages, but other logs replaced its parents, too" for name in used]
        elif not _took_effect(journal, logs, children, parents):
            problems += [
                f"{name} holds messages, but what it replaces still accepts appends" for name in used
            ]
        else:
            replaced |= parent_ids
            taken += children
            to_terminate |= {one.backing_topic for one in parents if not one.is_closed}
    return taken, to_terminate, problems


def _took_effect(
    journal: SegmentLayout,
    logs: Mapping[int, SegmentLog],
    children: Sequence[SegmentLog],
    parents: Sequence[SegmentLog],
) -> bool:
    """Return True if a parent is closed, or if the children cover their parents and a child holds messages.

    If no parent is left, every segment that the journal has in their place must be closed.
    """
    if parents:
        was_committed = any(child.has_carried_messages for child in children) and _cover(children, parents)
        return was_committed or any(one.is_closed for one in parents)
    return all(
        logs[segment.segment_id].is_closed
        for segment in journal.active
        if any(one.hash_range.overlaps(segment.hash_range) for one in children)
    )


def _cover(children: Sequence[SegmentLog], parents: Sequence[SegmentLog]) -> bool:
    """Return True if the children together have exactly the hash ranges of the parents."""
    span = _span(children)
    return span is not None and span == _span(parents)


def _span(logs: Sequence[SegmentLog]) -> HashRange | None:
    """Return the hash range that the logs tile. None if they leave a gap or overlap."""
    ordered = sorted(log.hash_range for log in logs)
    if not all(left.is_adjacent_to(right) for left, right in pairwise(ordered)):
        return None
    return HashRange(ordered[0].start, ordered[-1].end)


def _shared_ids(logs: Mapping[int, SegmentLog], found: Sequence[SegmentLog]) -> list[str]:
    owners = {i: log.backing_topic for i, log in logs.items()}
    problems = []
    for log in found:
        other = owners.setdefault(log.segment_id, log.backing_topic)
        if other != log.backing_topic:
            problems.append(f"{other} and {log.backing_topic} share segment id {log.segment_id}")
    return problems


def _used_and_newest(children: Sequence[SegmentLog]) -> tuple[bool, int]:
    """Of two operations on the same parents the one whose logs were used counts, then the later one."""
    return any(one.has_carried_messages for one in children), max(one.segment_id for one in children)


def _first_epoch_nobody_has_seen(journal: SegmentLayout, logs: Iterable[SegmentLog]) -> int:
    """Return an epoch above every epoch that the topic can have had.

    Each epoch after the newest one that a log recorded was made by a reshape, which used up at least one segment id, or
    by a prune, which ended at least one segment.
    """
    logs = list(logs)
    newest = max((one.epoch for one in logs), default=0)
    ids = max((journal.next_segment_id, *(one.segment_id + 1 for one in logs)))
    return max(journal.epoch, newest) + 2 * ids + 1


def _replaced_by_descendants(
    journal: SegmentLayout,
    logs: Mapping[int, SegmentLog],
    taken: Sequence[SegmentLog],
    sealed: Collection[int],
) -> tuple[int, ...]:
    """ACTIVE segments whose log is gone and whose range later segments cover: their children were pruned as well."""
    covering = [log for log in taken if log.segment_id >= journal.next_segment_id]
    return tuple(
        i
        for i, segment in sorted(journal.segments.items())
        if segment.is_active
        and i not in sealed
        and i in logs
        and logs[i].is_closed
        and any(one.hash_range.overlaps(segment.hash_range) for one in covering)
    )


def _sealed(segment: Segment, epoch: int, now: int) -> Segment:
    return replace(segment, state=SegmentState.SEALED, sealed_epoch=epoch, sealed_at_ms=now)


def _segment(
    log: SegmentLog, known: Mapping[int, Segment], epoch: int, now: int, *, is_sealed: bool
) -> Segment:
    """The segment behind a found log, made in the recovered epoch. Parents that no longer exist are left out."""
    parents = tuple(i for i in log.parent_ids if i in known)
    depth = SegmentGraph(epoch, 0, known).child_merge_depth(log.parent_ids)
    segment = Segment(
        log.segment_id,
        log.hash_range,
        parent_ids=parents,
        created_epoch=epoch,
        created_at_ms=now,
        bucket_splits=log.bucket_splits,
        merge_depth=depth,
    )
    return _sealed(segment, epoch, now) if is_sealed else segment


def _broken_laws(layout: SegmentLayout) -> list[str]:
    try:
        layout.check_invariants()
    except InvariantViolated as error:
        return [
            error.message.partition(";")[0]
        ]  # its advice is for a layout that was stored, not for one that is planned
    return []
