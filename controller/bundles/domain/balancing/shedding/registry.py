"""The shedders by the name that the settings give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controller.bundles.domain.balancing.shedding.avg import avg
from controller.bundles.domain.balancing.shedding.even import even
from controller.bundles.domain.balancing.shedding.overload import overload
from controller.bundles.domain.balancing.shedding.shedder import Shedder
from controller.bundles.domain.balancing.shedding.threshold import threshold
from controller.bundles.domain.balancing.shedding.transfer import transfer
from controller.bundles.domain.balancing.shedding.uniform import uniform
from controller.domain.named import entry_named


@dataclass(frozen=True, slots=True)
class RegisteredShedder:
    """A shedder, and the properties that the rest of balancing uses.

    `by_usage`: the shedder uses the resources that brokers report, so that a broker whose usage is unknown cannot take part.
    `by_averages`: it uses usage averaged over time, which a move changes slowly.
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
    """Return the shedder of that name. Raises InvalidInput for an unknown name; the message lists the names."""
    return entry_named("shedder", name, SHEDDERS)
