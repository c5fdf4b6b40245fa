"""One topic, or many: look at the data plane, lock and compare, put right what can be put right."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from sqlalchemy import Connection

from controller import telemetry
from controller.clock import to_ms
from controller.dataplane.base import DataPlane, LogReport, LogState, SetWiseDataPlane
from controller.dataplane.gates import GatedDataPlane
from controller.dataplane.layout_keeper import LayoutKeeper
from controller.domain.errors import CleaveError, DataPlaneUnavailable, StoreUnavailable, Unsupported
from controller.domain.log_origin import LogOrigin
from controller.domain.operation import Origin
from controller.domain.reshape import plan_heal
from controller.services.reconciler import ahead
from controller.services.reconciler.findings import Finding, FindingKind, PlaneView, compare
from controller.services.reconciler.gates import reconcile_gates
from controller.store import set_aside
from controller.store.journal import reshape_intents, tombstones
from controller.store.journal.operations import Request
from controller.store.journal.reshape_intents import ReshapeDraft
from controller.store.postgres.clock import database_now
from controller.store.postgres.engine import Store
from controller.store.set_aside import SetAside
from controller.store.shards import Shards
from controller.store.topics import (
    backing_logs,
    drains,
    foreign_logs,
    gates,
    holds,
    layouts,
    recovery,
    topics,
)
from controller.store.topics.backing_logs import Books
from controller.store.topics.foreign_logs import ForeignLog
from controller.store.topics.recovery import RecoveredLayout

log = telemetry.get_logger(__name__)

Some = TypeVar("Some")

TOPICS_A_LOOK = 100
"""Looked at together. Where one of them cannot be, the others of its look are looked at one by one."""
LOGS_A_CALL = 200
"""So many a data plane answers for within its time for one call."""
ROUNDS = 4
"""A recovery takes up to three: logs are terminated, the layout is rebuilt, the topic is compared once more."""


def reconcile_topics(
    store: Store,
    planes: Mapping[str, DataPlane],
    *,
    limit: int = 500,
    after: int = 0,
    shards: Shards | None = None,
    dry_run: bool = False,
) -> tuple[list[Finding], int | None]:
    """Findings of up to `limit` topics with id above `after`, and the id to continue after (None: that was all).

    All are looked at together, without a lock; those that show a difference are looked at again one by one, and put
    right. A topic whose data plane does not answer is logged and passed over. Raises StoreUnavailable only.
    """
    with store.transaction() as tx:
        topic_ids = backing_logs.comparable_topics(tx, limit=limit, after=after, shards=shards)
    findings = _compare_all(store, planes, topic_ids, dry_run=dry_run)
    findings += reconcile_gates(store, planes, topic_ids, dry_run=dry_run)
    return findings, topic_ids[-1] if len(topic_ids) == limit else None


def verify_topics(
    store: Store, planes: Mapping[str, DataPlane], *, limit: int = TOPICS_A_LOOK, shards: Shards | None = None
) -> tuple[int, int]:
    """Compare the logs of up to `limit` topics that are unverified: after a restart, a promotion or a restore of the
    database. Return how many there were, and how many of them are verified now. Raises
    StoreUnavailable only.
    """
    with store.single_statement() as tx:
        topic_ids = holds.unverified_topics(tx, limit=limit, shards=shards)
    if not topic_ids:
        return 0, 0
    _compare_all(store, planes, topic_ids, dry_run=False)
    with store.single_statement() as tx:
        return len(topic_ids), len(topic_ids) - holds.count_unverified(tx, topic_ids)


def _compare_all(
    store: Store, planes: Mapping[str, DataPlane], topic_ids: Sequence[int], *, dry_run: bool
) -> list[Finding]:
    findings: list[Finding] = []
    unfit: list[SetAside] = []
    for topic_id in _suspects(store, planes, topic_ids, dry_run=dry_run):
        try:
            findings += _reconcile_logs(store, planes, topic_id, dry_run=dry_run)
        except StoreUnavailable:
            raise
        except CleaveError as error:
            log.warning("topic not reconciled", topic_id=topic_id, error=str(error))
        except Exception as error:  # one topic's trouble must not keep the others from being compared
            log.exception("topic not reconciled", topic_id=topic_id)
            unfit.append(
                SetAside(
                    f"topic {topic_id}", f"it cannot be compared: {type(error).__name__}: {error}", topic_id
                )
            )
    if unfit and not dry_run:
        with store.transaction() as tx:
            set_aside.note(tx, set_aside.Batch.MAINTENANCE, unfit)
    return findings


def _suspects(
    store: Store, planes: Mapping[str, DataPlane], topic_ids: Sequence[int], *, dry_run: bool
) -> list[int]:
    """Those that differ, as far as one look at all of them tells; with them those that it could not see. The others are
    recorded as verified.
    """
    with store.transaction() as tx:
        rows = topics.get_topics(tx, topic_ids)
    suspects: list[int] = []
    for plane_name in sorted({row.data_plane for row in rows}):
        plane, agreeing = planes.get(plane_name), list[int]()
        here = [row for row in rows if row.data_plane == plane_name]
        if isinstance(plane, LayoutKeeper):
            # its broker keeps layout and logs together; `services.mirror` follows it
            agreeing += [row.topic_id for row in here]
        elif not isinstance(plane, SetWiseDataPlane):
            suspects += [row.topic_id for row in here]  # what is wrong with it is said for each
        else:
            for some in _chunks(here, TOPICS_A_LOOK):
                names = {row.topic_id: row.name for row in some}
                differing = _differing(store, plane, names)
                suspects += differing
                agreeing += sorted(names.keys() - {*differing})
        if agreeing and not dry_run:
            with store.transaction() as tx:
                foreign_logs.replace(tx, plane_name, agreeing, [])
                holds.verify(tx, agreeing)
    return sorted(suspects)


def _differing(store: Store, plane: SetWiseDataPlane, names: Mapping[int, str]) -> list[int]:
    """The topics to be looked at one by one; all of them where what they have in common cannot be read."""
    try:
        seen = _look(store, plane, names)
        with store.transaction() as tx:
            books = backing_logs.read_books(tx, names)
        return [
            topic_id
            for topic_id in names
            if topic_id not in seen
            or topic_id not in books
            or _must_be_looked_at(names[topic_id], seen[topic_id], books[topic_id])
        ]
    except StoreUnavailable:
        raise
    except CleaveError as error:
        log.info("topics looked at one by one", topics=len(names), error=str(error))
    except Exception:  # it is one topic's trouble
        log.exception("topics looked at one by one", topics=len(names))
    return list(names)


def _must_be_looked_at(topic: str, seen: PlaneView, books: Books) -> bool:
    """Whether the look at many topics is not enough: it describes the logs of segments only."""
    if books.held_reason is not None or compare(topic, seen, books, {}):
        return True
    expected = {one.backing_topic for one in books.logs}
    return not books.is_verified and any(name not in expected for name in seen.listed)


def reconcile(
    store: Store,
    planes: Mapping[str, DataPlane],
    topic_id: int,
    *,
    actor: str = "reconciler",
    dry_run: bool = False,
) -> tuple[Finding, ...]:
    """Compare the logs and the gates of one topic and put right what can be; a dry run only lists. Idempotent. Raises as
    `_reconcile_logs`.
    """
    found = _reconcile_logs(store, planes, topic_id, actor=actor, dry_run=dry_run)
    return (*found, *reconcile_gates(store, planes, [topic_id], dry_run=dry_run))


def _reconcile_logs(
    store: Store,
    planes: Mapping[str, DataPlane],
    topic_id: int,
    *,
    actor: str = "reconciler",
    dry_run: bool = False,
) -> tuple[Finding, ...]:
    """Compare the logs of one topic and put right what can be; a dry run only lists. Idempotent.

    Where the logs are ahead of the journal, the layout is rebuilt from the logs in the name of `actor`; a topic whose logs
    do not tell enough is held. Raises TopicNotFound, Unsupported (its data plane is not configured here),
    DataPlaneUnavailable while looking.
    """
    with store.transaction() as tx:
        topic = topics.get_topic(tx, topic_id)
    plane = planes.get(topic.data_plane)
    if plane is None:
        raise Unsupported(f"data plane {topic.data_plane!r} of {topic.name} is not configured here")
    if isinstance(plane, LayoutKeeper):
        return ()  # its broker keeps layout and logs together; `services.mirror` follows it
    if not isinstance(plane, SetWiseDataPlane):
        raise Unsupported(f"data plane {plane.name!r} of {topic.name} takes no calls about several logs")
    findings: tuple[Finding, ...] = ()
    for _ in range(ROUNDS):
        seen = _look_at_every_log(store, plane, topic_id, topic.name)
        found, to_terminate = _reconcile_seen(store, plane, topic_id, seen, actor=actor, dry_run=dry_run)
        findings += found
        if to_terminate:
            plane.terminate_segments(to_terminate)
        elif dry_run or not _is_recovered(found):
            break
    return findings


def _is_recovered(found: Sequence[Finding]) -> bool:
    """Return True if the layout was rebuilt in this round, so that another round has to compare it."""
    return any(one.kind is FindingKind.LOGS_AHEAD and one.error is None for one in found)


def _reconcile_seen(
    store: Store, plane: SetWiseDataPlane, topic_id: int, seen: PlaneView, *, actor: str, dry_run: bool
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Compare what was seen with the journal, and answer. Return the findings, and logs to terminate before the next round."""
    with store.transaction() as tx:
        # Under the lock nobody reserves ids or commits; a dry run has only the order of its looks, books last.
        topic = topics.get_topic(tx, topic_id, lock=not dry_run)
        books = backing_logs.read_books(tx, [topic_id])[topic_id]
        expected = {one.backing_topic for one in books.logs}
        owners = backing_logs.ownership(tx, [name for name in seen.listed if name not in expected])
        if ahead.may_be_ahead(seen, books, owners):
            layout = layouts.load_layout(tx, topic_id)
            planned = ahead.plan(seen, books, owners, layout, to_ms(database_now(tx)))
            if planned.is_needed:
                found = Finding(FindingKind.LOGS_AHEAD, topic.name, "", reason=ahead.describe(planned))
                if dry_run:
                    return (found,), ()
                return _recover(tx, topic, plane, ahead.recovered(seen, books, planned), found, actor)
        findings = compare(topic.name, seen, books, owners)
        if dry_run:
            return tuple(findings), ()
        doubts = [one.error for one in findings if one.error]
        if not doubts:
            holds.release(tx, topic_id)
            holds.verify(tx, [topic_id])
        elif not books.is_verified:
            holds.hold(tx, topic_id, doubts[0])
        findings = [one if one.error else _answer_in_books(tx, topic, plane, books, one) for one in findings]
        foreign_logs.replace(tx, topic.data_plane, [topic_id], _foreign(topic_id, findings))
        missing = [one.backing_topic for one in findings if one.kind is FindingKind.ACTIVE_MISSING]
        origins = backing_logs.origins(tx, missing) if missing else {}
        closed = gates.closed_logs(tx, topic_id)
    answered = (
        one if one.error else _answer_on_plane(plane, books, origins, closed, one) for one in findings
    )
    return tuple(answered), ()


