"""The shedders by the name that the settings give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controller.bundles.domain.balancing.shedding.avg import avg
from controller.bundles.domain.balancing.shedding.base import Shedder
from controller.bundles.domain.balancing.shedding.even import even
from controller.bundles.domain.balancing.shedding.overload import overload
from controller.bundles.domain.balancing.shedding.threshold import threshold
from controller.bundles.domain.balancing.shedding.transfer import transfer
from controller.bundles.domain.balancing.shedding.uniform import uniform
from controller.domain.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class RegisteredShedder:
    """A shedder, and what the rest of balancing must know of it.

    `by_usage`: it goes by what brokers report of their resources, so that a broker whose usage is unknown cannot take
    part. `by_averages`: by usage over time, which a move changes slowly.
    """

    shed: Shedder
    by_usage: bool = True
    by_averages: bool = False


SHEDDERS: Mapping[str, RegisteredShedder] = {
    "even": RegisteredShedder(even),
    "overload": RegisteredShedder(overload),
    "threshold": RegisteredShedder(threshold, by_averages=True),
    "uniform": RegisteredShedder(uniform, by_usage=False),
    "avg": RegisteredShedder(avg),
    "transfer": RegisteredShedder(transfer, by_averages=True),
}


def shedder(name: str) -> RegisteredShedder:
    """The shedder of that name; raises InvalidInput listing the known ones."""
    try:
        return SHEDDERS[name]
    except KeyError:
        known = ", ".join(sorted(SHEDDERS))
        raise InvalidInput(f"shedder {name!r} is unknown; choose one of {known}") from None
