"""`isolate_outstanding`: a bundle of its own for each topic that stands out.

Proposal B of issue 13761, which Pulsar left to operators, who compute positions by hand (PIP-143). The cuts around
an outstanding hash p are p and p + 1. So nothing else ever gets into its bundle, and the bundle can never be split
again. No cut is on an end of the bundle, and neighbouring hashes share one. Topics at one place stay together (see
`places`), count together, and are named.

Named topics are isolated whatever they carry. Without names, those at `outstanding_percent` of either limit or
above are. k topics add up to 2k bundles. So with a budget the heaviest come first, and a lighter one that still
fits is taken even where a heavier one does not fit.
"""

from __future__ import annotations

from collections.abc import Sequence

from controller.bundles.domain.ring import NamespaceBundle
from controller.bundles.domain.splitting.algorithms.base import (
    CutPoints,
    CutRefusal,
    CutRefusalReason,
    Place,
    SplitRequest,
    place_of,
    places,
    too_few,
)
from controller.bundles.domain.splitting.algorithms.without_load import topics_named


def isolate_outstanding(request: SplitRequest) -> CutPoints | CutRefusal:
    """Return the cuts around each topic named in the options, or, if no topic is named, around each outstanding
    topic. Topics that no cut can separate are isolated together. The answer has refusals for named topics that are
    missing, topics that no cut can separate, and topics over the budget.

    Return only a refusal if no cut can separate two topics of the bundle, no topic is outstanding, no named topic is
    in the bundle, or no topic fits into the budget. Raises InvalidInput for an invalid topic name, unless the first
    of these refusals applies.
    """
    bundle, options = request.bundle, request.options
    if refusal := too_few(bundle, request.topics):
        return refusal
    everywhere = places(request.topics)
    if options.topics:
        wanted, missing = _named(request, everywhere)
        if not wanted:
            return CutRefusal(", ".join(options.topics), CutRefusalReason.TOPIC_NOT_HERE, "topics", 0, 1)
    else:
        wanted, missing = _outstanding(request, everywhere), ()
        if not wanted:
            return _none_outstanding(request, everywhere)
    taken, unaffordable = _within_budget(bundle, wanted, options.bundle_budget)
    if not taken:
        return unaffordable[0]
    together = tuple(
        CutRefusal(place.label, CutRefusalReason.INSEPARABLE, "topics", len(place.topics), 1)
        for place in wanted
        if len(place.topics) > 1
    )
    return CutPoints(sorted(taken), (*missing, *together, *unaffordable))


def _named(request: SplitRequest, everywhere: Sequence[Place]) -> tuple[list[Place], tuple[CutRefusal, ...]]:
    """Return the places of the named topics, heaviest first, and a refusal for each name without a topic in the bundle. A name without a
    partition number names all its partitions; a repeated name counts once. `everywhere`: all places of the bundle. Raises InvalidInput for
    an invalid topic name.
    """
    by_name = {name: topics_named(name, request.topics) for name in dict.fromkeys(request.options.topics)}
    places_named = {place_of(topic.hash_value) for topics in by_name.values() for topic in topics}
    missing = tuple(
        CutRefusal(name, CutRefusalReason.TOPIC_NOT_HERE, "topics", 0, 1)
        for name, topics in by_name.items()
        if not topics
    )
    return _heaviest_first(request, [place for place in everywhere if place.at in places_named]), missing


def _outstanding(request: SplitRequest, everywhere: Sequence[Place]) -> list[Place]:
    """Return the places whose load is at least `outstanding_percent` of a limit, heaviest first."""
    share = request.options.outstanding_percent / 100
    return _heaviest_first(
        request,
        [
            place
            for place in everywhere
            if request.options.load_share(place.msg_rate, place.byte_rate) >= share
        ],
    )


def _heaviest_first(request: SplitRequest, unsorted: list[Place]) -> list[Place]:
    """Return the places by load descending, then by hash."""
    return sorted(
        unsorted, key=lambda place: (-request.options.load_share(place.msg_rate, place.byte_rate), place.at)
    )


def _none_outstanding(request: SplitRequest, everywhere: Sequence[Place]) -> CutRefusal:
    """Return the refusal for a bundle without an outstanding place, with the highest load of a place."""
    metric, rate, limit = _heaviest_first(request, list(everywhere))[0].peak(request.options)
    needed = limit * request.options.outstanding_percent / 100
    return CutRefusal(str(request.bundle), CutRefusalReason.NONE_OUTSTANDING, metric, rate, needed)


def _within_budget(
    bundle: NamespaceBundle, wanted: Sequence[Place], budget: int | None
) -> tuple[set[int], tuple[CutRefusal, ...]]:
    """Return the cuts around the places that fit into the budget, a number of cuts (None: all), and a refusal for each other place. Places
    are tried in their order; a place that does not fit is skipped.
    """
    taken: set[int] = set()
    unaffordable: list[CutRefusal] = []
    for place in wanted:
        cuts = {cut for cut in (place.at, place.at + 1) if bundle.lower < cut < bundle.upper}
        if budget is None or len(taken | cuts) <= budget:
            taken |= cuts
        else:
            remaining, needed = budget - len(taken), len(cuts - taken)
            unaffordable.append(
                CutRefusal(place.label, CutRefusalReason.AT_MAX_BUNDLES, "bundles", remaining, needed)
            )
    return taken, tuple(unaffordable)
