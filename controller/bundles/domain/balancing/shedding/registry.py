"""The shedders by the name that the settings give."""

from __future__ import annotations

from collections.abc import Mapping

from controller.bundles.domain.balancing.shedding.avg import avg
from controller.bundles.domain.balancing.shedding.base import Shedder
from controller.bundles.domain.balancing.shedding.even import even
from controller.bundles.domain.balancing.shedding.overload import overload
from controller.bundles.domain.balancing.shedding.threshold import threshold
from controller.bundles.domain.balancing.shedding.transfer import transfer
from controller.bundles.domain.balancing.shedding.uniform import uniform
from controller.domain.errors import InvalidInput

SHEDDERS: Mapping[str, Shedder] = {
    "even": even,
    "overload": overload,
    "threshold": threshold,
    "uniform": uniform,
    "avg": avg,
    "transfer": transfer,
}

SHEDDERS_BY_AVERAGES: frozenset[str] = frozenset({"threshold", "transfer"})
"""Those that go by usage over time, which a move changes slowly."""


def shedder(name: str) -> Shedder:
    """The shedder of that name; raises InvalidInput listing the known ones."""
    try:
        return SHEDDERS[name]
    except KeyError:
        known = ", ".join(sorted(SHEDDERS))
        raise InvalidInput(f"shedder {name!r} is unknown; choose one of {known}") from None
