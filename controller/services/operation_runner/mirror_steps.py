"""Performs each step on topics whose layout a broker keeps: requests a change, reads the result, and passes
it to the commit.

The counterpart of `log_steps` for operations on mirrored topics. The journal's detail of a commit holds the
layout as it was read, and this layout is mirrored. The module writes only two things to the store: the
setting of the broker's own auto-scaler, which must be safe before the auto-scaler is turned off, and the
result of a check of the logs, with the intents that repair segments for which the broker created no logs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from controller.dataplane.base import DataPlane
from controller.dataplane.layout_keeper import LayoutKeeper
from controller.domain.errors import (
    Conflict,
    DataPlaneTimeout,
    DataPlaneUnavailable,
    Terminal,
    TopicNotFound,
    Unsupported,
)
from controller.domain.hash_range import HashRange
from controller.domain.layout import SegmentLayout
from controller.domain.mirrored_changes import have_children_taken_over
from controller.domain.operation import Operation, OperationKind, OperationState
from controller.domain.operation_steps import Step
from controller.domain.reshape import ReshapeKind
from controller.services.operation_runner.call_all import CallAll, Result
from controller.services.operation_runner.log_steps import Detail
from controller.store.journal import mirror_repairs
from controller.store.journal.operations import get_operation
from controller.store.mirrors import mirrors
from controller.store.postgres.engine import Store
from controller.store.topics import topics
from controller.store.topics.topics import TopicState

OFF: Mapping[str, object] = {"enabled": False}
"""Setting of the broker's auto-scaler while Cleave decides."""


