"""Segments by hand, asked of a server."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from controller.client.servers import topic_path
from controller.entrypoints.reach.over_http.calls import Calls
from controller.entrypoints.reach.port import Changed, How, Merge, Rebucket, Split

_ROUTES = {Split: "split", Merge: "merge", Rebucket: "rebucket"}


@dataclass(frozen=True, slots=True)
class HttpSegments:
    """See `port.Segments`."""

    calls: Calls

    def reshape(self, topic: str, act: Split | Merge | Rebucket, how: How) -> Changed:
        """See `port.Segments`."""
        return self.calls.intend("POST", f"{topic_path(topic)}/{_ROUTES[type(act)]}", how, asdict(act))
