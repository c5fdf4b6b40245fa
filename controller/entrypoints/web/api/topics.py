"""Topics and their subscriptions: list, show, create, delete, and have a subscription go on from somewhere else."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter

from controller.actions.subscriptions import CursorDocument
from controller.entrypoints.web.acting import AtDesk
from controller.entrypoints.web.api.paging import Asked, Page, cut
from controller.entrypoints.web.asked import Topic
from controller.entrypoints.web.demands import READ, DemandingRoute
from controller.entrypoints.web.paths import TOPIC_PATH, Name
from controller.entrypoints.web.refusals import REFUSALS
from controller.services import topic_admin

router = APIRouter(route_class=DemandingRoute, responses=REFUSALS, tags=["topics"])
_SUBSCRIPTION = TOPIC_PATH + "/subscriptions/{subscription}"


@router.get(_SUBSCRIPTION + "/cursors", dependencies=[READ], response_model=Page[CursorDocument])
def list_cursors(acting: AtDesk, topic: Topic, subscription: Name, paging: Asked) -> dict[str, Any]:
    """What a seek of the subscription would move, by range, and who reads there."""
    range_start, segment_id = paging.after([int, int])
    found = topic_admin.what_a_seek_moves(
        acting.app.store,
        acting.app.planes,
        topic,
        subscription,
        after=None if segment_id is None else (range_start, segment_id),
        limit=paging.limit + 1,
    )
    return cut([asdict(one) for one in found], paging, ["range_start", "segment_id"])
