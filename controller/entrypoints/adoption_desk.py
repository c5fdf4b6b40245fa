"""Topics that were there before Cleave, taken over and given back, by the command or over HTTP: what is asked, and what a rehearsal says.

What adopting and attaching do is in `services.topic_adoption` and `services.topic_admin`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from controller.bootstrap import Application
from controller.dataplane.layout_keeper import LayoutKeeper
from controller.domain.errors import InvalidInput
from controller.entrypoints.rehearsal import planned_segments
from controller.services import topic_adoption
from controller.store.journal.operations import Request
from controller.store.journal.request_keys import Intent
from controller.store.postgres.engine import Store

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Adoption:
    """A plain or partitioned topic `old`, of which the scalable one `topic` is to be made, with one segment a partition where
    `segments` is None. `cut_off`: although producers or consumers are connected.
    """

    old: str
    topic: str
    segments: int | None
    data_plane: str
    cut_off: bool


@dataclass(frozen=True, slots=True)
class PlannedAdoption:
    """What adopting would do: which logs end, which segments follow them, how subscriptions are read, and who is connected now."""

    old: str
    topic: str
    closes: Sequence[str]
    segments: Sequence[Row]
    subscriptions: dict[str, str]
    producers: Sequence[str]
    consumers: Sequence[str]


def adopt(
    app: Application, store: Store, asked: Adoption, request: Request, *, dry_run: bool
) -> tuple[Intent, PlannedAdoption]:
    """Intend it; a rehearsal names who is connected and does not refuse for it. Raises as `topic_adoption.plan` and `adopt`."""
    planned = topic_adoption.plan(
        app.planes, asked.old, topic=asked.topic, segments=asked.segments, data_plane=asked.data_plane
    )
    intent = topic_adoption.adopt(
        store,
        app.planes,
        planned,
        request,
        data_plane=asked.data_plane,
        cut_off=asked.cut_off or dry_run,
    )
    found = planned.found
    return intent, PlannedAdoption(
        old=found.name,
        topic=planned.topic,
        closes=list(found.logs),
        segments=planned_segments(intent.operation),
        subscriptions={
            name: "QUEUE" if is_queue else "STREAM" for name, is_queue in found.subscriptions.items()
        },
        producers=list(found.producers),
        consumers=list(found.consumers),
    )


def layout_on_broker(app: Application, topic: str, data_plane: str) -> list[Row]:
    """The active segments of a topic whose layout its broker keeps. Raises InvalidInput for a data plane that keeps none."""
    keeper = app.planes[data_plane]
    if not isinstance(keeper, LayoutKeeper):
        raise InvalidInput(f"data plane {data_plane!r} keeps no layouts; choose pulsar_scalable")
    return [
        {"segment_id": one.segment_id, "hash_range": str(one.hash_range), "parents": list(one.parent_ids)}
        for one in keeper.read_layout(topic).active
    ]
