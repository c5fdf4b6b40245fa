"""Sessions of consumers that share the two segments of two buckets of a topic."""

from __future__ import annotations

from controller.client.servers import Servers
from controller.client.session import Session
from tests.support.bench import TOPIC
from tests.support.waiting import wait_until


def owned(session: Session) -> set[tuple[int, int]]:
    """Segment and start of each bucket it may read."""
    found = session.assignment
    return (
        {(one.segment_id, one.bucket.start) for one in found.buckets if not one.release} if found else set()
    )


class Reader:
    """A consumer that lets go of whatever it is asked to, at once."""

    def __init__(self, servers: Servers, name: str) -> None:
        self.session = Session(servers, TOPIC, "billing", name, on_change=self._changed)
        self._changed()

    def _changed(self) -> None:
        session = getattr(self, "session", None)
        found = session.assignment if session is not None else None
        if found is not None:
            session.report_released([one for one in found.buckets if one.release])

    @property
    def owned(self) -> set[tuple[int, int]]:
        """See `owned`."""
        return owned(self.session)

    @property
    def generations(self) -> dict[tuple[int, int], int]:
        """At which each bucket came here that it may read."""
        found = self.session.assignment
        kept = [one for one in found.buckets if not one.release] if found else []
        return {(one.segment_id, one.bucket.start): one.generation for one in kept}


EVERYTHING = {(segment, start) for segment in (0, 1) for start in (0, 32768)}
"""Two segments of two buckets each: a topic's four."""


def share(*readers: Reader) -> None:
    """Wait until each bucket has one owner, and every reader one bucket at least."""

    def is_shared() -> bool:
        shares = [reader.owned for reader in readers]
        return all(shares) and sum(map(len, shares)) == 4 and set().union(*shares) == EVERYTHING

    wait_until(is_shared, message="all is shared out")
