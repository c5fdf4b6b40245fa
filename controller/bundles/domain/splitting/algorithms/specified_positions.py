"""`specified_positions_divide` (PIP-143): cuts at positions that the operator gives.

The answers are Pulsar's with two exceptions. A repeated position counts once; in Pulsar the whole split fails on it later. Positions
outside the bundle are named; in Pulsar they are dropped silently.
"""

from __future__ import annotations

from controller.bundles.domain.splitting.algorithms.base import CutPoints, SplitRequest
from controller.bundles.domain.splitting.algorithms.refusal import CutRefusal, CutRefusalReason
from controller.domain.errors import InvalidInput


def specified_positions(request: SplitRequest) -> CutPoints | CutRefusal:
    """Return the positions of the options that are strictly inside the bundle, rising and each once, with a refusal
    for each position that is not. Return only a refusal if no position is inside, or if the bundle has fewer than two
    topics and `force` is not set. Raises InvalidInput, whatever the topics, if no position is given.
    """
    bundle, positions = request.bundle, request.options.positions
    if not positions:
        raise InvalidInput(f"no positions to split bundle {bundle} at; give at least one, strictly inside it")
    if len(request.topics) < 2 and not request.options.force:
        return CutRefusal(str(bundle), CutRefusalReason.TOO_FEW_TOPICS, "topics", len(request.topics), 2)
    inside = sorted({position for position in positions if bundle.lower < position < bundle.upper})
    if not inside:
        return CutRefusal(str(bundle), CutRefusalReason.NO_POSITION_INSIDE, "positions", len(positions), 1)
    outside = sorted(set(positions) - set(inside))
    return CutPoints(
        inside,
        tuple(
            CutRefusal(
                str(bundle),
                CutRefusalReason.POSITION_OUTSIDE,
                "hash",
                position,
                bundle.lower if position <= bundle.lower else bundle.upper,
            )
            for position in outside
        ),
    )
