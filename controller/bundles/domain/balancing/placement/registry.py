"""The placements by the name that the settings give."""

from __future__ import annotations

from collections.abc import Mapping

from controller.bundles.domain.balancing.placement.base import Placement
from controller.bundles.domain.balancing.placement.least_rate import least_long_term_rate
from controller.bundles.domain.balancing.placement.least_usage import least_reported_usage, least_usage
from controller.bundles.domain.balancing.placement.planned import planned
from controller.bundles.domain.balancing.placement.round_robin import round_robin
from controller.domain.named import entry_named

PLACEMENTS: Mapping[str, Placement] = {
    "least_long_term_rate": least_long_term_rate,
    "least_usage": least_usage,
    "least_reported_usage": least_reported_usage,
    "round_robin": round_robin,
    "planned": planned,
}


def placement(name: str) -> Placement:
    """Return the placement of that name. Raises InvalidInput for an unknown name; the message lists the names."""
    return entry_named("placement", name, PLACEMENTS)
