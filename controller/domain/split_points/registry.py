"""The ways of choosing cut points, by name. Nothing in production asks for one yet; tests do."""

from __future__ import annotations

from collections.abc import Mapping

from controller.domain.errors import InvalidInput
from controller.domain.split_points.base import SplitPoint
from controller.domain.split_points.midpoint import midpoint
from controller.domain.split_points.weighted import weighted

SPLIT_POINTS: Mapping[str, SplitPoint] = {"midpoint": midpoint, "weighted": weighted}


def split_point(name: str) -> SplitPoint:
    """The way of that name; raises InvalidInput listing the known ones."""
    try:
        return SPLIT_POINTS[name]
    except KeyError:
        known = ", ".join(sorted(SPLIT_POINTS))
        raise InvalidInput(f"split point {name!r} is unknown; choose one of {known}") from None
