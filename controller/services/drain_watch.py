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
from controller.domain.errors import CleaveError
from controller.domain.whole_numbers import MOST
from controller.repeating import Stoppable, repeat_every
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
        """`planes` are the data planes by name. `reconcile` is called with the id of a topic whose logs need a repair."""
        super().__init__()
        self._reconcile = reconcile
        self._store, self._planes, self._shards, self._clock = store, planes, shards, clock
        self._sealed_for_seconds = sealed_for_seconds

    def run(self) -> None:
        """Run a round every `INTERVAL_SECONDS` until `stop`. A failed round is logged."""
        repeat_every(INTERVAL_SECONDS, self.round, self._stopping, log, "drains not counted")

    def round(self) -> int:
        """Count and store the unread messages of up to `DRAINS_A_ROUND` rows of the view `inspect.undrained` (pairs of
        a sealed segment and a stream subscription) in the held shards, on the data planes of this process. Pairs that
        were never counted, or counted longest ago, come first; segments sealed within `FRESH_FOR_SECONDS` come last.
        Return the number of counts; 0 without a shard. Pairs that cannot be counted, and pairs whose count has not
        begun within `ROUND_SECONDS`, are left out. Has the topic reconciled if the log of a sealed segment is open and
        has no unread messages, so that the log is terminated again. Deletes the stored counts of segments that were
        drained or pruned. Raises StoreUnavailable.
        """
        shards = self._shards()
        if not shards.held:
            return 0
        with self._store.transaction() as tx:
            slow_drains = drain_backlogs.slow_drains(
                tx,
                self._planes,
                shards,
                sealed_for_seconds=self._sealed_for_seconds,
                fresh_for_seconds=FRESH_FOR_SECONDS,
                limit=DRAINS_A_ROUND,
            )
        give_up_at = self._clock.monotonic_seconds() + ROUND_SECONDS
        with ThreadPoolExecutor(PARALLEL_CALLS, thread_name_prefix="drain-watch") as calls:
            backlogs = calls.map(lambda drain: self._backlog(drain, give_up_at), slow_drains)
            counts = {
                drain: messages
                for drain, messages in zip(slow_drains, backlogs, strict=True)
                if messages is not None
            }
        with self._store.transaction() as tx:
            drain_backlogs.note(tx, counts, shards)
        return len(counts)

    def _backlog(self, drain: SlowDrain, give_up_at: float) -> int | None:
        """Return the number of messages that the subscription has not read in the segment, from 0 to `MOST`. None
        if `give_up_at` (monotonic seconds) has passed, the watch is stopping, there is no count, or the data plane
        or `reconcile` raises an error, which is logged. Has the topic reconciled if the log is open and has no
        unread messages.
        """
        if self._clock.monotonic_seconds() >= give_up_at or self._stopping.is_set():
            return None
        try:
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
            return None if backlog is None else min(max(backlog, 0), MOST)
        except CleaveError as error:
            log.warning(
                "unread messages of a segment not counted",
                topic_id=drain.topic_id,
                subscription=drain.subscription,
                segment_id=drain.segment_id,
                error=str(error),
            )
            return None
        except Exception:  # An unexpected error must not lose the counts of all other segments.
            log.exception(
                "unread messages of a segment not counted",
                topic_id=drain.topic_id,
                segment_id=drain.segment_id,
            )
            return None
