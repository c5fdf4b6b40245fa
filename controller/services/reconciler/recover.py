"""Recovers one topic on request: compares its logs with the journal, and rebuilds the layout if the logs are
ahead.

`verifier` does the same without a request whenever the database was restarted, promoted or restored. A
request can also recover a topic that the journal has lost completely.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller.dataplane.base import DataPlane, SetWiseDataPlane
from controller.dataplane.registry import configured
from controller.domain.errors import TopicNotFound, Unsupported
from controller.domain.segment import segment_of_log
from controller.services.reconciler.log_differences import Finding, FindingKind
from controller.services.reconciler.reconcile import reconcile
from controller.store.postgres.engine import Store
from controller.store.topics import held_topics, topics
from controller.store.topics.topics import TopicRow


@dataclass(frozen=True, slots=True)
class Recovery:
    """A topic after its recovery, or as a dry run found it. `held_reason` is None if the topic is not held.

    `epoch` is -1 for a topic that is not in the journal.
    """

    topic: str
    epoch: int
    held_reason: str | None
    findings: tuple[Finding, ...]


def recover(
    store: Store,
    planes: Mapping[str, DataPlane],
    topic: str,
    *,
    actor: str,
    data_plane: str | None = None,
    dry_run: bool = False,
) -> Recovery:
    """Compare the topic's logs with the journal, and repair the differences; if the logs are ahead of the journal,
    rebuild the layout from the logs, or hold the topic if this is not possible. Return the topic's state and the
    findings. The topic is marked as unverified first. A dry run changes nothing and only lists the findings.

    If the journal lacks the topic, the name of the data plane with its logs must be given as `data_plane`; the topic
    then gets a row, in state creating, before the comparison. For any other topic `data_plane` is ignored. `actor` is
    the actor of the changes.

    Raises TopicNotFound if the journal lacks the topic and `data_plane` is None or has no logs of the topic;
    Unsupported if the data plane is not configured here or keeps layouts; TopicExists or LostRace if another
    transaction inserts the topic first; and the errors of `reconcile`, such as DataPlaneUnavailable if a log does not
    answer. After an error of `reconcile`, the topic stays unverified.
    """
    row = _row_of(store, topic)
    if row is None:
        segment_ids = _ids_of_logs(planes, topic, data_plane)
        if dry_run:
            reason = f"the journal lacks the topic, but {len(segment_ids)} of its log(s) exist: the layout is rebuilt from them"
            return Recovery(topic, -1, None, (Finding(FindingKind.LOGS_AHEAD, topic, "", reason=reason),))
        row = _restore_row(store, topic, segment_ids, actor=actor, data_plane=str(data_plane))
    _set_wise(planes, row.data_plane, topic)
    topic_id = row.topic_id
    if not dry_run:
        store.in_transaction(held_topics.doubt, [topic_id])
    findings = reconcile(store, planes, topic_id, actor=actor, dry_run=dry_run)
    with store.transaction() as tx:
        row = topics.get_topic(tx, topic_id)
        return Recovery(row.name, row.epoch, held_topics.held_reason(tx, topic_id), findings)


def _row_of(store: Store, topic: str) -> TopicRow | None:
    """Return the topic's row; None if the journal does not have the topic, or only as a deleted topic."""
    try:
        return store.in_transaction(topics.find_topic, topic)
    except TopicNotFound:
        return None


def _set_wise(planes: Mapping[str, DataPlane], data_plane: str, topic: str) -> SetWiseDataPlane:
    """Return the data plane, on which Cleave creates the logs. Raises Unsupported if the data plane is not
    configured here, or if its broker creates the logs.
    """
    plane = configured(planes, data_plane, topic)
    if not isinstance(plane, SetWiseDataPlane):
        raise Unsupported(
            f"the broker keeps the layout of {topic} on data plane {data_plane!r}, and Cleave mirrors it; there is nothing to recover"
        )
    return plane


def _ids_of_logs(planes: Mapping[str, DataPlane], topic: str, data_plane: str | None) -> list[int]:
    """Return the segment ids, at least one, in the names of the topic's logs on the data plane. The topic is not in
    the journal. Raises TopicNotFound if `data_plane` is None or has no logs of the topic; Unsupported if the data
    plane is not configured here or keeps layouts; and the errors of `list_segments`, such as DataPlaneUnavailable.
    """
    if data_plane is None:
        raise TopicNotFound(f"topic {topic} is not in the journal; name the data plane that has its logs")
    names = _set_wise(planes, data_plane, topic).list_segments(topic)
    segment_ids = [named_segment[1] for name in names if (named_segment := segment_of_log(name)) is not None]
    if not segment_ids:
        raise TopicNotFound(f"data plane {data_plane!r} has no log of topic {topic}; create the topic")
    return segment_ids


def _restore_row(
    store: Store, topic: str, segment_ids: Sequence[int], *, actor: str, data_plane: str
) -> TopicRow:
    """Insert the row of a topic of which only logs exist, in state creating, and return the row. `segment_ids` (at
    least one) are the segment ids in the names of the logs. The topic's next segment id is above all of these ids,
    and above all ids that a deleted topic of the name has used. Raises TopicExists or LostRace if another transaction
    has inserted the topic, InvalidInput for an invalid name, and the errors of `Store.transaction`.
    """
    with store.transaction() as tx:
        first_free = topics.demand_free_name(tx, topic)
        return topics.insert_topic(
            tx,
            topic,
            data_plane=data_plane,
            next_segment_id=max(first_free, max(segment_ids) + 1),
            actor=actor,
        )
