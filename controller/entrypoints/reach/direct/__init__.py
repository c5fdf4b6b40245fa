"""The port on the database itself, by a login: looks in schema `inspect`, changes by the services."""

from __future__ import annotations

from controller.entrypoints.reach.direct.backtests import DirectBacktests
from controller.entrypoints.reach.direct.bundles import DirectBundles
from controller.entrypoints.reach.direct.consumers import DirectConsumers
from controller.entrypoints.reach.direct.dead_letters import DirectDeadLetters
from controller.entrypoints.reach.direct.decisions import DirectDecisions
from controller.entrypoints.reach.direct.pictures import DirectPictures
from controller.entrypoints.reach.direct.policies import DirectPolicies
from controller.entrypoints.reach.direct.topics import DirectTopics


class Direct:
    """See `port.ControlPlane`. Holds nothing open between two questions, but for pictures."""

    topics = DirectTopics()
    policies = DirectPolicies()
    decisions = DirectDecisions()
    consumers = DirectConsumers()
    bundles = DirectBundles()
    dead_letters = DirectDeadLetters()
    backtests = DirectBacktests()

    def __init__(self) -> None:
        self.pictures = DirectPictures()

    def close(self) -> None:
        """Give back what pictures hold."""
        self.pictures.close()
