"""Bundle balancer: proposes splits and moves of bundles from stored load, applies approved proposals, and verifies the results.

`propose` decides and records a cycle. `apply` applies proposals that a person or the mode automatic has approved. `verify` checks the
results on the cluster. `replay` decides a stored cycle again and compares the texts. `merges` returns bundles that could be merged,
which Pulsar cannot do. Each function may be repeated. Other services read brokers and aggregate their reports beforehand.
"""

from controller.bundles.services.balancer.apply import (
    ActReport,
    ApplySettings,
    apply,
    require_cycle,
    verify,
    waiting,
)
from controller.bundles.services.balancer.gather import merges
from controller.bundles.services.balancer.propose import ProposedCycle, propose
from controller.bundles.services.balancer.replay import Replay, replay

__all__ = [
    "ActReport",
    "ApplySettings",
    "ProposedCycle",
    "Replay",
    "apply",
    "merges",
    "propose",
    "replay",
    "require_cycle",
    "verify",
    "waiting",
]
