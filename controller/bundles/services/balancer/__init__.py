"""Bundle balancer: proposes splits and moves of bundles from stored load, applies what is approved, checks the result.

`propose` decides a cycle and records it. `apply` carries out what people or an automatic namespace approved. `verify`
reads whether it holds. `replay` decides a stored cycle again and compares the texts. `merges` shows which bundles could be merged, which Pulsar cannot do. Each is complete by
itself and may be repeated. Reading brokers and aggregating their reports are services of their own, which run
before.
"""

from controller.bundles.services.balancer.apply import (
    ActReport,
    ApplySettings,
    apply,
    require_cycle,
    waiting,
)
from controller.bundles.services.balancer.merges import merges
from controller.bundles.services.balancer.propose import ProposedCycle, propose
from controller.bundles.services.balancer.replay import Replay, replay
from controller.bundles.services.balancer.verify import verify

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
