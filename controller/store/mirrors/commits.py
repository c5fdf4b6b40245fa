"""Commits operations on mirrored topics: writes the layout that was read from the broker.

`journal.commits` calls this module, and has the locks and the claim. The broker owns the logs, so no log is queued for deletion.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, text

from controller.domain.errors import InvariantViolated, LostRace
from controller.domain.layout import SegmentLayout
from controller.domain.operation import Operation, OperationKind
from controller.store.mirrors.mirrored_layouts import adopt_layout, follow_layout
from controller.store.topics import deletion
from controller.store.topics.topics import TopicRow, TopicState

_EPOCH_OF = (
    "SELECT epoch FROM cleave.layout_change WHERE topic_id = :topic_id AND operation_id = :operation_id"
)


def apply(tx: Connection, topic: TopicRow, operation: Operation, detail: Mapping[str, Any]) -> int:
    """Write the change that the broker made, as part of the operation's commit, and return the epoch of the change.
    The caller has locked the topic row and checked the claim.

    For an attachment and a reshape, `detail["layout"]` is the layout that was read from the broker. A detachment and
    a deletion ignore `detail`, and set the topic to deleted in an epoch of its own.

    Raises LostRace if the runner has to read the state again; HeldUp while a deletion or detachment waits for another
    operation; InvalidInput for a layout that cannot be read; Conflict if the layout is older than the rows and the
    history has no epoch of the reshape yet; and InvariantViolated if no epoch of the layout has the change of the
    reshape.
    """
    if operation.kind in (OperationKind.DETACH, OperationKind.DELETE):
        return _leave(tx, topic, operation)
    layout = SegmentLayout.from_metadata(detail["layout"])
    if operation.kind is OperationKind.ATTACH:
        return _attach(tx, topic, operation, layout)
    return _reshape(tx, topic, operation, layout)


def _attach(tx: Connection, topic: TopicRow, operation: Operation, layout: SegmentLayout) -> int:
    """Store the layout that was read from the broker as the first layout of a topic in state creating, which becomes
    live. Return the epoch of the layout. Raises LostRace if the topic is in another state.
    """
    if topic.state is not TopicState.CREATING:
        raise LostRace(f"topic {topic.name} is {topic.state} by now; read it again", 0.0, what="operation")
    adopt_layout(tx, topic, layout, operation)
    return layout.epoch


def _reshape(tx: Connection, topic: TopicRow, operation: Operation, layout: SegmentLayout) -> int:
    """Write the layout that was read from the broker, and return the epoch of the reshape that the operation
    requested. This epoch may be lower than the epoch of the layout.

    If the history has an epoch of the operation, and the topic row has the epoch of the layout or a later epoch,
    nothing is written. In this case the mirror, or the commit of another operation, has written the layout before.
    Raises Conflict if the layout is older than the rows and the history has no epoch of the operation; LostRace if
    the topic row has changed; and InvariantViolated if no epoch up to that of the layout has the change of the
    operation.
    """
    parameters = {"topic_id": topic.topic_id, "operation_id": operation.operation_id}
    epoch = tx.execute(text(_EPOCH_OF), parameters).scalar_one_or_none()
    if layout.epoch > topic.epoch or epoch is None:  # otherwise a later layout was written already
        follow_layout(tx, topic, layout)
        epoch = tx.execute(text(_EPOCH_OF), parameters).scalar_one_or_none()
    if epoch is None:
        raise InvariantViolated(
            f"operation {operation.operation_id} of {topic.name} is done on the broker, but no epoch up to "
            f"{layout.epoch} has its change"
        )
    return int(epoch)


def _leave(tx: Connection, topic: TopicRow, operation: Operation) -> int:
    """Set the topic to deleted in a last epoch, with its segments sealed and pruned, and leave its logs to the
    broker. Return the epoch. Raises HeldUp while another operation of the topic is live.
    """
    epoch = topic.epoch + 1
    deletion.end_in_epoch(tx, topic, operation, epoch)
    return epoch
