"""What can be wrong between the books and the data plane: kinds of findings, and the comparison itself.

Pure: it is given what was listed, what was seen of single logs, and the books before and after. A log is judged only if
the books before and after show it unchanged and idle.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from controller.dataplane.base import LogState
from controller.domain.segment import SegmentState
from controller.store.topics.backing_logs import BackingLog, Books

_DESCRIPTOR_AT_END = re.compile(r"([0-9a-f]{4}-[0-9a-f]{4}-([0-9]+))$")


class FindingKind(StrEnum):
    """What can be wrong between the books and the data plane, and what is done about it."""

    ORPHAN_LOG = "orphan-log"
    """No segment and no live operation has it: deleted through a tombstone."""
    FOREIGN_LOG = "foreign-log"
    """Cleave does not give such names, or never reserved its id: reported, left alone."""
    ACTIVE_MISSING = "active-missing"
    """Created again with the recorded subscriptions and those found on its parents."""
    ACTIVE_TERMINATED = "active-terminated"
    """Healed by a journalled reshape 1 → 1."""
    SEALED_OPEN = "sealed-open"
    """Terminated."""
    SEALED_MISSING = "sealed-missing"
    """Its data is gone: counted as drained, so that its children are handed out and it can be pruned."""
    CURSOR_MISSING = "cursor-missing"
    """Created at earliest."""
    CURSOR_UNRECORDED = "cursor-unrecorded"
    """An application's own, or left by a call held up on its way: reported, left alone."""

    @property
    def has_remedy(self) -> bool:
        """Whether a run puts it right; the others are for a person to judge."""
        return self not in (FindingKind.FOREIGN_LOG, FindingKind.CURSOR_UNRECORDED)


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference. `error` says why its remedy failed; a later run finds it again."""

    kind: FindingKind
    topic: str
    backing_topic: str
    segment_id: int | None = None
    subscription: str | None = None
    operation_id: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class PlaneView:
    """What the data plane showed before the books were locked."""

    listed: tuple[str, ...]
    states: Mapping[int, LogState]
    cursors: Mapping[int, frozenset[str]]
    books: Books
    """As they were before the looks at single logs. What changed since is not judged."""


def compare(
    topic: str, backing_topic: Callable[[str, str], str], seen: PlaneView, books: Books
) -> list[Finding]:
    """Every difference. `books` were read under the topic's lock, after everything in `seen`.

    `backing_topic` is the data plane's naming rule, which shows whether Cleave gave a log its name.
    """
    differences = _differences(topic, seen, books)
    if _is_elsewhere(seen, differences):
        count = len(seen.states)
        why = (
            f"none of the {count} logs of {topic} is on its data plane, so nothing is concluded from that: does the "
            "address name the cluster they are on? If they are truly lost, delete the topic"
        )
        differences = [replace(one, error=why) for one in differences]
    return [*_orphans(topic, backing_topic, seen, books), *differences]


def _is_elsewhere(seen: PlaneView, differences: Sequence[Finding]) -> bool:
    """Whether this looks like another cluster: unread logs are missing, and not one log is there.

    Making the active ones anew would be the first step to counting the others as read to their end.
    """
    loses_data = any(one.kind is FindingKind.SEALED_MISSING for one in differences)
    return loses_data and all(state is LogState.MISSING for state in seen.states.values())


def _orphans(
    topic: str, backing_topic: Callable[[str, str], str], seen: PlaneView, books: Books
) -> list[Finding]:
    known = {one.backing_topic for one in books.logs} | books.reserved | books.tombstoned
    found = []
    for name in seen.listed:
        if name in known:
            continue
        match = _DESCRIPTOR_AT_END.search(name)
        is_ours = match is not None and backing_topic(topic, match[1]) == name
        segment_id = int(match[2]) if match is not None and is_ours else None
        was_reserved = segment_id is not None and segment_id < books.next_segment_id
        kind = FindingKind.ORPHAN_LOG if was_reserved else FindingKind.FOREIGN_LOG
        found.append(Finding(kind, topic, name, segment_id))
    return found


def _differences(topic: str, seen: PlaneView, books: Books) -> list[Finding]:
    """Differences of every log that the books show unchanged and idle before and after it was looked at."""
    if books.topic_state != "live":
        return []
    before = {one.segment_id: one for one in seen.books.logs}
    found = []
    for one in books.logs:
        if before.get(one.segment_id) != one or one.is_busy:
            continue
        finding = Finding(FindingKind.ACTIVE_MISSING, topic, one.backing_topic, one.segment_id)
        kind = _kind_of_difference(one, seen.states[one.segment_id])
        if kind is not None:
            found.append(replace(finding, kind=kind))
        elif one.state is SegmentState.ACTIVE and not (
            books.changes_subscriptions or seen.books.changes_subscriptions
        ):
            found += _cursor_differences(finding, seen.cursors.get(one.segment_id), seen, books)
    return found


def _kind_of_difference(one: BackingLog, state: LogState) -> FindingKind | None:
    return {
        (SegmentState.ACTIVE, LogState.MISSING): FindingKind.ACTIVE_MISSING,
        (SegmentState.ACTIVE, LogState.TERMINATED): FindingKind.ACTIVE_TERMINATED,
        (SegmentState.SEALED, LogState.OPEN): FindingKind.SEALED_OPEN,
        (SegmentState.SEALED, LogState.MISSING): None if one.is_drained else FindingKind.SEALED_MISSING,
    }.get((one.state, state))


def _cursor_differences(
    of_log: Finding, there: frozenset[str] | None, seen: PlaneView, books: Books
) -> list[Finding]:
    if there is None:
        return []  # the log was missing at the first look
    wanted = books.subscriptions.keys() & seen.books.subscriptions.keys()
    recorded = books.subscriptions.keys() | seen.books.subscriptions.keys() | books.deleting_subscriptions
    return [
        replace(of_log, kind=kind, subscription=name)
        for kind, names in (
            (FindingKind.CURSOR_MISSING, wanted - there),
            (FindingKind.CURSOR_UNRECORDED, there - recorded),
        )
        for name in sorted(names)
    ]
