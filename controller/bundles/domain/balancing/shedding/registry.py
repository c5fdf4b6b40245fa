"""The shedders by the name that the settings give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from controller.bundles.domain.balancing.shedding.avg import avg
from controller.bundles.domain.balancing.shedding.even import even
from controller.bundles.domain.balancing.shedding.shedder import Shedder
from controller.bundles.domain.balancing.shedding.transfer import transfer
from controller.bundles.domain.balancing.shedding.uniform import uniform
from controller.bundles.domain.balancing.shedding.usage_line import overload, threshold
from controller.domain.named import entry_named

SHEDDERS: Mapping[str, Shedder] = {
    "even": even,
    "overload": overload,
    "threshold": threshold,
    "uniform": uniform,
    "avg": avg,
    "transfer": transfer,
}

BY_AVERAGES: Final = frozenset({"threshold", "transfer"})
"""Shedders that use usage averaged over time, which a move changes slowly."""

WITHOUT_USAGE: Final = frozenset({"uniform"})
"""Shedders that do not use the resources that brokers report. With any other, a broker whose usage is unknown cannot take part."""


def shedder(name: str) -> Shedder:
    """Return the shedder of that name. Raises InvalidInput for an unknown name; the message lists the names."""
    return entry_named("shedder", name, SHEDDERS)
