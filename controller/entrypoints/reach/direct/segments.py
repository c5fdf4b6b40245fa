"""Segments by hand, in the database."""

from __future__ import annotations

from controller.entrypoints.reach.direct.changes import change
from controller.entrypoints.reach.port import Changed, How, Merge, Rebucket, Split
from controller.services import segment_admin
from controller.services.segment_admin import Planner


class DirectSegments:
    """See `port.Segments`."""

    def reshape(self, topic: str, act: Split | Merge | Rebucket, how: How) -> Changed:
        """See `port.Segments`."""
        planner = _planner(act)
        return change(
            lambda cleave, store, request: segment_admin.submit(
                store, cleave.planes, topic, planner, request
            ),
            how,
            planned_on=lambda cleave: (
                segment_admin.preview(cleave.store, cleave.planes, topic, planner).epoch
            ),
        )


def _planner(act: Split | Merge | Rebucket) -> Planner:
    if isinstance(act, Split):
        return segment_admin.splitting(act.segment_id, at=act.at, parts=act.parts)
    if isinstance(act, Merge):
        return segment_admin.merging(act.first_id, act.second_id)
    return segment_admin.rebucketing(act.segment_id, act.bucket_count)
