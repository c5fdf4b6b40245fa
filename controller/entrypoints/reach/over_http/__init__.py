"""The port on a server: a worker, `cleave serve`, or Airflow with the routes mounted. No database is asked from here."""

from __future__ import annotations

from controller.entrypoints.reach.over_http.backtests import HttpBacktests
from controller.entrypoints.reach.over_http.bundles import HttpBundles
from controller.entrypoints.reach.over_http.calls import Calls
from controller.entrypoints.reach.over_http.consumers import HttpConsumers
from controller.entrypoints.reach.over_http.dead_letters import HttpDeadLetters
from controller.entrypoints.reach.over_http.decisions import HttpDecisions
from controller.entrypoints.reach.over_http.pictures import HttpPictures
from controller.entrypoints.reach.over_http.policies import HttpPolicies
from controller.entrypoints.reach.over_http.topics import HttpTopics


class OverHttp:
    """See `port.ControlPlane`."""

    def __init__(self, calls: Calls) -> None:
        self.topics = HttpTopics(calls)
        self.policies = HttpPolicies(calls)
        self.decisions = HttpDecisions(calls)
        self.consumers = HttpConsumers(calls)
        self.dead_letters = HttpDeadLetters(calls)
        self.bundles = HttpBundles(calls)
        self.backtests = HttpBacktests(calls)
        self.pictures = HttpPictures(calls)
