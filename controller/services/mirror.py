"""Mirror: synchronizes the rows of a topic whose layout its broker keeps with that broker, and detects
changes that others make to it.

The worker that holds the topic's shard checks the topic at an interval. Changes that others made through the
broker's admin API are added to the topic's history. If the broker's own auto-scaler is turned on again,
Cleave pauses on that topic and records the reason. After each change the mirror checks the logs of the
layout, and intends a split of each segment without a log, whose children get new logs. The mirror changes
nothing on the broker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from controller import telemetry
from controller.dataplane.base import DataPlane
from controller.dataplane.layout_keeper import LayoutKeeper
from controller.domain.errors import StoreUnavailable, TopicNotFound, Unsupported
from controller.domain.layout import SegmentLayout
from controller.domain.mirrored_changes import LayoutStep
from controller.repeating import Stoppable, contained, repeat_every
from controller.store.journal import mirror_repairs
from controller.store.mirrors import mirrors
from controller.store.mirrors.mirrored_layouts import follow_layout
from controller.store.postgres.engine import Store
from controller.store.shards import Shards
from controller.store.topics import topics

log = telemetry.get_logger(__name__)

FAILING_SECONDS = 1.0
"""Seconds in which a round begins to check the topics whose last check failed. Each may take the longest time of a call."""


def follow_due(
    store: Store,
    planes: Mapping[str, DataPlane],
    *,
    interval_seconds: float,
    limit: int = 100,
    shards: Shards | None = None,
    failed: dict[int, float],
) -> None:
    """Check up to `limit` live mirrored topics of the shards (None: all topics) that were not checked for
    `interval_seconds`, in the order of their last checks, the oldest check first (`follow`). Does nothing if no
    data plane in `planes` keeps layouts.

    If the check of a topic fails, the error is logged, and the topic stays due. Its id is added to `failed`, with the
    time of the failure, and removed when a check succeeds or the topic is no longer due here. Topics in `failed` are
    checked last, those that failed longest ago first, and only as many as begin within `FAILING_SECONDS`. Raises
    StoreUnavailable; the checks before it stay stored. Also raises the other errors of `Store.single_statement` if
    the due topics cannot be read.
    """
    plane_names = [name for name, plane in planes.items() if isinstance(plane, LayoutKeeper)]
    if not plane_names:
        return
    due_ids = store.in_single_statement(
        mirrors.due_mirrors,
        plane_names,
        older_than_seconds=interval_seconds,
        limit=limit,
        shards=shards,
        last=failed,
    )
    if len(due_ids) < limit:  # no further topic is due
        # The others were detached, deleted, or checked by another worker.
        for topic_id in failed.keys() - {*due_ids}:
            del failed[topic_id]
    failing_ids = sorted(failed.keys() & {*due_ids}, key=failed.__getitem__)
    for topic_id in [topic_id for topic_id in due_ids if topic_id not in failing_ids]:
        _check(store, planes, topic_id, failed)
    give_up_at = time.monotonic() + FAILING_SECONDS
    for topic_id in failing_ids:
        if time.monotonic() < give_up_at:
            _check(store, planes, topic_id, failed)


def _check(store: Store, planes: Mapping[str, DataPlane], topic_id: int, failed: dict[int, float]) -> None:
    """Check one topic (`follow`). If the check fails, log the error, and add the topic to `failed` with the time
    (`time.monotonic`); otherwise remove the topic from `failed`. Raises StoreUnavailable.
    """
    failed[topic_id] = time.monotonic()
    with contained(log, "topic not mirrored", raised=(StoreUnavailable,), topic_id=topic_id):
        follow(store, planes, topic_id)
        del failed[topic_id]


def follow(
    store: Store, planes: Mapping[str, DataPlane], topic_id: int
) -> tuple[tuple[LayoutStep, ...], str | None]:
    """Check one mirrored topic on its broker, and update its rows. Return the layout changes that were added to its
    history, and the reason why Cleave is paused on the topic; None if it is not paused. A pause follows if the
    broker's own auto-scaler is on, if the broker lacks the topic, or if the topic was created again there. A change
    of the pause is logged. The call may be repeated, and changes nothing on the broker.

    If Cleave is not paused and no check has found all logs of the epoch yet, the logs are checked too. An operation
    is intended that splits each ACTIVE segment without a log, unless the topic is held or unverified, or the segment
    is being reshaped or too narrow.

    Nothing is changed, and the result has no changes and no reason, if the topic is not live (for example being
    attached, detached or deleted) or has no mirror. Raises TopicNotFound if no topic has the id, or if the broker
    loses the topic during the check; Unsupported if the topic's data plane is not configured here or keeps no
    layouts; DataPlaneUnavailable; LostRace if another transaction changed the topic's rows; and StoreUnavailable.
    """
    with store.transaction() as tx:
        topic, mirror = topics.get_topic(tx, topic_id), mirrors.get_mirror(tx, topic_id)
    keeper = planes.get(topic.data_plane)
    if not isinstance(keeper, LayoutKeeper):
        raise Unsupported(f"data plane {topic.data_plane!r} of {topic.name} keeps no layouts here")
    layout, paused_reason = _read_broker(keeper, topic.name, topic.epoch)
    check = None
    if (
        mirror is not None
        and layout is not None
        and paused_reason is None
        and layout.epoch > mirror.checked_epoch
    ):
        check = keeper.check_logs(topic.name)
    with store.transaction() as tx:
        topic = topics.get_topic(tx, topic_id, lock=True)
        mirror = mirrors.get_mirror(tx, topic_id)
        if mirror is None or topic.state is not topics.TopicState.LIVE:
            # The topic is being attached or detached, and that operation reads the layout itself.
            return (), None
        steps: tuple[LayoutStep, ...] = ()
        if (
            layout is not None and layout.epoch > topic.epoch
        ):  # Otherwise another process has stored a later layout in the meantime.
            steps = follow_layout(tx, topic, layout)
        mirrors.record_look(tx, mirror, paused_reason)
        if check is not None:
            mirror_repairs.note_check(tx, topic_id, check.epoch, check.missing)
    if paused_reason != mirror.paused_reason:
        log.warning("pause of a mirrored topic changed", topic=topic.name, paused=paused_reason)
    return steps, paused_reason


def _read_broker(
    keeper: LayoutKeeper, topic: str, known_epoch: int
) -> tuple[SegmentLayout | None, str | None]:
    """Return the broker's layout of the topic, and the reason why Cleave must not act on the topic; None if Cleave
    may act. Cleave may act only if there is a layout and the broker's own auto-scaler is turned off for the topic.

    The layout is None if the broker lacks the topic, or if the epoch of the layout is below `known_epoch`, the
    recorded epoch: the topic was then created again on the broker. Raises the errors of the data plane except
    TopicNotFound.
    """
    try:
        layout, setting = keeper.read_layout(topic), keeper.auto_scaler(topic)
    except TopicNotFound:
        return None, f"{topic} is gone on its broker; detach it"
    if layout.epoch < known_epoch:
        return None, (
            f"the broker's layout of {topic} is at epoch {layout.epoch}, but epoch {known_epoch} was recorded before: "
            "the topic was created again there; detach it and attach it again"
        )
    if setting is None or setting.get("enabled") is not False:
        return layout, (
            f"the broker's own auto-scaler is on for {topic} (autoScalePolicy {dict(setting or {})}); "
            "turn it off there, or detach the topic"
        )
    return layout, None


class MirrorLoop(Stoppable):
    """A background service that checks the mirrored topics of the held shards periodically, until it is
    stopped.
    """

    def __init__(
        self,
        store: Store,
        planes: Mapping[str, DataPlane],
        shards: Callable[[], Shards],
        *,
        interval_seconds: float,
    ) -> None:
        super().__init__()
        self._store, self._planes, self._shards = store, planes, shards
        self._interval_seconds = interval_seconds
        self._failed: dict[int, float] = {}

    @property
    def is_needed(self) -> bool:
        """True if a data plane here keeps layouts."""
        return any(isinstance(plane, LayoutKeeper) for plane in self._planes.values())

    def run(self) -> None:
        """Check mirrored topics every half interval (`interval_seconds` / 2) until `stop`, for the first time after
        half an interval. Each round checks topics of the held shards that were not checked for a whole interval. A
        failed round is logged, and the loop continues.
        """
        repeat_every(
            self._interval_seconds / 2, self._follow, self._stopping, log, "mirrored topics not followed"
        )

    def _follow(self) -> None:
        shards = self._shards()
        if shards.held:
            follow_due(
                self._store,
                self._planes,
                interval_seconds=self._interval_seconds,
                shards=shards,
                failed=self._failed,
            )
