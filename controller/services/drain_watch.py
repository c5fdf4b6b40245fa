"""Drain watch: counts the unread messages of sealed segments that drain slowly, to tell a segment that makes
no progress from a large one.

A worker counts for the shards it holds, in a background thread. `inspect.buckets` also shows the counts for
buckets that wait for such segments. Consumers report by themselves what they have drained. A segment without
unread messages whose log is open has lost its termination, so its consumers wait for its end forever: the watch
has the topic reconciled, which terminates the log again. Where a data plane gives no count,
`inspect.undrained` uses the time since the segment was sealed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from controller import telemetry
from controller.clock import Clock
from controller.dataplane.base import DataPlane, LogState
from controller.domain.whole_numbers import MOST
from controller.repeating import Stoppable, contained, repeat_every
from controller.store.postgres.engine import Store
from controller.store.shards import Shards
from controller.store.topics import drain_backlogs
from controller.store.topics.drain_backlogs import SlowDrain

log = telemetry.get_logger(__name__)

INTERVAL_SECONDS = 60.0
SEALED_FOR_SECONDS = 30.0
"""Seconds after its seal before a segment is counted. Many segments are drained by then and are never
counted.
"""
FRESH_FOR_SECONDS = 120.0
"""Seconds after its seal in which a segment is counted only if a round has capacity left. Most segments are
drained by then.
"""
DRAINS_A_ROUND = 100
"""Maximum number of segments that a round counts."""
ROUND_SECONDS = 20.0
"""Seconds of a round after which no count begins."""
LAST_SECONDS = 300.0
"""Seconds for which a pair that could not be counted comes last, so that such pairs keep no other from being counted.
"""
PARALLEL_CALLS = 4
"""Number of counts that run at the same time."""


class DrainWatch(Stoppable):
    """A background service that counts the unread messages of segments that drain slowly, one count for each row of the
    view `inspect.undrained`, in the shards that `shards` returns, in rounds until it is stopped. The view has only
    stream subscriptions that have consumers. A segment is counted from `sealed_for_seconds` after its seal.
    """

    def __init__(
        self,
        store: Store,
        planes: Mapping[str, DataPlane],
        shards: Callable[[], Shards],
        clock: Clock,
        *,
        reconcile: Callable[[int], object],
        sealed_for_seconds: float = SEALED_FOR_SECONDS,
    ) -> None:
        """`planes` are the data planes by name, and `shards` returns the shards that the worker holds. `reconcile` is
        called with the id of a topic whose log was open although its segment is sealed, and has the topic's logs
        repaired; it is called from several threads. A segment is counted from `sealed_for_seconds` after its seal.
        """
        super().__init__()
        self._reconcile = reconcile
        self._store, self._planes, self._shards, self._clock = store, planes, shards, clock
        self._sealed_for_seconds = sealed_for_seconds
        self._last_until: dict[SlowDrain, float] = {}
        """Monotonic times until which pairs that could not be counted come last."""

    def run(self) -> None:
        """Run a round every `INTERVAL_SECONDS` until `stop`. A failed round is logged."""
        repeat_every(INTERVAL_SECONDS, self.round, self._stopping, log, "drains not counted")

    def round(self) -> int:
        """Count the unread messages of up to `DRAINS_A_ROUND` rows of the view `inspect.undrained` (pairs of a sealed
        segment and a stream subscription), store the counts, and return their number. Only topics of the held shards
        on data planes of this process are counted; without a held shard, nothing is done and the result is 0. Pairs
        that were never counted, or counted longest ago, come first. Segments that wait for their parents come after
        them, and segments sealed within `FRESH_FOR_SECONDS` come last. A pair that could not be counted comes last
        for `LAST_SECONDS`.

        A pair that cannot be counted, or whose count has not begun within `ROUND_SECONDS`, is left out. If the log of
        a segment is open and has no unread messages, `reconcile` is called for its topic, so that the log is
        terminated again. Stored counts of segments that were drained or pruned are deleted. Raises StoreUnavailable.
        """
        shards = self._shards()
        if not shards.held:
            return 0
        slow_drains = self._slow_drains(shards)
        give_up_at = self._clock.monotonic_seconds() + ROUND_SECONDS
        with ThreadPoolExecutor(PARALLEL_CALLS, thread_name_prefix="drain-watch") as calls:
            backlogs = calls.map(lambda drain: self._backlog(drain, give_up_at), slow_drains)
            counts = {
                drain: messages
                for drain, messages in zip(slow_drains, backlogs, strict=True)
                if messages is not None
            }
        self._store.in_transaction(drain_backlogs.note, counts, shards)
        return len(counts)

    def _slow_drains(self, shards: Shards) -> list[SlowDrain]:
        """Return the pairs that a round counts. Raises StoreUnavailable."""
        now = self._clock.monotonic_seconds()
        self._last_until = {drain: until for drain, until in self._last_until.items() if now < until}
        slow_drains = self._store.in_transaction(
            drain_backlogs.slow_drains,
            self._planes,
            shards,
            sealed_for_seconds=self._sealed_for_seconds,
            fresh_for_seconds=FRESH_FOR_SECONDS,
            limit=DRAINS_A_ROUND + len(self._last_until),
        )
        return sorted(slow_drains, key=self._last_until.__contains__)[:DRAINS_A_ROUND]

    def _backlog(self, drain: SlowDrain, give_up_at: float) -> int | None:
        """Return the number of unread messages of the subscription in the segment, limited to `MOST`. If the number
        is 0 and the log is open, call `reconcile` for the topic first, and log a warning.

        Return None, without a call, if `give_up_at` (monotonic seconds) has passed or the watch is stopping. Return
        None also if the data plane has no count, or if the data plane or `reconcile` raises an error, which is
        logged. Raises nothing.
        """
        began_at = self._clock.monotonic_seconds()
        if began_at >= give_up_at or self._stopping.is_set():
            return None
        self._last_until[drain] = began_at + LAST_SECONDS  # unless it is counted
        with contained(
            log,
            "unread messages of a segment not counted",
            topic_id=drain.topic_id,
            subscription=drain.subscription,
            segment_id=drain.segment_id,
        ):
            plane = self._planes[drain.data_plane]
            backlog = plane.backlog(drain.backing_topic, drain.subscription)
            if backlog == 0 and plane.segment_state(drain.backing_topic) is LogState.OPEN:
                self._reconcile(drain.topic_id)
                log.warning(
                    "log of a sealed segment was open; its topic was reconciled",
                    topic_id=drain.topic_id,
                    segment_id=drain.segment_id,
                    backing_topic=drain.backing_topic,
                )
            if backlog is not None:
                self._last_until.pop(drain)
                return min(max(backlog, 0), MOST)
        return None
