"""`range_equally_divide`: parts of the same width. Pulsar's default; it does not look at where topics lie.

It has an answer for any bundle that can be split. An empty half is common, and the sums of the parts show it.
"""

from __future__ import annotations

from controller.bundles.domain.ring.boundaries import equal_cuts
from controller.bundles.domain.ring.hashes import LAST_HASH
from controller.bundles.domain.splitting.algorithms.base import CutPoints, SplitRequest
from controller.bundles.domain.splitting.algorithms.refusal import CutRefusal, CutRefusalReason


def range_equally(request: SplitRequest) -> CutPoints | CutRefusal:
    """Return the cuts into `options.parts` equal widths; fewer parts, with a refusal, if the bundle is narrower or the budget smaller. The
    topics play no part. Raises InvalidRange for a budget of 0 or a bundle that is too narrow to split.
    """
    bundle, options = request.bundle, request.options
    budget = LAST_HASH if options.bundle_budget is None else options.bundle_budget
    parts = min(options.parts, bundle.upper - bundle.lower, budget + 1)
    cuts = equal_cuts(bundle, parts)
    if parts == options.parts:
        return CutPoints(cuts)
    fewer = CutRefusal(str(bundle), CutRefusalReason.FEWER_PARTS, "bundles", parts, options.parts)
    return CutPoints(cuts, (fewer,))
