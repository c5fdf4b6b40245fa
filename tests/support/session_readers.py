"""Sessions of consumers that share the two segments of two buckets of a topic."""

from __future__ import annotations

from collections.abc import Callable

from controller.client.servers import Servers
from controller.client.session import Session
from tests.support.bench import TOPIC
from tests.support.waiting import wait_until


def owned(session: Session) -> set[tuple[int, int]]:
    """Return segment and start of each bucket that the session may read."""
    assignment = session.assignment
    return (
        {(bucket.segment_id, bucket.bucket.start) for bucket in assignment.buckets if not bucket.release}
        if assignment
        else set()
    )


class Reader:
    """A consumer that releases requested buckets at once."""

    def __init__(self, servers: Servers, name: str) -> None:
        self.session = Session(servers, TOPIC, "billing", name, on_change=self._changed)
        self._changed()

    def _changed(self) -> None:
        session = getattr(self, "session", None)
        assignment = session.assignment if session is not None else None
        if assignment is not None:
            session.report_released([bucket for bucket in assignment.buckets if bucket.release])

    @property
    def owned(self) -> set[tuple[int, int]]:
        """Segment and start of each bucket that it may read."""
        return owned(self.session)

    @property
    def generations(self) -> dict[tuple[int, int], int]:
        """Return the generation of each bucket that it may read."""
        assignment = self.session.assignment
        owned_buckets = [bucket for bucket in assignment.buckets if not bucket.release] if assignment else []
        return {(bucket.segment_id, bucket.bucket.start): bucket.generation for bucket in owned_buckets}


Joining = Callable[[str], Reader]
"""Begins the session of a consumer of this name."""
EVERYTHING = {(segment, start) for segment in (0, 1) for start in (0, 32768)}
"""Two segments of two buckets each: a topic's four."""


def share(*readers: Reader) -> None:
    """Wait until each bucket has one owner, and every reader at least one bucket."""

    def is_shared() -> bool:
        shares = [reader.owned for reader in readers]
        return all(shares) and sum(map(len, shares)) == 4 and set().union(*shares) == EVERYTHING

    wait_until(is_shared, message="all is shared out")
