"""Mirror: keeps the rows of a topic whose layout its broker keeps up with that broker, and sees who else acts on it.

The worker that holds the topic's shard looks at it at an interval. What others did through the broker's admin API
becomes history here. When the broker's own auto-scaler is on again, Cleave pauses on that topic and records the reason.
After each change it looks for the logs of the layout, and intends a repair of each segment without one. Nothing is
changed on the broker here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from controller import telemetry
from controller.dataplane.base import DataPlane
from controller.dataplane.layout_keeper import LayoutKeeper
from controller.domain.errors import CleaveError, StoreUnavailable, TopicNotFound, Unsupported
from controller.domain.layout import SegmentLayout
from controller.domain.mirroring import LayoutStep
from controller.repeating import repeat_every
from controller.store.journal import mirror_repairs
from controller.store.mirrors import mirrors
from controller.store.mirrors.mirroring import follow_layout
from controller.store.postgres.engine import Store
from controller.store.shards import Shards
from controller.store.topics import topics

log = telemetry.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at one topic found: what happened there since the last look, and the reason if Cleave may not act."""

    topic_id: int
    steps: tuple[LayoutStep, ...] = ()
    paused_reason: str | None = None


def follow_due(
    store: Store,
    planes: Mapping[str, DataPlane],
    *,
    interval_seconds: float,
    limit: int = 100,
    shards: Shards | None = None,
) -> list[Look]:
    """Look at up to `limit` topics not looked at for that long. Raises StoreUnavailable only.

    A topic whose broker does not answer is logged and comes again.
    """
    keepers = [name for name, plane in planes.items() if isinstance(plane, LayoutKeeper)]
    if not keepers:
        return []
    with store.single_statement() as tx:
        due = mirrors.due_mirrors(
            tx, keepers, older_than_seconds=interval_seconds, limit=limit, shards=shards
        )
    looks = []
    for topic_id in due:
        try:
            looks.append(follow(store, planes, topic_id))
        except StoreUnavailable:
            raise
        except CleaveError as error:
            log.warning("topic not mirrored", topic_id=topic_id, error=str(error))
        except Exception:  # the topics after it would never be looked at
            log.exception("topic not mirrored", topic_id=topic_id)
    return looks


def follow(store: Store, planes: Mapping[str, DataPlane], topic_id: int) -> Look:
    """Look at one topic and bring its rows up to date. Idempotent.

    Raises TopicNotFound, Unsupported (its data plane is not configured here or keeps no layouts),
    DataPlaneUnavailable, LostRace.
    """
    with store.transaction() as tx:
        topic, mirror = topics.get_topic(tx, topic_id), mirrors.get_mirror(tx, topic_id)
    keeper = planes.get(topic.data_plane)
    if not isinstance(keeper, LayoutKeeper):
        raise Unsupported(f"data plane {topic.data_plane!r} of {topic.name} keeps no layouts here")
    layout, paused = _look(keeper, topic.name, topic.epoch)
    check = None
    if mirror is not None and layout is not None and paused is None and layout.epoch > mirror.checked_epoch:
        check = keeper.check_logs(topic.name)
    with store.transaction() as tx:
        topic = topics.get_topic(tx, topic_id, lock=True)
        mirror = mirrors.get_mirror(tx, topic_id)
        if mirror is None or topic.state is not topics.TopicState.LIVE:
            return Look(topic_id)  # being attached or detached: its operation reads for itself
        steps: tuple[LayoutStep, ...] = ()
        if (
            layout is not None and layout.epoch > topic.epoch
        ):  # else another process has read a later layout meanwhile
            steps = follow_layout(tx, topic, layout)
        mirrors.record_look(tx, mirror, paused)
        if check is not None:
            mirror_repairs.note_check(tx, topic_id, check.epoch, check.missing)
    if paused != mirror.paused_reason:
        log.warning("whether Cleave acts on a topic changed", topic=topic.name, paused=paused)
    return Look(topic_id, steps, paused)


def _look(keeper: LayoutKeeper, topic: str, known_epoch: int) -> tuple[SegmentLayout | None, str | None]:
    """The layout, if it is the successor of the one known, and why Cleave may not act."""
    try:
        layout, setting = keeper.read_layout(topic), keeper.auto_scaler(topic)
    except TopicNotFound:
        return None, f"{topic} is gone on its broker; detach it"
    if layout.epoch < known_epoch:
        return None, (
            f"the broker's layout of {topic} is at epoch {layout.epoch}, but epoch {known_epoch} was seen before: "
            "it was "
            "made again there; detach it and attach it anew"
        )
    if setting is None or setting.get("enabled") is not False:
        return layout, (
            f"the broker's own auto-scaler is on for {topic} (autoScalePolicy {dict(setting or {})}); "
            "turn it off there, or detach the topic"
        )
    return layout, None


class MirrorLoop:
    """Looks at the topics of the shards held, again and again, until told to stop."""

    def __init__(
        self,
        store: Store,
        planes: Mapping[str, DataPlane],
        shards: Callable[[], Shards],
        *,
        interval_seconds: float,
    ) -> None:
        self._store, self._planes, self._shards = store, planes, shards
        self._interval_seconds = interval_seconds
        self._stopping = threading.Event()

    @property
    def is_needed(self) -> bool:
        """Whether any data plane here keeps layouts."""
        return any(isinstance(plane, LayoutKeeper) for plane in self._planes.values())

    def run(self) -> None:
        """Follow until `stop`; a store that is away is waited for."""
        repeat_every(self._interval_seconds / 2, self._follow, self._stopping, log, "mirror waits")

    def _follow(self) -> None:
        shards = self._shards()
        if shards.held:
            follow_due(self._store, self._planes, interval_seconds=self._interval_seconds, shards=shards)

    def stop(self) -> None:
        """Leave after the look in hand."""
        self._stopping.set()