def _recover(
    tx: Connection,
    topic: topics.TopicRow,
    plane: DataPlane,
    recovered: RecoveredLayout,
    found: Finding,
    actor: str,
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Rebuild the layout, or hold the topic: until a person decides, logs are terminated, or no runner acts for it."""
    planned, reason = recovered.plan, found.reason or ""
    busy = recovery.why_not_idle(tx, topic, call_timeout_seconds=plane.call_timeout_seconds)
    why = reason if planned.problems else busy
    if why is not None:
        if holds.hold(tx, topic.topic_id, reason):
            log.warning("topic held", topic=topic.name, reason=reason)
        return (replace(found, error=why),), ()
    if planned.to_terminate:
        holds.hold(tx, topic.topic_id, reason)
        return (), planned.to_terminate
    epoch = recovery.commit(tx, topic, recovered, actor=actor, reason=reason)
    log.warning("layout recovered from the logs", topic=topic.name, epoch=epoch, reason=reason)
    return (found,), ()


def _look_at_every_log(store: Store, plane: SetWiseDataPlane, topic_id: int, name: str) -> PlaneView:
    """One topic, with a report on every listed log. Raises DataPlaneUnavailable if a log did not answer."""
    seen = _look(store, plane, {topic_id: name}).get(topic_id)
    others = [] if seen is None else [one for one in seen.listed if one not in seen.reports]
    reports = _describe(plane, others)
    if seen is None or len(reports) < len(others):
        raise DataPlaneUnavailable(f"not every log of {name} answered; looking again in a later run")
    return replace(seen, reports={**seen.reports, **reports})


def _look(store: Store, plane: SetWiseDataPlane, names: Mapping[int, str]) -> dict[int, PlaneView]:
    """The listing first, then the books without a lock to know which logs to look at one by one.

    `names` are the topics' by their ids. A topic with a log that did not answer is absent.
    """
    listed = plane.list_segments_of(list(names.values()))
    with store.transaction() as tx:
        books = backing_logs.read_books(tx, names)
    logs = [one.backing_topic for of_topic in books.values() for one in of_topic.logs]
    reports = _describe(plane, logs)
    # What is missing is looked at twice: a log may be on its way to another broker.
    reports |= _describe(plane, [one for one, seen in reports.items() if seen.state is LogState.MISSING])
    return {
        topic_id: PlaneView(
            listed=tuple(listed[names[topic_id]]),
            reports={one.backing_topic: reports[one.backing_topic] for one in of_topic.logs},
            books=of_topic,
        )
        for topic_id, of_topic in books.items()
        if all(one.backing_topic in reports for one in of_topic.logs)
    }


def _describe(plane: SetWiseDataPlane, backing_topics: Sequence[str]) -> dict[str, LogReport]:
    return {
        name: report
        for some in _chunks(backing_topics, LOGS_A_CALL)
        for name, report in plane.describe_logs(some).items()
    }


def _foreign(topic_id: int, findings: Sequence[Finding]) -> list[ForeignLog]:
    return [
        ForeignLog(
            topic_id,
            one.backing_topic,
            one.segment_id,
            one.reason or "",
            one.report.origin,
            one.report.most_unread,
        )
        for one in findings
        if one.kind is FindingKind.FOREIGN_LOG and one.report is not None
    ]


def _answer_in_books(
    tx: Connection, topic: topics.TopicRow, plane: DataPlane, books: Books, finding: Finding
) -> Finding:
    """Put right what takes a row, in the transaction that holds the topic's lock."""
    segment_id = finding.segment_id
    match finding.kind:
        case FindingKind.ORPHAN_LOG if segment_id is not None:
            tombstones.add(
                tx,
                data_plane=topic.data_plane,
                topic_id=topic.topic_id,
                backing_topics={segment_id: finding.backing_topic},
                reason="orphan found by the reconciler",
            )
        case FindingKind.UNREAD_AGAIN if segment_id is not None:
            drains.undrain(tx, topic.topic_id, finding.subscription or "", [segment_id])
        case FindingKind.SEALED_MISSING if segment_id is not None:
            for name in books.subscriptions:
                drains.mark_drained(tx, topic.topic_id, name, [segment_id])
        case FindingKind.ACTIVE_TERMINATED if segment_id is not None:
            return replace(finding, operation_id=_heal(tx, topic, plane, books, segment_id))
        case _:
            pass
    return finding


def _heal(tx: Connection, topic: topics.TopicRow, plane: DataPlane, books: Books, segment_id: int) -> int:
    """Intend the reshape 1 → 1; an attempt that was aborted reserved an id, so the next one has another key."""
    key = f"heal/{topic.topic_id}/{segment_id}/{books.next_segment_id}"
    reason = f"log of active segment {segment_id} is terminated"
    request = Request(key, Origin.RECONCILER, "reconciler", reason)
    view = reshape_intents.look(tx, topic.topic_id, key)
    first = reshape_intents.first_intent(tx, view, request)
    if first is not None:
        return first.operation.operation_id
    view.demand_current()
    draft = ReshapeDraft(view, plan_heal(view.layout, segment_id), request, plane.backing_topic)
    return reshape_intents.intend(tx, draft).operation.operation_id


def _answer_on_plane(
    plane: DataPlane,
    books: Books,
    origins: Mapping[str, LogOrigin],
    closed: Collection[tuple[str, str]],
    finding: Finding,
) -> Finding:
    """Put right what takes a call of the data plane. A failure is noted in the finding, and a later run
    finds it again. `closed`: logs and subscriptions whose gates are closed, so that a cursor comes after its gate.
    """
    remedies: Mapping[FindingKind, Callable[[], object]] = {
        FindingKind.ACTIVE_MISSING: lambda: _create_again(
            plane, books, finding.backing_topic, origins.get(finding.backing_topic), closed
        ),
        FindingKind.SEALED_OPEN: lambda: plane.terminate_segment(finding.backing_topic),
        FindingKind.CURSOR_MISSING: lambda: _create_cursor(
            plane, finding.backing_topic, finding.subscription or "", closed
        ),
    }
    try:
        remedies.get(finding.kind, lambda: None)()
    except CleaveError as error:
        return replace(finding, error=str(error))
    return finding


def _create_cursor(
    plane: DataPlane, backing_topic: str, name: str, closed: Collection[tuple[str, str]]
) -> None:
    if (backing_topic, name) in closed and isinstance(plane, GatedDataPlane):
        plane.close_gate(backing_topic, name)
    else:
        plane.create_subscription(backing_topic, name)


def _create_again(
    plane: DataPlane,
    books: Books,
    backing_topic: str,
    origin: LogOrigin | None,
    closed: Collection[tuple[str, str]],
) -> None:
    """With the cursors its first creation gave it: the recorded ones, and those applications made on its parents."""
    [parents] = [one.parent_topics for one in books.logs if one.backing_topic == backing_topic]
    found = {name for parent in parents for name in plane.list_subscriptions(parent)}
    wanted = books.subscriptions.keys() | found - books.deleting_subscriptions
    gated = {name for name in wanted if (backing_topic, name) in closed}
    plane.create_segment(backing_topic, sorted(wanted - gated), origin)
    for name in sorted(gated):
        _create_cursor(plane, backing_topic, name, closed)


def _chunks(many: Sequence[Some], size: int) -> Iterator[Sequence[Some]]:
    for first in range(0, len(many), size):
        yield many[first : first + size]
