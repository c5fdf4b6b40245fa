"""Reconstructs the layout of a topic whose logs are ahead of the journal, from the origins that the logs record. Pure.

After a restore or an asynchronous fail-over the journal lacks the latest reshapes, while their logs exist. A reshape
took effect if a parent is closed: a parent is closed only after the fence of its operation, from where every runner
goes forward. A reshape also took effect if a child contains messages: clients append to a child only after they
received the layout in which the child is active. In this case the parents are open if the logs went back in time
together with the journal. All other logs (children of an operation that never reached its fence) are left unchanged.
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
    """One log of the topic as the data plane reports it. `is_closed`: True if the log is terminated, or was deleted
    after all its messages had been read.
    """

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
    """The layout that the logs show (`layout`), and what distinguishes it from the journal's layout.

    If `problems`, the contradictions as texts, is not empty, the logs do not determine a layout, and no part of the
    plan may be performed.
    """

    layout: SegmentLayout
    added: Mapping[int, SegmentLog] = field(default_factory=dict)
    """Segments that the journal lacks, by id, including those that are sealed in the reconstructed layout."""
    sealed: tuple[int, ...] = ()
    """Ids of segments that are ACTIVE in the journal and that other segments have replaced."""
    to_terminate: tuple[str, ...] = ()
    """Logs of sealed segments that still accept appends, because their operation stopped during its fence."""
    pruned: tuple[int, ...] = ()
    """Ids of the sealed segments of the journal that were pruned. The layout still has them."""
    problems: tuple[str, ...] = ()

    @property
    def is_needed(self) -> bool:
        """True if the logs show another layout than the journal has, or contradict each other or the journal."""
        return bool(self.added or self.sealed or self.pruned or self.problems)


def plan_recovery(
    journal: SegmentLayout,
    logs: Mapping[int, SegmentLog],
    unrecorded: Sequence[SegmentLog],
    now: int,
    *,
    highest_id: int = -1,
    missing: Collection[int] = (),
) -> RecoveryPlan:
    """Return the layout that the logs of a topic show, and the changes that lead from the journal's layout to it.
    Nothing is changed. Contradictions between the logs, and invariants that the layout would violate, are returned as
    `problems`; nothing is raised for them.

    `journal` has the segments that are not pruned, and `logs` has the logs of these segments by segment id.
    `unrecorded` are logs that no segment of the journal has: operations that the journal lost created them, or live
    operations that the journal has in an earlier state. `highest_id` is the highest segment id in the names of the
    listed logs; -1 if there is none. `missing` are the ids of segments of the journal whose logs were deleted. `now` is in
    milliseconds since the Unix epoch.

    The next segment id of the returned layout is above every id of the logs and above `highest_id`. Its epoch is
    above every epoch that the topic can have had, even if nothing has to change (`RecoveryPlan.is_needed` is False).
    """
    effective, to_terminate, problems = _effective_logs(journal, logs, unrecorded)
    epoch = _unused_epoch(journal, [*logs.values(), *unrecorded])
    replaced_ids = {i for log in effective for i in log.parent_ids}
    sealed = tuple(sorted(i for i, s in journal.segments.items() if s.is_active and i in replaced_ids))
    sealed += _replaced_by_descendants(journal, logs, effective, sealed)
    segments = {i: _sealed(s, epoch, now) if i in sealed else s for i, s in journal.segments.items()}
    for log in sorted(effective, key=lambda log: log.segment_id):
        segments[log.segment_id] = _segment(
            log, segments, epoch, now, is_sealed=log.segment_id in replaced_ids
        )
    highest_id = max((highest_id, *(log.segment_id for log in unrecorded)))
    layout = SegmentLayout.from_selection(
        epoch, max(journal.next_segment_id, highest_id + 1), segments.values()
    )
    if not problems and (effective or sealed):
        problems = _violated_invariants(layout)
    return RecoveryPlan(
        layout,
        {log.segment_id: log for log in effective},
        tuple(sorted(sealed)),
        tuple(sorted(to_terminate)),
        _pruned(segments, missing),
        tuple(problems),
    )


def _pruned(segments: Mapping[int, Segment], missing: Collection[int]) -> tuple[int, ...]:
    """Return the ids of the sealed segments whose logs are `missing`, and so are the logs of all their ancestors in
    `segments`: ancestors are pruned first, and a log is deleted after the prune of its segment. Ascending.
    """
    pruned: set[int] = set()
    for i in sorted(missing):  # The id of a parent is lower.
        if not segments[i].is_active and pruned.issuperset(segments[i].parent_ids):
            pruned.add(i)
    return tuple(sorted(pruned))


def _effective_logs(
    journal: SegmentLayout, logs: Mapping[int, SegmentLog], unrecorded: Sequence[SegmentLog]
) -> tuple[list[SegmentLog], set[str], list[str]]:
    """Return three results: the unrecorded logs that belong to the layout; the names of the logs of their parents
    that are not closed and must be terminated; and the contradictions as texts.

    The logs of one operation belong to the layout together or not at all. They belong to the layout if the operation
    took effect (`_took_effect`) and none of their parents has been replaced, neither in the journal nor by an
    operation of a higher `_precedence`. A contradiction is a log that contains messages but does not belong to the
    layout, or two logs with the same segment id.
    """
    by_id = {**logs, **{log.segment_id: log for log in unrecorded}}
    groups: defaultdict[str, list[SegmentLog]] = defaultdict(list)
    for log in unrecorded:
        groups[log.token].append(log)
    effective: list[SegmentLog] = []
    to_terminate: set[str] = set()
    problems = _conflicting_ids(logs, unrecorded)
    replaced_ids = {i for i, segment in journal.segments.items() if not segment.is_active}
    for children in sorted(groups.values(), key=_precedence, reverse=True):
        parent_ids = {i for child in children for i in child.parent_ids}
        parents = [by_id[i] for i in sorted(parent_ids & by_id.keys())]
        used_logs = [log.backing_topic for log in children if log.has_carried_messages]
        if parent_ids & replaced_ids:
            problems += [
                f"{name} holds messages, but other logs replaced its parents, too" for name in used_logs
            ]
        elif not _took_effect(journal, logs, children, parents):
            problems += [
                f"{name} holds messages, but what it replaces still accepts appends" for name in used_logs
            ]
        else:
            replaced_ids |= parent_ids
            effective += children
            to_terminate |= {log.backing_topic for log in parents if not log.is_closed}
    return effective, to_terminate, problems


def _took_effect(
    journal: SegmentLayout,
    logs: Mapping[int, SegmentLog],
    children: Sequence[SegmentLog],
    parents: Sequence[SegmentLog],
) -> bool:
    """Return True if the operation that created the logs `children` took effect. `parents`: the logs of the
    children's parents that are still known. `logs`: the logs of the journal's segments, by segment id; the log of
    every active segment must be present.

    If a parent is known, the operation took effect if a known parent is closed, or if a child has carried messages
    and the children have exactly the range of the known parents. If no parent is known, the operation took effect
    unless the journal has an active segment that overlaps the children and whose log is open.
    """
    if parents:
        was_committed = any(child.has_carried_messages for child in children) and _cover(children, parents)
        return was_committed or any(parent.is_closed for parent in parents)
    return all(
        logs[segment.segment_id].is_closed
        for segment in journal.active
        if any(child.hash_range.overlaps(segment.hash_range) for child in children)
    )


def _cover(children: Sequence[SegmentLog], parents: Sequence[SegmentLog]) -> bool:
    """Return True if the children together have exactly the hash ranges of the parents."""
    span = _span(children)
    return span is not None and span == _span(parents)


def _span(logs: Sequence[SegmentLog]) -> HashRange | None:
    """Return the hash range that the logs tile. None if the logs, of which there must be one or more, leave a gap or
    overlap.
    """
    ordered = sorted(log.hash_range for log in logs)
    if not all(low.is_adjacent_to(high) for low, high in pairwise(ordered)):
        return None
    return HashRange(ordered[0].start, ordered[-1].end)


def _conflicting_ids(logs: Mapping[int, SegmentLog], unrecorded: Sequence[SegmentLog]) -> list[str]:
    """Return a text for each log that has the same segment id as an earlier log of another name; empty if there is
    none.
    """
    owners = {i: log.backing_topic for i, log in logs.items()}
    problems = []
    for log in unrecorded:
        owner = owners.setdefault(log.segment_id, log.backing_topic)
        if owner != log.backing_topic:
            problems.append(f"{owner} and {log.backing_topic} share segment id {log.segment_id}")
    return problems


def _precedence(children: Sequence[SegmentLog]) -> tuple[bool, int]:
    """Return the sort key of an operation among operations on the same parents; the greatest key has precedence.
    `children` are the logs that the operation created. An operation whose logs have carried messages comes first, then
    the operation with the highest segment id.
    """
    return any(log.has_carried_messages for log in children), max(log.segment_id for log in children)


def _unused_epoch(journal: SegmentLayout, logs: Iterable[SegmentLog]) -> int:
    """Return an epoch above every epoch that the topic can have had.

    Each epoch after the newest recorded one was created by a reshape, which used at least one segment id, or by a
    prune, which ended at least one segment.
    """
    logs = list(logs)
    newest = max((log.epoch for log in logs), default=0)
    ids = max((journal.next_segment_id, *(log.segment_id + 1 for log in logs)))
    return max(journal.epoch, newest) + 2 * ids + 1


def _replaced_by_descendants(
    journal: SegmentLayout,
    logs: Mapping[int, SegmentLog],
    effective: Sequence[SegmentLog],
    sealed: Collection[int],
) -> tuple[int, ...]:
    """Return the ids of ACTIVE segments of the journal that descendants have replaced although no log names these
    segments as parents, because the segments in between were pruned.

    Such a segment is not in `sealed`, its log is closed, and its range overlaps the range of a log of `effective`
    whose segment id the journal has not reserved yet.
    """
    covering = [log for log in effective if log.segment_id >= journal.next_segment_id]
    return tuple(
        i
        for i, segment in sorted(journal.segments.items())
        if segment.is_active
        and i not in sealed
        and i in logs
        and logs[i].is_closed
        and any(log.hash_range.overlaps(segment.hash_range) for log in covering)
    )


def _sealed(segment: Segment, epoch: int, now: int) -> Segment:
    """Return the segment as SEALED at this epoch and at the time `now`, in milliseconds since the Unix epoch."""
    return replace(segment, state=SegmentState.SEALED, sealed_epoch=epoch, sealed_at_ms=now)


def _segment(
    log: SegmentLog, segments: Mapping[int, Segment], epoch: int, now: int, *, is_sealed: bool
) -> Segment:
    """Return the segment of an unrecorded log, created in the recovered epoch; with `is_sealed`, also sealed in this
    epoch. Parents that no longer exist are left out. `now` is in milliseconds since the Unix epoch.
    """
    parents = tuple(i for i in log.parent_ids if i in segments)
    depth = SegmentGraph(epoch, 0, segments).child_merge_depth(log.parent_ids)
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


def _violated_invariants(layout: SegmentLayout) -> list[str]:
    """Return the first violated invariant as text in a list; an empty list if the layout is valid."""
    try:
        layout.check_invariants()
    except InvariantViolated as error:
        # The advice after the semicolon applies to a stored layout, not to a planned one.
        return [error.message.partition(";")[0]]
    return []
