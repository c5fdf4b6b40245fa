"""The port on a server: a worker, `cleave serve`, or Airflow with the routes mounted. No database is asked from here."""

from __future__ import annotations

from controller.entrypoints.reach.over_http.calls import Calls
from controller.entrypoints.reach.over_http.operations import HttpOperations
from controller.entrypoints.reach.over_http.segments import HttpSegments
from controller.entrypoints.reach.over_http.subscriptions import HttpSubscriptions
from controller.entrypoints.reach.over_http.topics import HttpTopics


class OverHttp:
    """See `port.ControlPlane`."""

    def __init__(self, calls: Calls) -> None:
        self.topics = HttpTopics(calls)
        self.segments = HttpSegments(calls)
        self.operations = HttpOperations(calls)
        self.subscriptions = HttpSubscriptions(calls)
