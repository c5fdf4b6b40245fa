"""What a person asks of a bundle by hand, checked against the cluster before anything is done: which one, cut where, moved whither.

`cleave bundles split` and `unload` and the tasks of their DAGs ask here first, for a dry run and for the act alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from controller.bundles.bootstrap import Bundles
from controller.bundles.domain.cluster import Bundle
from controller.bundles.domain.cycle_text import state_from_json
from controller.bundles.domain.load.averages import BundleLoad
from controller.bundles.domain.load.stats import BundleStats
from controller.bundles.domain.ring.boundaries import NamespaceBundles
from controller.bundles.domain.ring.bundle import NamespaceBundle
from controller.bundles.domain.ring.hashes import parse_edge
from controller.bundles.domain.ring.topic_name import checked_namespace
from controller.bundles.domain.splitting.algorithms.base import SplitOptions, SplitPlan, SplitRequest
from controller.bundles.domain.splitting.algorithms.refusal import CutRefusal
from controller.bundles.domain.splitting.algorithms.registry import DEFAULT_SPLIT_ALGORITHM, plan_split
from controller.bundles.domain.splitting.bundle_choice import BUNDLE_CHOICES, chosen_bundle
from controller.bundles.domain.splitting.thresholds import report_of
from controller.bundles.store import cycles as bundle_cycles
from controller.domain.errors import InvalidInput, Unsupported
from controller.entrypoints.bundles.acts import shown

_DEFAULT_PARTS: Final = 2
_TAKEN_BY: Final[Mapping[str, frozenset[str]]] = {
    "positions": frozenset({"specified_positions_divide"}),
    "topics": frozenset({"isolate_outstanding", "specified_topic_count_equally_divide"}),
    "parts": frozenset({"range_equally_divide", "load_equally_divide"}),
}
"""Algorithms that look at what a person may give; the others would pass over it in silence."""


@dataclass(frozen=True, slots=True)
class ManualSplit:
    """What a person asks for. `bundle` is a bundle's text, or a namespace's with LARGEST or HOT behind it."""

    bundle: str
    algorithm: str | None = None
    positions: Sequence[str] = ()
    topics: Sequence[str] = ()
    parts: int = _DEFAULT_PARTS


def plan(bundles: Bundles, wish: ManualSplit) -> SplitPlan | CutRefusal:
    """Where the cuts would be and what each part would carry, by the topics that the brokers report now.

    Positions mean specified_positions_divide, topics isolate_outstanding, neither range_equally_divide, unless an
    algorithm is named. Raises InvalidInput, also for what the algorithm does not look at, Unsupported for one that the
    settings do not allow, BundleNotFound, and what reading the cluster raises.
    """
    name = wish.algorithm or _implied(wish)
    allowed = bundles.settings.bundle_split_algorithms
    if name not in allowed:
        raise Unsupported(f"split algorithm {name!r} is not allowed here; choose one of {', '.join(allowed)}")
    given = {"positions": wish.positions, "topics": wish.topics, "parts": wish.parts != _DEFAULT_PARTS}
    for option, takers in _TAKEN_BY.items():
        if given[option] and name not in takers:
            raise InvalidInput(
                f"split algorithm {name} takes no {option}; leave them out, or choose {' or '.join(sorted(takers))}"
            )
    bundle = which(bundles, wish.bundle)
    positions = tuple(parse_edge(text) for text in wish.positions)
    parts = _parts_now(bundles.reader.bundles(bundle.namespace), bundle, set(positions))
    topics = [topic for part in parts for topic in bundles.topics_of(part)]
    options = SplitOptions(
        positions=positions,
        topics=tuple(wish.topics),
        parts=wish.parts,
        force=bool(wish.positions),
    )
    return plan_split(name, SplitRequest(bundle, topics, options))


def _parts_now(
    listed: NamespaceBundles, bundle: NamespaceBundle, cuts: set[int]
) -> tuple[NamespaceBundle, ...]:
    """The bundle, or what it was cut into at just these places: a repeat, which the act finds done."""
    is_inside = cuts and all(bundle.lower < cut < bundle.upper for cut in cuts)
    if is_inside and {bundle.lower, *cuts, bundle.upper} <= set(listed.boundaries):
        return bundle.parts(cuts)
    return (listed.require(bundle),)


def _implied(wish: ManualSplit) -> str:
    if wish.positions and wish.topics:
        raise InvalidInput("give positions or topics, not both; or name the algorithm")
    if wish.positions:
        return "specified_positions_divide"
    return "isolate_outstanding" if wish.topics else DEFAULT_SPLIT_ALGORITHM


def which(bundles: Bundles, text: str) -> NamespaceBundle:
    """The bundle a person means: by its text, or the LARGEST or HOT one of a namespace, as last aggregated.

    HOT goes by the averages that cycles carry on; before the first cycle by the reading alone.
    """
    namespace, _, choice = text.rpartition("/")
    if choice not in BUNDLE_CHOICES:
        return NamespaceBundle.parse(text)
    checked_namespace(namespace)
    with bundles.store.transaction() as tx:
        averages = state_from_json(bundle_cycles.get_state(tx, bundles.cluster).state).averages
    reports = []
    for row in shown(bundles, namespace, 100_000):
        name = str(NamespaceBundle(namespace, row["lower_bound"], row["upper_bound"]))
        stats = BundleStats(
            byte_rate_in=float(row["byte_rate"] or 0), topic_count=int(row["topic_count"] or 0)
        )
        load = averages.get(name) or BundleLoad().with_sample(stats)
        reports.append(report_of(Bundle(name, row["broker"], stats, load)))
    return chosen_bundle(choice, reports)


def movable(bundles: Bundles, text: str, destination: str | None) -> tuple[NamespaceBundle, str | None]:
    """The bundle to unload and who owns it, None for nobody.

    Raises BundleNotFound for one that has been split, InvalidInput for a destination that is no active broker.
    """
    bundle = which(bundles, text)
    bundles.reader.bundles(bundle.namespace).require(bundle)
    active = [broker.name for broker in bundles.reader.brokers()]
    if destination is not None and destination not in active:
        raise InvalidInput(
            f"{destination} is no active broker of cluster {bundles.cluster}; choose one of {', '.join(active)}"
        )
    return bundle, bundles.reader.owner(bundle, first=[destination] if destination else [])
