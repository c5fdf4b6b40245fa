"""Performs each step on topics whose layout a broker keeps: requests a change, reads the result, and passes
it to the commit.

The counterpart of `log_steps` for operations on mirrored topics. The journal's detail of a commit holds the
layout as it was read, and this layout is mirrored. The module writes only two things to the store: the
setting of the broker's own auto-scaler, which must be safe before the auto-scaler is turned off, and the
result of a check of the logs, with the intents that repair segments for which the broker created no logs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
        """Perform the step on the broker, and return the details to store in the journal. Details are empty for a
        step that needs no action. A commit reads the broker's layout and returns it as `layout`; for a topic that is
        detached or deleted, the commit needs no action.

        Raises Unsupported if the data plane keeps no layouts; DataPlaneUnavailable if the data plane is not
        configured in this process or does not answer; TopicNotFound if the broker lacks the topic; Conflict if the
        parents were reshaped otherwise; LostRace if the topic is no longer being attached; HeldUp if a claim is lost;
        and the errors of the store. Restoring the auto-scaler setting (GIVE_BACK, and the end of an aborted
        attachment), deleting the topic and checking its logs succeed if the broker lacks the topic.
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
        """Take the topic over from the broker's auto-scaler. First create the topic at the broker if the operation
        requests `create_segments`; an existing topic does not change. Then store the topic's auto-scaler setting
        (None: the topic has no setting of its own), and turn the auto-scaler off for this topic. Return the stored
        setting as `auto_scaler_before`.

        A setting that was stored by an earlier call is kept and returned. If the auto-scaler need no longer be off
        (`_must_stay_off`), because the operation was aborted or the topic deleted or detached in the meantime, the
        stored setting is restored at once.

        Raises TopicNotFound if the broker lacks the topic, LostRace if no setting is stored and the topic is no
        longer being attached, HeldUp if a claim is lost, and the other errors of the data plane and the store.
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
        """Return True if the broker's auto-scaler must still be off: a topic of this name is live or being created in
        Cleave. If this topic is the operation's own topic, the operation must also be neither aborted nor being
        aborted. If the topic is another topic, attached later under the name, the state of this operation does not
        matter. Raises OperationNotFound if the journal lacks the operation, and the errors of `Store.transaction`.

        A process may sleep between its last check of the claim and the call that turns the auto-scaler off. If
        another runner has aborted the operation and restored the setting in the meantime, only the late process can
        restore the setting again. The late process therefore acts although it has lost the claim.
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
        """Restore the broker's auto-scaler setting that the attachment stored, and return it as `auto_scaler` (None:
        the topic had no setting of its own). The stored setting is kept. If no setting is stored, nothing is called,
        and the details are empty. If the broker does not have the topic, return the topic's name as `found missing`.
        Raises Unsupported if the data plane keeps no layouts, DataPlaneUnavailable, HeldUp if a claim is lost, and
        the errors of the store.
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
        """Request the reshape from the broker, unless the broker's layout shows that the reshape is done. Missing
        logs of the parents are created before the request; their names are returned as `logs found missing`. The
        details are empty if no log was missing.

        If the request fails with DataPlaneTimeout, DataPlaneUnavailable or Conflict, the layout is read again. If the
        layout shows the reshape, the step succeeds; otherwise the error is raised. DataPlaneUnavailable is also
        raised if the broker accepts the request but the layout does not show the reshape yet. Conflict is also raised
        if the layout shows that the parents were reshaped otherwise. Also raises TopicNotFound, Unsupported, and
        HeldUp if a claim is lost.

        A segment can be reshaped once, so a lost call and the call that follows it cannot both take effect. If the
        lost call arrives late, the broker refuses the other call.
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
        """Create the missing logs of the parents with every subscription that the broker has for the topic, at the
        earliest message. Return the names of these logs; empty if no parent's log is missing. The broker would fail
        to reshape a parent without a log, and would leave other logs behind. Raises TopicNotFound, the other errors
        of the data plane, and HeldUp if a claim is lost.
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
        """Check at the broker which ACTIVE segments of the layout lack a log. Store the result, and write an intent
        to split each such segment that may be split. Return the ids of all segments without a log, including those
        that may not be split, as `segments without a log`. The details are empty if each segment has a log.

        If the check fails with DataPlaneUnavailable or a Terminal error, the error is not raised: the details are
        empty and nothing is stored, because the mirror checks the logs later. Raises HeldUp if a claim is lost,
        TopicNotFound if the topic has no row, and the errors of `Store.transaction`.
        """
        try:
            check = self._call(partial(self._keeper().check_logs, self._topic))
        except (DataPlaneUnavailable, Terminal):
            return {}
        with self._store.transaction() as tx:
            mirror_repairs.note_check(tx, self._operation.topic_id, check.epoch, check.missing)
        return {"segments without a log": list(check.missing)} if check.missing else {}

    def _is_done(self, layout: SegmentLayout) -> bool:
        """Return True if in this layout children with exactly the operation's ranges have taken over from the
        operation's parents. Return False if all parents are active. Raises Conflict otherwise: the parents were
        reshaped differently, or a parent or child is gone. Raises Unsupported if the operation's parameter
        `child_ranges` is missing or is not a list; a newer program then wrote the operation.
        """
        ranges = self._operation.ranges_on_broker
        if ranges is None:
            raise Unsupported(
                f"operation {self._operation.operation_id} names no child ranges; upgrade this program"
            )
        return have_children_taken_over(layout, self._operation.parent_ids, ranges)

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
        """Return the operation's data plane, which keeps layouts. Makes no call. Raises Unsupported if the data plane
        keeps no layouts, and Retryable if the data plane is not configured in this process.
        """
        plane = self._plane()
        if not isinstance(plane, LayoutKeeper):
            raise Unsupported(
                f"data plane {plane.name!r} does not keep layouts; {self._topic} cannot be attached to it"
            )
        return plane