class MirrorSteps:
    """The actions of one operation on a topic whose layout its broker keeps. `plane` is called only if a step
    needs the data plane.
    """

    def __init__(
        self, store: Store, plane: Callable[[], DataPlane], operation: Operation, call_all: CallAll
    ) -> None:
        self._store = store
        self._plane = plane
        self._operation = operation
        self._topic = operation.topic_name
        self._call_all = call_all

    def perform(self, step: Step) -> Detail:
        """Perform the step on the broker, and return the details to store in the journal. A commit returns the broker's
        layout as `layout`, except for a topic that is detached or deleted. A step that needs no action returns empty
        details. Raises Unsupported if the data plane keeps no layouts, TopicNotFound if the broker lacks the topic, and
        the errors of the data plane. Giving the topic back, deleting it and checking its logs succeed without the
        topic.
        """
        match step:
            case Step.TAKE_OVER:
                return self._take_over()
            case Step.RESHAPE_ON_BROKER:
                return self._reshape()
            case Step.GIVE_BACK:
                return self._give_back()
            case Step.DELETE_ON_BROKER:
                self._call(partial(self._keeper().delete_topic, self._topic))
                return {}
            case Step.FINISH_ABORT if self._operation.kind is OperationKind.ATTACH:
                return self._give_back()
            case Step.FINISH if self._operation.kind.is_reshape:
                return self._check_logs()
            case Step.COMMIT if self._operation.kind not in (OperationKind.DETACH, OperationKind.DELETE):
                return self._read()
            case _:
                return {}

    def _take_over(self) -> Detail:
        """Create the topic if the operation requests it, store the broker's auto-scaler setting, then turn the
        auto-scaler off for this topic. Return the earlier setting as `auto_scaler_before`.

        The setting that was stored first stays. If the operation was aborted or the topic deleted in the meantime, the
        earlier setting is restored at once. Raises TopicNotFound if the broker lacks the topic, and LostRace if the
        topic is no longer being attached.
        """
        keeper = self._keeper()
        segments = self._operation.parameters.get("create_segments")
        if isinstance(segments, int):
            self._call(partial(keeper.create_topic, self._topic, segments))
        before = self._call(partial(keeper.auto_scaler, self._topic))
        with self._store.transaction() as tx:
            before = mirrors.remember_policy(tx, self._operation.topic_id, before).policy_before
        self._call(partial(keeper.set_auto_scaler, self._topic, dict(OFF)))
        if not self._must_stay_off():
            with suppress(TopicNotFound):
                keeper.set_auto_scaler(self._topic, before)
        return {"auto_scaler_before": before}

    def _must_stay_off(self) -> bool:
        """Return True if the broker's auto-scaler must still be off: a topic of this name is live or being
        created, and it is another topic, attached since, or this operation is neither aborted nor being
        aborted.

        A process may sleep between its last check of the claim and the call, and wake after another runner
        has aborted and restored the setting. No other process would restore the setting again, so the late
        process does, without the claim that it has lost.
        """
        with self._store.transaction() as tx:
            operation = get_operation(tx, self._operation.operation_id)
            try:
                topic = topics.find_topic(tx, self._topic)
            except TopicNotFound:
                return False
        is_given_up = operation.state in (OperationState.ABORTING, OperationState.ABORTED)
        is_ours = topic.topic_id == operation.topic_id
        return topic.state in (TopicState.CREATING, TopicState.LIVE) and not (is_ours and is_given_up)

    def _give_back(self) -> Detail:
        """Restore the auto-scaler setting that the attachment stored, and return it as `auto_scaler`. Does nothing, and
        returns no details, if none was stored. If the broker does not have the topic, return its name as `found
        missing`.
        """
        keeper = self._keeper()
        with self._store.transaction() as tx:
            mirror = mirrors.get_mirror(tx, self._operation.topic_id)
        if mirror is None:
            return {}
        try:
            self._call(partial(keeper.set_auto_scaler, self._topic, mirror.policy_before))
        except TopicNotFound:
            return {"found missing": self._topic}
        return {"auto_scaler": mirror.policy_before}

    def _reshape(self) -> Detail:
        """Request the reshape unless the broker's layout shows it, and return as `logs found missing` the logs of
        parents that had to be created again; empty if there were none. If the request times out, or fails with
        DataPlaneUnavailable or Conflict, the error is raised only if the layout does not show the reshape. Also raises
        DataPlaneUnavailable if the broker accepts the request but the layout does not show it yet, and Conflict if
        the layout shows that the parents were reshaped otherwise.

        A segment can be reshaped once, so a lost call and the call that follows it cannot both take effect. If the lost
        call arrives late, the broker refuses the other.
        """
        keeper, operation = self._keeper(), self._operation
        layout, restored = self._layout(), []
        if not self._is_done(layout):
            kind, buckets = ReshapeKind(operation.kind.value), int(str(operation.parameters["bucket_count"]))
            restored = self._restore_parents()
            request = partial(keeper.ask_reshape, self._topic, kind, operation.parent_ids, buckets)
            try:
                self._call(request, keeper.reshape_timeout_seconds)
            except (DataPlaneTimeout, DataPlaneUnavailable, Conflict):
                if not self._is_done(self._layout()):
                    raise
            else:
                layout = self._layout()
                if not self._is_done(layout):
                    raise DataPlaneUnavailable(
                        f"the broker accepted {operation.kind} of {self._topic} but shows epoch {layout.epoch} still; "
                        "asking again"
                    )
        return {"logs found missing": restored} if restored else {}

    def _restore_parents(self) -> list[str]:
        """Create the parents' missing logs with every subscription of the topic, and return these logs. The
        broker would fail to reshape a parent without a log, and would leave other logs behind.
        """
        missing = self._call(partial(self._keeper().check_logs, self._topic)).missing
        parents = zip(self._operation.parent_ids, self._operation.parent_topics, strict=True)
        logs = [log for segment_id, log in parents if segment_id in missing]
        if logs:
            names = sorted(self._call(partial(self._keeper().topic_subscriptions, self._topic)))
            plane = self._plane()
            self._call_all([partial(plane.create_segment, log, names) for log in logs])
        return logs

    def _check_logs(self) -> Detail:
        """Check the logs of the layout, and store the result with an intent to split each segment without a log that may
        be split. Return the ids of all segments without a log, as `segments without a log`, for the journal.

        If each segment has a log, the details are empty. They are also empty, and nothing is stored, if the broker does
        not answer or refuses: the mirror checks the logs later.
        """
        try:
            check = self._call(partial(self._keeper().check_logs, self._topic))
        except (DataPlaneUnavailable, Terminal):
            return {}
        with self._store.transaction() as tx:
            mirror_repairs.note_check(tx, self._operation.topic_id, check.epoch, check.missing)
        return {"segments without a log": list(check.missing)} if check.missing else {}

    def _is_done(self, layout: SegmentLayout) -> bool:
        """Return True if children with the operation's ranges have taken over from its parents in this layout, False if
        all parents are active. Raises Conflict otherwise, because the parents were reshaped otherwise or are gone, and
        Unsupported if `child_ranges` of the operation, which a newer program wrote, is no list.
        """
        ranges = self._operation.parameters.get("child_ranges")
        if not isinstance(ranges, Sequence):
            raise Unsupported(
                f"operation {self._operation.operation_id} names no child ranges; upgrade this program"
            )
        return have_children_taken_over(
            layout, self._operation.parent_ids, [HashRange.parse(str(r)) for r in ranges]
        )

    def _read(self) -> Detail:
        """Return the broker's present layout, as the journal's detail of the commit."""
        return {"layout": self._layout().to_metadata()}

    def _layout(self) -> SegmentLayout:
        return self._call(partial(self._keeper().read_layout, self._topic))

    def _call(self, call: Callable[[], Result], seconds: float | None = None) -> Result:
        """Make one call under the claims, and return its result. `seconds` is the longest time of the call; None:
        the time-out of an ordinary call.
        """
        [result] = self._call_all([call], seconds)
        return result

    def _keeper(self) -> LayoutKeeper:
        """Return the data plane. Raises Unsupported if the data plane keeps no layouts, DataPlaneUnavailable if it is
        not configured in this process.
        """
        plane = self._plane()
        if not isinstance(plane, LayoutKeeper):
            raise Unsupported(
                f"data plane {plane.name!r} does not keep layouts; {self._topic} cannot be attached to it"
            )
        return plane
