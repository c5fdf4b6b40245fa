"""The port on the database itself, by a login: looks in schema `inspect`, changes by the services."""

from __future__ import annotations

from controller.entrypoints.reach.direct.operations import DirectOperations
from controller.entrypoints.reach.direct.segments import DirectSegments
from controller.entrypoints.reach.direct.subscriptions import DirectSubscriptions
from controller.entrypoints.reach.direct.topics import DirectTopics


class Direct:
    """See `port.ControlPlane`. Holds nothing open between two questions."""

    topics = DirectTopics()
    segments = DirectSegments()
    operations = DirectOperations()
    subscriptions = DirectSubscriptions()
